"""Probes of importance: correlations compared with SciPy, and one step compared with its law."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.data.splits import splits_of
from jaxattn.lab.probes import importance


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipy_with_ties_and_missing_entries(rng, x64, ties):
    x, y = rng.normal(size=(2, 60))
    y += x
    if ties:
        x, y = np.round(x), np.round(y)
    use = rng.random(60) < 0.7
    got = jax.jit(importance.spearman_array)(jnp.where(use, x, jnp.nan), jnp.asarray(y), jnp.asarray(use))
    np.testing.assert_allclose(got, stats.spearmanr(x[use], y[use]).statistic, rtol=1e-12)


def test_pearson_equals_numpy_and_is_nan_for_a_constant(rng, x64):
    x, y = rng.normal(size=(2, 30))
    use = rng.random(30) < 0.5
    got = jax.jit(importance.pearson_array)(jnp.asarray(x), jnp.where(use, y, jnp.nan), jnp.asarray(use))
    np.testing.assert_allclose(got, np.corrcoef(x[use], y[use])[0, 1], rtol=1e-12)
    assert np.isnan(jax.jit(importance.pearson_array)(jnp.ones(30), jnp.asarray(y), jnp.asarray(use)))


def test_bin_means_match_numpy_and_published_values(rng, x64):
    settings = ja.Probes(high=14 / 15)
    edges = np.linspace(settings.low, settings.high, settings.bins + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_allclose(centres[[0, -1]], [-0.95, 0.89], atol=0.006)
    difference = np.concatenate([rng.uniform(-1, 1, 200), [-1, 14 / 15, 1.0, np.nan]])
    difference = difference[~((difference > 0) & (difference < 0.2))]
    values = rng.normal(size=len(difference))
    got = jax.jit(importance.bin_means_array, static_argnums=(2, 3, 4))(
        values, difference, settings.bins, settings.low, settings.high
    )
    inside = (difference >= -1) & (difference <= 14 / 15)
    sums, _ = np.histogram(difference[inside], edges, weights=values[inside])
    counts, _ = np.histogram(difference[inside], edges)
    assert (counts == 0).any()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, sums / counts, rtol=1e-10)


@pytest.mark.parametrize("classes", [2, 3])
def test_one_step_embeddings_match_the_definition(x64, corpus, show, draw, measure, classes):
    corpus, model = corpus(classes), ja.models.OneLayer(dim=20)
    before, probe = draw(model, corpus), ja.probes.OneStepEmbeddings()
    after = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=3.0))(before)
    seen = show(model, after, corpus, train=("E",), memory=probe.remember(before))
    seen.phase = ja.dynamics.OneStep(name="step", step_size=3.0)
    found = measure(probe, seen)["embedding_error"]
    # α_s by its definition: signed frequency per sequence, averaged.
    ids, real = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    n, v = len(corpus.targets), np.asarray(before.v)
    alpha = np.zeros((12, 1 if classes == 2 else classes))
    for row, mask, label in zip(ids, real, np.asarray(corpus.targets), strict=True):
        weight = np.array([label / 2]) if classes == 2 else np.eye(classes)[label] - 1 / classes
        for s in row[mask]:
            alpha[s] += weight / mask.sum() / n
    law = alpha @ np.atleast_2d(v.T if classes > 2 else v)
    expected = np.linalg.norm((after.E - before.E) / 3.0 - law, axis=1).max()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.more
def test_spearman_over_tokens_ties_equal_posterior_differences(rng, measure):
    sequences = rng.integers(0, 40, (60, 9)).tolist()
    labels = rng.choice([-1, 1], 60)
    corpus = ja.data.from_sequences(sequences, labels.tolist(), vocab_size=40)
    model = ja.models.OneLayer(dim=16)
    like = jax.eval_shape(lambda: model.init(jax.random.key(0), corpus, dtype=jnp.float32))
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), like)
    task = Task(model, ja.losses.DEFAULT, splits_of(corpus))
    seen = ja.probes.ProbeContext(params, task, ja.dynamics.OneStep(name="step", step_size=3.0), None)
    found = measure(importance.Importance(min_count=1), seen)
    counts = [
        [sum(s.count(t) for s, y in zip(sequences, labels, strict=True) if y == k) for k in (-1, 1)]
        for t in range(40)
    ]
    exact = np.array([abs(Fraction(b - a, a + b)) for a, b in counts])
    expected = stats.spearmanr(np.asarray(params.E @ params.p), np.unique(exact, return_inverse=True)[1])
    np.testing.assert_allclose(found["spearman_Ep_absolute_tokens"], expected.statistic, atol=1e-6)
