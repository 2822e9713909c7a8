"""In-context Markov chains."""

import math
import sys

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.more
NAME = "markov_induction"


@pytest.fixture
def chains(code):
    return lambda name: getattr(sys.modules[code(NAME, "Chains").__module__], name)


def layer(x, one, d):
    """Compute a layer of attention with relative positions by loops over queries."""
    y = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    q, k, v = y @ one["Q"], y @ one["K"], y @ one["V"]
    found = np.zeros_like(x)
    for t in range(len(x)):
        scores = np.array([q[t] @ (k[s] + one["R"][t - s]) / math.sqrt(d) for s in range(t + 1)])
        weight = np.exp(scores - scores.max())
        found[t] = weight @ v[: t + 1] / weight.sum()
    return x + found @ one["O"]


def test_transformer_matches_a_loop(code, chains):
    data = chains("markov")(jax.random.key(0), sequences=2, states=3)
    model = code(NAME, "Transformer")(dim=4)
    drawn = model.init(jax.random.key(1), data, dtype=np.float32)
    rng = np.random.default_rng(0)
    params = {n: rng.normal(size=x.shape).astype(np.float32) for n, x in drawn.items()}
    params |= {n: drawn[n] for n in ("scale", "shift")}
    for ids, ours in zip(np.asarray(data.ids), model.outputs(params, data), strict=True):
        x = params["E"][ids].astype(float)
        for number in range(2):
            x = layer(x, {name: params[name][number].astype(float) for name in "QKVOR"}, 4)
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        assert_allclose(ours, x @ params["head"], rtol=1e-3, atol=1e-3)


def test_predictors_count_tokens_and_transitions_in_the_context(chains):
    data = chains("markov")(jax.random.key(0), sequences=5, states=3)
    found = chains("predictions")(data)
    for n, ids in enumerate(np.asarray(data.ids)):
        unigram = np.array([1 + (ids == state).sum() for state in range(3)])
        after = np.array([1 + ((ids[:-1] == ids[-1]) & (ids[1:] == state)).sum() for state in range(3)])
        assert_allclose(found["uniform"][n], 1 / 3, rtol=1e-6)
        assert_allclose(found["unigram"][n], unigram / 103, rtol=1e-6)
        assert_allclose(found["bigram"][n], after / after.sum(), rtol=1e-6)


def test_tokens_follow_the_transition_matrix(chains):
    """The mean log-likelihood of the true probabilities equals minus their entropy."""
    data = chains("markov")(jax.random.key(0), sequences=500, states=2)
    P, own = np.asarray(data.truth, float), np.asarray(data.targets)[..., None]
    likelihood = np.log(np.take_along_axis(P, own, axis=2)).mean()
    assert abs(likelihood - (P * np.log(P)).sum(axis=2).mean()) < 0.01
    symmetric = chains("markov")(jax.random.key(0), sequences=500, states=2, doubly=True)
    assert abs(np.asarray(symmetric.ids).mean() - 0.5) < 0.02


def test_predictions_at_initialisation_are_nearly_uniform(run):
    short = ("blocks=null", "figures=null", "seeds=1", "phases.train.steps=2", "data.test_sequences=64")
    at = run(NAME, *short)
    assert at("kl_uniform", 0) < 0.01
    assert_allclose(at("test_loss", 0), math.log(2), rtol=0.02)
