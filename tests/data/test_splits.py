"""Training, test and validation corpora of one seed, and statistics of the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import Corpus, token_statistics
from jaxattn.lab.study import seed


def same(left, right):
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.mark.more
@pytest.mark.parametrize("kind", ["independent", "topics", "negation"])
def test_label_noise_affects_only_training_and_validation_labels(kind, study):
    own = {"topics": {"topic_words": 3}}.get(kind, {})
    sizes = dict.fromkeys(("sequences", "test_sequences", "validation_sequences"), 120)
    table = {"kind": kind, "vocab_size": 16, "length": 5, "relevant": 6} | sizes | own
    data_key = seed.keys(0)[0]
    data = study(data=table).base.data
    clean, noisy = (
        jax.jit(study(data=table | {"label_noise": x}).base.data.draw)(data_key) for x in (0.0, 0.3)
    )
    train_key, test_key = jax.random.split(data_key)
    own = {name: getattr(data, name) for name in data.arguments} | {"sequences": 120}
    assert same(clean.train, type(data).function(train_key, **own))
    assert same(clean.test, type(data).function(test_key, **own))
    assert same(clean.test, noisy.test)
    flipped = []
    for before, after in ((clean.train, noisy.train), (clean.validation, noisy.validation)):
        assert same(before.replace(targets=after.targets), after)
        flipped.append(np.asarray(before.targets != after.targets))
        assert abs(flipped[-1].mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 120)
    assert not np.array_equal(*flipped)
    bags = [np.asarray(corpus.bags.index) for corpus in (clean.train, clean.validation, clean.test)]
    assert not any(np.array_equal(bags[i], bags[i - 1]) for i in range(3))


def test_there_is_no_validation_corpus_by_default(study):
    data = study(data={"kind": "xor", "vocab_size": 16, "length": 5, "sequences": 24, "pairs": 2}).base.data
    drawn = jax.eval_shape(data.draw, jax.random.key(0))
    assert drawn.validation is None
    assert drawn.test is None
    assert not data.held_out


@pytest.mark.more
def test_each_split_is_independent_of_the_other_splits(study, tables):
    key = seed.keys(0)[0]
    alone, every, plain = (
        jax.jit(study(data=tables()["data"] | changes).base.data.draw)(key)
        for changes in ({"test_sequences": 0}, {"validation_sequences": 10}, {})
    )
    assert same(alone.train, every.train)
    assert same(every.test, plain.test)


@pytest.mark.parametrize("classes", [2, 3])
def test_token_statistics_match_the_importance_functions(ragged, classes):
    corpus = ragged(classes)
    found = token_statistics(corpus)
    columns = (corpus.vocab_size, 1 if classes == 2 else classes)
    assert found.alpha.shape == found.posterior_difference.shape == columns
    np.testing.assert_array_equal(found.count, ja.data.token_counts(corpus))
    alpha = np.asarray(ja.data.average_signed_frequency(corpus)).reshape(columns)
    np.testing.assert_array_equal(found.alpha, alpha)
    difference = np.asarray(ja.data.posterior_difference(corpus)).reshape(columns)
    np.testing.assert_array_equal(found.posterior_difference, difference)


@pytest.mark.more
def test_sampled_examples_are_evenly_spaced_and_token_statistics_are_unchanged(ragged):
    train = ragged(2)
    few = jax.jit(Corpus.take)(train, jnp.arange(3))
    splits = ja.data.Splits(train, jax.jit(token_statistics)(train), few)
    sampled = jax.jit(lambda splits: splits.sampled(4))(splits)
    np.testing.assert_array_equal(sampled.train.lengths, np.asarray(train.lengths)[[0, 4, 8, 12]])
    np.testing.assert_array_equal(sampled.train.targets, np.asarray(train.targets)[[0, 4, 8, 12]])
    assert same(sampled.test, few)
    assert sampled.validation is None
    jax.tree.map(np.testing.assert_array_equal, sampled.tokens, splits.tokens)
    assert splits.sampled(None).train is train


def draw(classes):
    labels = np.arange(12_000) % classes
    tokens = (np.arange(12_000) % 7)[:, None].tolist()
    signs = (2 * labels - 1 if classes == 2 else labels).tolist()
    return ja.data.from_sequences(tokens, signs, vocab_size=7, num_classes=classes)


@pytest.mark.parametrize("classes", [2, 3])
def test_zero_label_noise_leaves_results_bitwise_identical(classes):
    corpus = draw(classes)
    again = ja.data.flip_labels(jax.random.key(1), corpus, 0.0)
    for left, right in zip(jax.tree.leaves(corpus), jax.tree.leaves(again), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("noise", [0.05, 0.3, 0.5])
def test_the_number_of_flipped_labels_is_binomial(classes, noise):
    corpus = draw(classes)
    noisy = ja.data.flip_labels(jax.random.key(2), corpus, noise)
    before, after = np.asarray(corpus.class_index), np.asarray(noisy.class_index)
    assert set(np.asarray(noisy.targets).tolist()) == set(np.asarray(corpus.targets).tolist())
    number = 12_000 // classes
    for k in range(classes):
        for other in range(classes):
            expected = 1 - noise if k == other else noise / (classes - 1)
            share = (after[before == k] == other).mean()
            # One of the 87 shares of all cases exceeds 4.5 deviations by chance in 1 of 1,700 runs.
            assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / number)
    for part in ("bags", "occurrences", "occurrence_to_bag", "lengths"):
        assert getattr(corpus, part) is getattr(noisy, part)


def test_label_noise_of_one_flips_every_label():
    corpus = draw(3)
    noisy = ja.data.flip_labels(jax.random.key(2), corpus, 1.0)
    assert (noisy.targets != corpus.targets).all()


def test_flipped_labels_are_nested_across_noise_levels_and_noise_can_be_vmapped():
    corpus = draw(3)
    noise = jnp.array([0.0, 0.1, 0.4])
    rows = jax.vmap(lambda x: ja.data.flip_labels(jax.random.key(3), corpus, x).targets)(noise)
    for row, x in zip(rows, (0.0, 0.1, 0.4), strict=True):
        alone = ja.data.flip_labels(jax.random.key(3), corpus, x).targets
        np.testing.assert_array_equal(row, alone)
    changed = np.asarray(rows != corpus.targets)
    assert (changed[1] <= changed[2]).all()
