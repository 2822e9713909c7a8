from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import Corpus, from_draws


def counts(corpus):
    """Return the dense n × V matrix of counts from each of the two layouts."""
    by_sequence, by_token = both_counts(corpus)
    np.testing.assert_array_equal(by_sequence, by_token)
    return by_sequence


@jax.jit
def both_counts(corpus):
    by_sequence = jax.vmap(lambda x: corpus.bags.dot(x)[0])(jnp.eye(corpus.vocab_size)).T
    return by_sequence, jax.vmap(lambda x: corpus.occurrences.dot(x)[0])(jnp.eye(corpus.num_examples))


draw = jax.jit(from_draws, static_argnames=("vocab_size", "num_classes"))


def loop(sequences, vocab_size):
    dense = np.zeros((len(sequences), vocab_size))
    for row, tokens in enumerate(sequences):
        for token in tokens:
            dense[row, token] += 1
    return dense


def test_counts_from_sequences_match_a_loop(rng):
    sequences = [rng.integers(0, 11, rng.integers(1, 90)).tolist() for _ in range(70)]
    corpus = ja.data.from_sequences(sequences, rng.choice([-1, 1], 70).tolist(), vocab_size=13)
    np.testing.assert_array_equal(counts(corpus), loop(sequences, 13))
    np.testing.assert_array_equal(corpus.lengths, [len(s) for s in sequences])


@pytest.mark.parametrize(
    ("tokens", "labels", "message"),
    [
        (jnp.zeros((3, 2)), jnp.ones(3, int), "tokens: expected integer ids, got dtype float32"),
        (jnp.zeros((3, 2), int), jnp.ones(2, int), r"labels: shape \(2,\) for 3 sequences; pass one label"),
    ],
)
def test_sampled_tokens_or_labels_with_wrong_types_or_shapes_are_rejected(tokens, labels, message):
    with pytest.raises(ja.InputError, match=message):
        draw(tokens, labels, vocab_size=4, num_classes=2)


@pytest.mark.more
def test_repr_shows_a_common_sequence_length_once():
    corpus = from_draws(jnp.zeros((3, 2), int), jnp.ones(3, int), vocab_size=4, num_classes=2)
    assert "3 sequences, 2 tokens in each, 6 in all" in repr(corpus)


def test_counts_from_sampled_tokens_match_a_loop_under_vmap(rng):
    tokens = rng.integers(0, 9, (2, 50, 12))
    labels = jnp.ones((2, 50), jnp.int32)

    def build(tokens, labels):
        return from_draws(tokens, labels, vocab_size=9, num_classes=2)

    batch = jax.jit(jax.vmap(build))(jnp.asarray(tokens), labels)
    for which in range(2):
        corpus = jax.tree.map(lambda x, which=which: x[which], batch)
        np.testing.assert_array_equal(counts(corpus), loop(tokens[which], 9))
        np.testing.assert_array_equal(corpus.lengths, 12)


def test_from_draws_and_from_sequences_build_equal_corpora(rng):
    tokens = rng.integers(0, 40, (30, 50))
    labels = rng.choice([-1, 1], 30)
    E, p, v = (rng.normal(size=size) for size in ((40, 8), 8, 8))
    params = ja.models.one_layer.Params(E=jnp.asarray(E), p=jnp.asarray(p), v=jnp.asarray(v))
    draw = jax.jit(lambda tokens, labels: from_draws(tokens, labels, vocab_size=40, num_classes=2))
    one = draw(tokens, labels)
    other = ja.data.from_sequences(tokens.tolist(), labels.tolist(), vocab_size=40)
    logits = [jax.jit(ja.models.one_layer.outputs)(params, corpus) for corpus in (one, other)]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)


@pytest.mark.more
def test_padded_sequences_contain_the_original_tokens(rng):
    sequences = [sorted(rng.integers(0, 50, rng.integers(1, 80)).tolist()) for _ in range(40)]
    corpus = ja.data.from_sequences(sequences, [1] * 40, vocab_size=50)
    ids, mask = ja.models.reference.padded_sequences(corpus)
    assert [row[use].tolist() for row, use in zip(ids, mask, strict=True)] == sequences


def test_occurrence_to_bag_maps_occurrences_to_bag_entries(rng):
    sequences = [rng.integers(0, 50, rng.integers(1, 90)).tolist() for _ in range(40)]
    read = ja.data.from_sequences(sequences, [1, -1] * 20, vocab_size=50)
    drawn = jax.jit(lambda key: ja.data.assumption1(key, vocab_size=40, relevant=6, length=9, sequences=60))
    for corpus in (read, drawn(jax.random.key(0))):
        bags, occurrences = jax.tree.map(np.asarray, (corpus.bags, corpus.occurrences))
        there = occurrences.count > 0
        place = np.asarray(corpus.occurrence_to_bag)[there]
        assert len(np.unique(place)) == len(place) == (bags.count > 0).sum()
        token = np.broadcast_to(occurrences.owner[:, None], there.shape)[there]
        np.testing.assert_array_equal(bags.index.ravel()[place], token)
        np.testing.assert_array_equal(bags.count.ravel()[place], occurrences.count[there])
        sequence = np.broadcast_to(bags.owner[:, None], bags.count.shape).ravel()[place]
        np.testing.assert_array_equal(sequence, occurrences.index[there])
        np.testing.assert_array_equal(np.asarray(corpus.occurrence_to_bag)[~there], 0)


@pytest.mark.parametrize("length", [256, 65_537])
@pytest.mark.more
def test_a_sequence_may_consist_of_one_repeated_token(x64, length):
    tokens = np.zeros((3, length), np.int32)
    tokens[1:, :2] = [[1, 2], [3, 3]]
    scores, values = np.array([0.1, 5.0, -1.0, 9.0]), np.array([1.0, -2.0, 3.0, 4.0])
    corpus = draw(jnp.asarray(tokens), jnp.array([1, -1, 1]), vocab_size=4, num_classes=2)
    weight = np.exp(scores[tokens])
    expected = (weight * values[tokens]).sum(axis=1) / weight.sum(axis=1)
    found = jax.jit(ja.attention.attend)(corpus, jnp.asarray(scores), jnp.asarray(values))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(ja.data.token_counts(corpus), np.bincount(tokens.ravel(), minlength=4))
    np.testing.assert_array_equal(corpus.lengths, length)


@pytest.mark.parametrize(
    ("sequences", "length", "vocab_size"), [(2**16, 2**16, 5), (2**26, 32, 5), (64, 1, 2**26), (1, 1, 2**31)]
)
def test_corpora_exceeding_the_32_bit_index_limit_are_rejected(sequences, length, vocab_size):
    tokens, labels = (jax.ShapeDtypeStruct(shape, "int32") for shape in ((sequences, length), (sequences,)))
    with pytest.raises(ja.InputError, match=r"exceed the 32-bit index limit of 2,147,483,647; use"):
        jax.eval_shape(partial(from_draws, vocab_size=vocab_size, num_classes=2), tokens, labels)


@pytest.mark.parametrize(
    "form", ["of many rows", pytest.param("of one row", marks=pytest.mark.more), "draws"]
)
def test_take_returns_the_corpus_of_the_selected_sequences(rng, ragged, form):
    corpus = ragged(3)
    if form != "of many rows":
        length = {"of one row": 7, "draws": 40}[form]
        tokens, labels = jnp.asarray(rng.integers(0, 60, (9, length))), jnp.asarray([1, -1, 1] * 3)
        corpus = draw(tokens, labels, vocab_size=62, num_classes=2)
    every, chosen = counts(corpus), np.array([3, 0, 8, 5])
    cut = jax.jit(Corpus.take)(corpus, jnp.asarray(chosen))
    np.testing.assert_array_equal(counts(cut), every[chosen])
    np.testing.assert_array_equal(cut.targets, corpus.targets[chosen])
    np.testing.assert_array_equal(cut.lengths, every[chosen].sum(axis=1))
    present = np.asarray(cut.occurrences.count) > 0
    in_bags = np.asarray(cut.bags.count).ravel()[cut.occurrence_to_bag]
    np.testing.assert_array_equal(in_bags[present], np.asarray(cut.occurrences.count)[present])
    assert cut.num_entries == np.ceil(corpus.num_entries * 4 / corpus.num_examples)


def test_dense_counts_match_a_loop(ragged):
    """Some sequences are longer than a row of the bags, and some tokens occur nowhere."""
    corpus = ragged(3)
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    expected = np.zeros((corpus.num_examples, corpus.vocab_size), int)
    for sequence, (row, real) in enumerate(zip(ids, mask, strict=True)):
        for token in row[real]:
            expected[sequence, token] += 1
    np.testing.assert_array_equal(corpus.counts(), expected)
    np.testing.assert_array_equal(jax.jit(lambda corpus: corpus.counts())(corpus), expected)
