import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja

SIZES = {"vocab_size": 60, "relevant": 12, "length": 10, "sequences": 240}


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.more) for k in range(1, 5))])
def test_assumption1_samples_satisfy_assumption_1_exactly(classes, seed):
    corpus = ja.data.assumption1(jax.random.key(seed), **SIZES, num_classes=classes)
    alpha = np.asarray(ja.data.average_signed_frequency(corpus)).reshape(60, -1)
    assert (alpha[12:] == 0).all()
    assert np.asarray(ja.data.irrelevant(corpus))[12:].all()
    ids, mask = ja.models.reference.padded_sequences(corpus)
    assert mask.all()
    assert ((ids < 12).sum(axis=1) == 1).all()
    own_class = ids[ids < 12] % classes
    np.testing.assert_array_equal(own_class, corpus.class_index)
    occurs = np.asarray(ja.data.token_counts(corpus))[:12] > 0
    assert (np.asarray(ja.data.completely_relevant(corpus))[:12].sum(axis=1) == occurs).all()


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.more)])
@pytest.mark.more
def test_multi_relevant_sequences_contain_distinct_relevant_tokens_of_their_class(classes):
    corpus = ja.data.multi_relevant(jax.random.key(0), **SIZES, relevant_per_sequence=3, num_classes=classes)
    ids, _ = ja.models.reference.padded_sequences(corpus)
    for row, k in zip(ids, np.asarray(corpus.class_index), strict=True):
        relevant = row[row < 12]
        assert len(set(relevant.tolist())) == 3 == len(relevant)
        assert (relevant % classes == k).all()
    assert np.asarray(ja.data.irrelevant(corpus))[12:].all()


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.more)])
def test_independent_tokens_have_the_stated_posterior_differences(classes):
    sizes = {"vocab_size": 40, "relevant": 12, "length": 20, "sequences": 24_000}
    corpus = ja.data.independent(
        jax.random.key(1), **sizes, max_posterior_difference=0.8, relevant_mass=0.5, num_classes=classes
    )
    counts = np.asarray(ja.data.class_counts(corpus))
    share = counts / counts.sum(axis=0)
    token = np.arange(12)
    delta = 0.8 * (token // classes + 1) / (12 // classes)
    tilt = 1 + delta[:, None] * np.where(
        token[:, None] % classes == np.arange(classes), 1, -1 / (classes - 1)
    )
    expected = np.concatenate([0.5 * tilt / 12, np.full((28, classes), 0.5 / 28)])
    drawn = sizes["length"] * sizes["sequences"] / classes
    deviations = (share - expected) / np.sqrt(expected / drawn)
    assert np.abs(deviations).max() < 4.5
    assert 0.8 < deviations.std() < 1.2


def test_generators_are_pure_functions_of_the_key():
    sample = ja.data.assumption1
    one, again, other = (
        np.asarray(sample(jax.random.key(k), **SIZES, num_classes=2).bags.index) for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 1}, "num_classes: expected 'int' >= 2, got 1"),
        ({"sequences": 241}, "sequences: 241 is not a positive multiple"),
        ({"sequences": 0}, "sequences: expected 'int' >= 1, got 0"),
        ({"relevant": 5}, "relevant: 5 is not a positive multiple"),
        ({"vocab_size": 12}, "leaves no irrelevant token"),
        ({"vocab_size": 3}, "leaves no irrelevant token"),
    ],
)
def test_impossible_sizes_are_rejected(change, message):
    with pytest.raises(ja.InputError, match=message):
        ja.data.assumption1(jax.random.key(0), **SIZES | change)
    with pytest.raises(ja.InputError, match="relevant_per_sequence: must be between 1 and"):
        ja.data.multi_relevant(jax.random.key(0), **SIZES, relevant_per_sequence=7)


TOPICS = SIZES | {"topic_words": 6}


@pytest.mark.parametrize("classes", [4, pytest.param(2, marks=pytest.mark.more)])
@pytest.mark.more
def test_the_posterior_difference_of_a_topic_word_is_its_purity(classes):
    sizes = TOPICS | {"sequences": 12_000}
    corpus = ja.data.topics(jax.random.key(1), **sizes, min_purity=0.2, max_purity=0.9, num_classes=classes)
    difference = np.asarray(ja.data.posterior_difference(corpus)).reshape(60, -1)
    number = np.asarray(ja.data.token_counts(corpus))
    purity = np.linspace(0.2, 0.9, 12 // classes)
    for word in range(12):
        own, pure = word % classes, purity[word // classes]
        found = difference[word, own] if classes > 2 else difference[word, 0] * (1 if own else -1)
        share = pure + (1 - pure) / classes
        spread = classes / (classes - 1) * np.sqrt(share * (1 - share) / number[word])
        assert abs(found - pure) < 4 * spread
    ids, mask = ja.models.reference.padded_sequences(corpus)
    assert mask.all()
    assert ((ids < 12).sum(axis=1) == 6).all()
    # All words are equally frequent: 12 words share 6 positions in each of 12,000 sequences.
    assert np.abs(number[:12] - 6_000).max() < 4.5 * np.sqrt(6_000)
    assert np.abs(number[12:] - 1_000).max() < 4.5 * np.sqrt(1_000)


@pytest.mark.parametrize("classes", [3, pytest.param(2, marks=pytest.mark.more)])
@pytest.mark.more
def test_pure_topic_words_occur_only_in_their_topic(classes):
    corpus = ja.data.topics(jax.random.key(0), **TOPICS, min_purity=1.0, num_classes=classes)
    ids, _ = ja.models.reference.padded_sequences(corpus)
    for row, topic in zip(ids, np.asarray(corpus.class_index), strict=True):
        assert (row[row < 12] % classes == topic).all()


@pytest.mark.more
def test_topics_with_vmapped_purity_and_padding_match_a_loop():
    keys = jax.random.split(jax.random.key(2), 3)
    purities = (0.0, 0.5, 1.0)

    def wide(key, purity, used):
        return ja.data.topics(key, **TOPICS | {"vocab_size": 90}, min_purity=purity, used=used)

    batch = jax.jit(jax.vmap(wide, in_axes=(0, 0, None)))(keys, jnp.array(purities), 60)
    for number, (key, purity) in enumerate(zip(keys, purities, strict=True)):
        mine, _ = ja.models.reference.padded_sequences(jax.tree.map(lambda x, i=number: x[i], batch))
        alone, _ = ja.models.reference.padded_sequences(ja.data.topics(key, **TOPICS, min_purity=purity))
        np.testing.assert_array_equal(mine, alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic_words": 11}, "length: 10 is too short for 11"),
        ({"topic_words": 0}, "topic_words: expected 'int' >= 1, got 0"),
        ({"relevant": 13}, "relevant: 13 is not a positive multiple"),
        ({"vocab_size": 12}, "leaves no irrelevant token"),
    ],
)
def test_impossible_topic_sizes_are_rejected(change, message):
    with pytest.raises(ja.InputError, match=message):
        ja.data.topics(jax.random.key(0), **TOPICS | change)


def test_topics_work_without_common_words():
    corpus = ja.data.topics(jax.random.key(0), **TOPICS | {"vocab_size": 12, "topic_words": 10})
    assert (np.asarray(corpus.lengths) == 10).all()
