import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.attention import bands, batched


@pytest.fixture
def corpus(rng):
    """Short sequences with repeated tokens; three of them contain low tokens only."""
    sequences = [rng.integers(0, 80, length).tolist() for length in rng.integers(1, 40, 20)]
    sequences += [[85], [85, 85, 86], [89, 88, 88]]
    return ja.data.from_sequences(sequences, [1] * len(sequences), vocab_size=90)


def batch_of(rng, spreads, classes, dtype):
    """Return values, and scores of given spreads whose last ten tokens are the lowest."""
    scores = rng.uniform(0.3, 1, (len(spreads), 90))
    scores[:, 0], scores[:, 80:] = 1, rng.uniform(0, 0.05, (len(spreads), 10))
    scores[:, 89] = 0
    scores = np.asarray(scores * np.array(spreads)[:, None], dtype)
    return scores, np.asarray(rng.normal(size=(len(spreads), classes, 90)), dtype)


def reference(corpus, scores, columns, weights):
    """Return f, and the gradient of Σ weights · f, by sequence in float64."""
    scores, columns, weights = (np.asarray(x, np.float64) for x in (scores, columns, weights))
    counts = np.zeros((corpus.num_examples, corpus.vocab_size))
    ids, mask = ja.models.reference.padded_sequences(corpus)
    np.add.at(counts, (np.nonzero(mask)[0], np.asarray(ids)[np.asarray(mask)]), 1)
    f = np.zeros((*columns.shape[:2], len(counts)))
    d_scores, d_columns = np.zeros_like(scores), np.zeros_like(columns)
    for member, (a, gamma) in enumerate(zip(scores, columns, strict=True)):
        for x, count in enumerate(counts):
            q = count * np.exp(np.minimum(a - a[count > 0].max(), 0))
            q /= q.sum()
            f[member, :, x] = gamma @ q
            d_score = weights[member, :, x] @ (gamma - f[member, :, x, None])
            d_scores[member] += q * d_score
            d_columns[member] += weights[member, :, x, None] * q
    return f, d_scores, d_columns


@jax.jit
def count(scores):
    return bands.count(scores, 200).max()


@jax.jit
def both_ways(corpus, scores, columns, weights, num_bands):
    f, shift, normaliser = batched.banded_forward(corpus, scores, columns, num_bands)
    d_sums = weights / normaliser[:, None]
    return f, *batched.banded_backward(corpus, scores, columns, f, shift, d_sums, num_bands)[:2]


@pytest.mark.parametrize("spread", [0.9, 1.0, 1.7, 150.0])
@pytest.mark.parametrize("classes", [1, 3])
def test_results_match_the_reference_for_any_number_of_bands(rng, x64, corpus, spread, classes):
    scores, columns = batch_of(rng, [512 * spread, 512 * spread / 2, 0], classes, np.float64)
    weights = rng.normal(size=(3, classes, corpus.num_examples))
    num_bands = count(scores)
    assert num_bands == int(spread) + 1
    mine = both_ways(corpus, *map(jnp.asarray, (scores, columns, weights)), num_bands)
    for one, other in zip(mine, reference(corpus, scores, columns, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=2e-13)


@pytest.mark.parametrize("spread", [30, 64, 300, 1e4])
@pytest.mark.more
def test_float32_results_do_not_underflow(rng, corpus, spread):
    scores, columns = batch_of(rng, [spread, 20], 1, np.float32)
    weights = np.asarray(rng.normal(size=(2, 1, corpus.num_examples)), np.float32)
    num_bands = count(scores)
    mine = both_ways(corpus, *map(jnp.asarray, (scores, columns, weights)), num_bands)
    for one, other in zip(mine, reference(corpus, scores, columns, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=5e-6)


def test_results_match_the_reference_if_scores_span_too_many_bands(rng, corpus):
    scores, columns = batch_of(rng, [0, 150], 1, np.float32)
    scores[0] = 2.0**31
    weights = np.asarray(rng.normal(size=(2, 1, corpus.num_examples)), np.float32)
    mine = both_ways(corpus, *map(jnp.asarray, (scores, columns, weights)), 3)
    for one, other in zip(mine, reference(corpus, scores, columns, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=5e-6)


def test_cancellation_is_detected(corpus, rng, x64):
    scores = np.linspace(0, 1, 90)[rng.permutation(90)] * np.array([[1.0], [1e6]])
    columns, weights = rng.normal(size=(2, 1, 90)), np.ones((2, 1, corpus.num_examples))

    @jax.jit
    def cancellation(scores, columns, weights):
        f, shift, normaliser = batched.banded_forward(corpus, scores, columns, 2000)
        d_sums = weights / normaliser[:, None]
        return batched.banded_backward(corpus, scores, columns, f, shift, d_sums, 2000)[-1]

    cancelled = cancellation(scores, columns, weights)
    np.testing.assert_array_equal(cancelled, [False, True])


def test_first_derivatives_match_the_reference(rng, x64, corpus):
    scores, columns = map(jnp.asarray, batch_of(rng, [5, 700], 1, np.float64))
    along = jnp.asarray(rng.normal(size=scores.shape))
    weights = jnp.ones((2, 1, corpus.num_examples))

    @jax.jit
    def slope(a, along):
        return jax.jvp(lambda a: batched.banded_forward(corpus, a, columns, 2)[0].sum(), (a,), (along,))[1]

    _, d_scores, _ = both_ways(corpus, scores, columns, weights, 2)
    np.testing.assert_allclose(slope(scores, along), (d_scores * along).sum(), rtol=1e-11)


def test_derivatives_are_accurate_if_the_squared_normaliser_underflows(rng, corpus):
    scores, columns = batch_of(rng, [62, 60], 1, np.float32)
    along = np.asarray(rng.normal(size=scores.shape), np.float32)
    call = lambda a: batched.banded_forward(corpus, a, jnp.asarray(columns), 1)[0].sum()  # noqa: E731
    slope = jax.jit(lambda a, along: jax.jvp(call, (a,), (along,))[1])(scores, along)
    _, d_scores, _ = reference(corpus, scores, columns, np.ones((2, 1, corpus.num_examples)))
    np.testing.assert_allclose(slope, (d_scores * along).sum(), rtol=2e-5)
