"""Tests of ordered sequences: bags, causal masks and rejected input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import Sequences, Vectors, from_sequences
from jaxattn.data.sequences import from_flat

LISTS = [[3, 1, 3, 0], [2], [1, 1, 1], [0, 4, 2, 4, 4]]
CLASSES = [1, -1, -1, 1]


def sequences(**changes):
    tokens, lengths = np.concatenate(LISTS), np.array([len(ids) for ids in LISTS])
    return from_flat(tokens, lengths, np.array(CLASSES), vocab_size=5, classes=2).replace(**changes)


def counted(corpus, vocab_size=5):
    """Return the counts (n, V), computed by a loop over the entries of the bags."""
    table = np.zeros((corpus.num_examples, vocab_size), int)
    bags = corpus.bags
    for row, owner in enumerate(np.asarray(bags.owner)):
        for token, count in zip(np.asarray(bags.index)[row], np.asarray(bags.count)[row], strict=True):
            table[owner, token if count else 0] += count
    return table


def test_bags_count_the_tokens_in_each_sequence():
    expected = np.array([np.bincount(tokens, minlength=5) for tokens in LISTS])
    for bags in (sequences().bags(), jax.jit(Sequences.bags)(sequences())):
        np.testing.assert_array_equal(counted(bags), expected)
        np.testing.assert_array_equal(bags.lengths, list(map(len, LISTS)))
        np.testing.assert_array_equal(bags.targets, CLASSES)


def test_bags_match_from_sequences():
    of_lists, of_bags = from_sequences(LISTS, CLASSES, vocab_size=5), jax.jit(Sequences.bags)(sequences())
    x = jnp.asarray(np.random.default_rng(0).standard_normal(5), jnp.float32)
    np.testing.assert_allclose(of_bags.bags.dot(x)[0], of_lists.bags.dot(x)[0], rtol=1e-6)
    y = jnp.asarray(np.random.default_rng(1).standard_normal(4), jnp.float32)
    np.testing.assert_allclose(of_bags.occurrences.dot(y)[0], of_lists.occurrences.dot(y)[0], rtol=1e-6)


def test_masked_positions_are_ignored():
    clean = sequences()
    dirty = clean.replace(ids=jnp.where(clean.mask, clean.ids, 77))
    np.testing.assert_array_equal(counted(dirty.bags()), counted(clean.bags()))


def test_causal_mask_includes_current_and_earlier_positions():
    causal = np.asarray(sequences().causal)
    for n, tokens in enumerate(LISTS):
        for i in range(causal.shape[1]):
            assert [j for j in range(causal.shape[2]) if causal[n, i, j]] == [
                j for j in range(len(tokens)) if j <= i
            ]


def test_take_preserves_queries():
    taken = sequences().take(jnp.array([3, 1]))
    np.testing.assert_array_equal(taken.query, [4, 0])
    np.testing.assert_array_equal(taken.lengths, [5, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": jnp.full((4, 5), 9)}, "token id 9 in sequence 0 must be between 0 and 4"),
        ({"query": jnp.array([0, 1, 0, 0])}, "query: position 1 in sequence 1 has no token"),
        ({"query": jnp.array([0, 0, 0, 5])}, "query: position 5 in sequence 3"),
        ({"mask": jnp.zeros((4, 5), bool)}, "sequence 0 has no token"),
        ({"query": jnp.zeros(3, int)}, "query: int32\\[3\\] for 4 targets"),
    ],
)
def test_invalid_sequences_are_rejected(changes, message):
    with pytest.raises(ja.InputError, match=message):
        sequences(**changes).check()


def test_bags_require_the_number_of_classes():
    with pytest.raises(ja.InputError, match="classes=K"):
        sequences(classes=None).bags()


def vectors(n=4, tokens=3, dim=2, **changes):
    X = jnp.arange(float(n * tokens * dim)).reshape(n, tokens, dim)
    return Vectors(targets=jnp.ones(n, int), X=X, z=X[:, 0], classes=2).replace(**changes)


def test_take_preserves_vectors_and_queries():
    data = vectors(mask=jnp.ones((4, 3), bool))
    data.check()
    taken = data.take(jnp.array([2, 0]))
    np.testing.assert_array_equal(taken.X, np.asarray(data.X)[[2, 0]])
    np.testing.assert_array_equal(taken.z, np.asarray(data.X)[[2, 0], 0])
    assert (taken.num_examples, taken.dim, taken.num_classes) == (2, 2, 2)


def test_masked_tokens_have_score_minus_infinity():
    mask = jnp.array([[True, False, True]] * 4)
    scores = vectors(mask=mask).masked(jnp.ones((4, 3)))
    np.testing.assert_array_equal(np.isfinite(scores), mask)
    assert np.isfinite(vectors().masked(jnp.ones((4, 3)))).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": jnp.ones((4, 3))}, r"X: expected tokens of shape \(n, T, d\), got float32\[4, 3\]"),
        ({"X": jnp.ones((5, 3, 2))}, r"X: float32\[5, 3, 2\] for 4 targets"),
        ({"z": jnp.ones((4, 5))}, r"z: expected queries of shape \(4, 2\), got float32\[4, 5\]"),
        ({"mask": jnp.zeros((4, 3), bool)}, "sequence 0 has no token"),
    ],
)
def test_invalid_vectors_are_rejected(changes, message):
    with pytest.raises(ja.InputError, match=message):
        vectors(**changes).check()
