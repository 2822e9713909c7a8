import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.errors import InputError
from jaxattn.models.reference import padded_sequences

SIZES = {"vocab_size": 60, "relevant": 12, "length": 10, "sequences": 240}


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_assumption1_holds_exactly(classes, seed):
    corpus = ja.data.assumption1(jax.random.key(seed), **SIZES, num_classes=classes)
    alpha = np.asarray(ja.data.average_signed_frequency(corpus)).reshape(60, -1)
    assert (alpha[12:] == 0).all()
    assert np.asarray(ja.data.irrelevant(corpus))[12:].all()
    ids, mask = padded_sequences(corpus)
    assert mask.all()
    assert ((ids < 12).sum(axis=1) == 1).all()
    own_class = ids[ids < 12] % classes
    np.testing.assert_array_equal(own_class, corpus.class_index)
    occurs = np.asarray(ja.data.token_counts(corpus))[:12] > 0
    assert (np.asarray(ja.data.completely_relevant(corpus))[:12].sum(axis=1) == occurs).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_multi_relevant_holds_distinct_relevant_tokens_of_the_own_class(classes):
    corpus = ja.data.multi_relevant(jax.random.key(0), **SIZES, relevant_per_sequence=3, num_classes=classes)
    ids, _ = padded_sequences(corpus)
    for row, k in zip(ids, np.asarray(corpus.class_index), strict=True):
        relevant = row[row < 12]
        assert len(set(relevant.tolist())) == 3 == len(relevant)
        assert (relevant % classes == k).all()
    assert np.asarray(ja.data.irrelevant(corpus))[12:].all()


@pytest.mark.parametrize("classes", [2, 3])
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
    one, again, other = (ja.data.independent(jax.random.key(seed), **SIZES).bags.index for seed in (0, 0, 1))
    assert (one == again).all()
    assert not (one == other).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 1}, "num_classes: 1"),
        ({"sequences": 241}, "sequences: 241 is not a positive multiple"),
        ({"sequences": 0}, "sequences: 0"),
        ({"relevant": 5}, "relevant: 5 is not a positive multiple"),
        ({"vocab_size": 12}, "leaves no irrelevant token"),
        ({"vocab_size": 3}, "leaves no irrelevant token"),
    ],
)
def test_impossible_sizes_are_named(change, message):
    with pytest.raises(InputError, match=message):
        ja.data.assumption1(jax.random.key(0), **SIZES | change)
    with pytest.raises(InputError, match="relevant_per_sequence: 7"):
        ja.data.multi_relevant(jax.random.key(0), **SIZES, relevant_per_sequence=7)
