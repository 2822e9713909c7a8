"""Sequences on a latent graph."""

import itertools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxattn.lab.study.import_paths import ImportPaths

pytestmark = pytest.mark.more
NAME = "causal_graph"


FOLDER = Path(__file__).parents[2] / "sweeps" / "neighbours" / NAME


@pytest.fixture
def of():
    """Return a function or class of a file of the item."""
    return lambda file, name: ImportPaths(FOLDER).load(f"{file}.py:{name}")


@pytest.fixture
def trees(of):
    def make(sequences=4, graph="random", length=6, states=3, concentration=1.0, **settings):
        settings |= {"graph": graph, "length": length, "states": states, "concentration": concentration}
        make = jax.jit(
            lambda: of("trees", "trees")(
                jax.random.key(0), jax.random.key(2), sequences=sequences, **settings
            )
        )
        return make()

    return make


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def sampled(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_disentangled_transformer_matches_a_loop(of, trees):
    data, d = trees(), 9
    params = {"A1": sampled((d, d), 0), "A2": sampled((2 * d, 2 * d), 1), "W": sampled((4 * d, 3), 2)}
    ours = of("causal_graph", "Disentangled")().outputs(params, data)
    for ids, found in zip(np.asarray(data.ids), ours, strict=True):
        x = np.concatenate([np.eye(3)[ids], np.eye(6)], axis=1)
        for A in (params["A1"], params["A2"]):
            rows = [softmax(x[: t + 1] @ (A.T @ x[t])) @ x[: t + 1] for t in range(6)]
            x = np.concatenate([x, rows], axis=1)
        assert_allclose(found, np.log(softmax(x[-1] @ params["W"])), rtol=1e-4, atol=1e-4)


def test_two_matrices_match_a_loop(of, trees):
    data, model = trees(), of("causal_graph", "TwoMatrices")(epsilon=0.1)
    params = {"A1": sampled((6, 6), 0), "A2": sampled((3, 3), 1)}
    for ids, found in zip(np.asarray(data.ids), model.outputs(params, data), strict=True):
        tokens = np.eye(3)[ids]
        read = np.array([softmax(params["A1"][t, : t + 1]) @ tokens[: t + 1] for t in range(6)])
        f = softmax(read @ params["A2"][ids[-1]]) @ tokens
        assert_allclose(found, np.log((f + 0.1) / 1.3), rtol=1e-5)


def test_first_gradient_matches_a_loop(of, trees):
    """For small β it is the mean of -β/(T i) (π(s_i|s_T)/f(s_i) - 1)(1[s_j = s_T] - mean over j)."""
    data, T, start = trees(sequences=50, length=8), 8, 1e-3
    model = of("causal_graph", "TwoMatrices")(start=start, epsilon=1e-9)
    params = model.init(jax.random.key(0), data, dtype=jnp.float32)
    loss = of("causal_graph", "cross_entropy")
    slope = jax.grad(lambda params: loss(model.outputs(params, data), data.targets).mean())(params)["A1"]
    expected = np.zeros((T, T))
    for ids, target in zip(np.asarray(data.ids), np.asarray(data.targets), strict=True):
        f = np.bincount(ids, minlength=3) / T
        reached = sum(target[s] for s in range(3) if f[s])
        for i in range(T):
            same = ids[: i + 1] == ids[-1]
            expected[i, : i + 1] -= (
                start / T / (i + 1) * (target[ids[i]] / f[ids[i]] - reached) * (same - same.mean()) / 50
            )
    assert_allclose(slope, expected, atol=1e-3 * np.abs(expected).max())


def test_information_matches_enumeration(of, trees):
    """All sequences of two tokens on random graphs with two matrices."""
    data = trees(sequences=2, length=7, states=2)
    parents, expected = np.asarray(data.parents[0])[:-1], np.zeros((6, 6))
    assert (parents >= 0).sum() >= 2
    for P in np.asarray(data.P, float):
        mu = np.array([P[1, 0], P[0, 1]]) / (P[1, 0] + P[0, 1])
        for s in itertools.product(range(2), repeat=6):
            p = np.prod([mu[s[i]] if parents[i] < 0 else P[s[parents[i]], s[i]] for i in range(6)])
            expected += p * np.array([[P[s[j], s[i]] / mu[s[i]] for j in range(6)] for i in range(6)]) / 2
    assert_allclose(of("information", "information")(data), np.tril(expected - 1), atol=1e-5)
    edge = next(i for i in range(6) if parents[i] >= 0)
    chi_squared = np.mean(
        [(P**2 * mu_of(P)[:, None] / mu_of(P)).sum() - 1 for P in np.asarray(data.P, float)]
    )
    assert_allclose(expected[edge, parents[edge]] - 1, chi_squared, rtol=1e-5)


def mu_of(P):
    """Return the stationary distribution, the solution of a linear system."""
    S = len(P)
    system = np.concatenate([P.T - np.eye(S), np.ones((1, S))])
    return np.linalg.lstsq(system, np.append(np.zeros(S), 1.0), rcond=None)[0]


def test_stationary_distribution_solves_its_equations(of, trees):
    P = trees(sequences=20, states=4, concentration=0.5).P
    found = of("transitions", "stationary")(P)
    assert_allclose(found, [mu_of(one) for one in np.asarray(P, float)], atol=1e-4)


def test_tokens_follow_the_graph(of, trees):
    """Counts of transitions match a loop, and the likelihood of tokens is minus the entropy of their rows."""
    data = trees(sequences=3000, length=8)
    ids, P, parents = (np.asarray(x) for x in (data.ids, data.P, data.parents[0]))
    found = np.asarray(of("transitions", "counts")(data))
    for n in range(5):
        expected = np.zeros((3, 3))
        for i in np.flatnonzero(parents >= 0):
            expected[ids[n, parents[i]], ids[n, i]] += 1
        assert_allclose(found[n], expected)
    likelihood = (found * np.log(P)).sum() / found.sum()
    rows = np.concatenate(
        [np.take_along_axis(P, ids[:, [p], None], axis=1) for p in parents if p >= 0], axis=1
    )
    assert abs(likelihood - (rows * np.log(rows)).sum(axis=2).mean()) < 0.02
    roots = np.flatnonzero(parents < 0)[:-1]
    mu = np.asarray(of("transitions", "stationary")(data.P))
    likelihood = np.take_along_axis(np.log(mu), ids[:, roots], axis=1).mean()
    assert abs(likelihood - (mu * np.log(mu)).sum(axis=1).mean()) < 0.02
    assert_allclose(data.targets, P[np.arange(3000), ids[:, -1]])


def test_posterior_mean_matches_importance_sampling_from_the_prior(trees):
    data = trees(sequences=3, states=2, draws=4000)
    P = np.random.default_rng(0).dirichlet([1, 1], size=(100_000, 2))
    mu = np.stack([P[:, 1, 0], P[:, 0, 1]], axis=1) / (P[:, 1, 0] + P[:, 0, 1])[:, None]
    for ids, parents, found in zip(*map(np.asarray, (data.ids, data.parents, data.bayes)), strict=True):
        weights = np.ones(len(P))
        for i, parent in enumerate(parents[:-1]):
            weights *= mu[:, ids[i]] if parent < 0 else P[:, ids[parent], ids[i]]
        assert_allclose(found, weights @ P[:, ids[-1]] / weights.sum(), atol=0.02)


def test_first_gradient_is_the_information_of_a_chain(of, trees):
    data = trees(sequences=4000, graph="chain", length=16)
    model, loss = of("causal_graph", "TwoMatrices")(), of("causal_graph", "cross_entropy")
    params = model.init(jax.random.key(0), data, dtype=jnp.float32)
    slope = jax.grad(lambda params: loss(model.outputs(params, data), data.targets).mean())(params)["A1"]
    measured = np.tril(-slope, -1)[1:15]
    assert (measured.argmax(axis=1) == np.arange(14)).all()
    g = np.asarray(of("information", "information")(data))
    predicted = np.array([g[i, i - 1] - g[i, : i + 1].mean() for i in range(1, 15)])
    scaled = np.array([slope[i, i - 1] * -16 * 3 * (i + 1) / 0.1 for i in range(1, 15)])
    assert 0.8 < (scaled / predicted).mean() < 1.2


def test_loss_starts_at_that_of_uniform_predictions(run):
    short = ("blocks=null", "figures=null", "seeds=1", "phases.train.steps=2", "data.test_sequences=64")
    at = run(NAME, *short, "data.draws=64")
    assert_allclose(at("loss_of_test", 0), math.log(3), rtol=1e-5)
    assert at("entropy_of_test") < at("bayes_of_test") < at("uniform_loss")
    assert at("root_distance", 0) < 1e-6
