"""In-context n-grams."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from jaxattn.lab.study.import_paths import ImportPaths

pytestmark = pytest.mark.more
NAME = "sub_ngrams"


@pytest.fixture
def grams(code):
    return lambda name: getattr(sys.modules[code(NAME, "Grams").__module__], name)


@pytest.fixture
def load():
    """Import a function from a file of measures."""
    paths = ImportPaths(Path(__file__).parents[2] / "sweeps" / "neighbours" / NAME)
    return lambda name, file="check": paths.load(f"{file}.py:{name}")


def softmax(scores):
    weight = np.exp(scores - scores.max())
    return weight / weight.sum()


def predict(params, ids, states):
    """Compute the prediction of the simplified transformer by loops over positions and heads."""
    x = np.eye(states)[ids]
    streams = [x]
    for A, V in zip(params["A"], params["V"], strict=True):
        moved = [softmax(A[t, : t + 1]) @ x[: t + 1] @ V for t in range(len(ids))]
        streams.append(np.array(moved))
    y = np.concatenate(streams, axis=1)
    scores = np.array([y[-1] @ params["Q"] @ params["K"].T @ key for key in y])
    return softmax(scores) @ x


def test_model_matches_loops(code, grams):
    data = grams("grams")(jax.random.key(0), sequences=3, states=3, length=9)
    model = code(NAME, "Simplified")(heads=2)
    drawn = model.init(jax.random.key(1), data, dtype=np.float32)
    rng = np.random.default_rng(0)
    params = {n: rng.normal(size=x.shape).astype(np.float32) for n, x in drawn.items()}
    for ids, ours in zip(np.asarray(data.ids), model.outputs(params, data), strict=True):
        assert_allclose(ours, predict(params, ids, 3), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_constructions_are_the_frequencies_of_k_grams(code, grams, k):
    """For large scales, the output is the share of each token after the last k - 1 tokens."""
    data = grams("grams")(jax.random.key(0), sequences=40, states=2, length=40)
    model = code(NAME, "Simplified")(heads=2, grams=k, scale=25.0)
    ours = model.outputs(model.init(jax.random.key(1), data, dtype=np.float32), data)
    for ids, p, smoothed in zip(np.asarray(data.ids), ours, grams("estimate")(data, k, 0.5), strict=True):
        places = [t for t in range(k - 1, 40) if all(ids[t - j] == ids[40 - j] for j in range(1, k))]
        counts = np.bincount(ids[places], minlength=2)
        assert_allclose(smoothed, (counts + 0.5) / (counts + 0.5).sum(), rtol=1e-5)
        if len(places) > 3:
            # The first k - 1 positions lack earlier tokens, so each may match the last tokens by chance.
            assert_allclose(p, counts / counts.sum(), atol=(k - 1) / (len(places) + 1) + 1e-4)


def test_targets_are_rows_of_the_table(grams):
    """Rows from Dirichlet(α) have the mean entropy ψ(Vα + 1) - ψ(α + 1); frequencies approach them."""
    truth = np.asarray(
        grams("grams")(jax.random.key(0), sequences=8000, states=3, length=2, alpha=0.3).targets
    )
    assert_allclose(truth.sum(axis=1), 1, rtol=1e-5)
    entropy = float(jax.scipy.special.digamma(1.9) - jax.scipy.special.digamma(1.3))
    assert abs(-(truth * np.log(truth + 1e-30)).sum(axis=1).mean() - entropy) < 0.015
    data = grams("grams")(jax.random.key(0), sequences=500, states=2, length=400)
    error = [np.abs(np.asarray(grams("estimate")(data, k)) - np.asarray(data.targets)).mean() for k in (2, 3)]
    assert error[1] < 0.06 < error[0]


def test_gradient_at_the_unigram_construction_is_zero(code, grams):
    data = grams("grams")(jax.random.key(0), sequences=50, states=3, length=20)
    model = code(NAME, "Simplified")(heads=2, grams=1)
    params = model.init(jax.random.key(1), data, dtype=np.float32)

    def loss(params):
        return grams("cross_entropy")(model.outputs(params, data), data.targets).mean()

    assert all(not jnp.any(slope) for slope in jax.grad(loss)(params).values())
    moved = params | {"Q": params["Q"] + 0.1, "K": params["K"] + 0.1}
    assert any(jnp.any(slope) for slope in jax.grad(loss)(moved).values())


def test_stages_of_a_known_curve(load):
    """A loss that is constant at two levels has plateaus there, which have known steps."""
    levels = [0.95, 0.85, 0.7]
    loss = np.interp(np.arange(100), [0, 20, 25, 65, 75, 99], [0.96, 0.96, 0.86, 0.86, 0.7, 0.7])
    run = pd.DataFrame(
        {"test_loss": loss, "squared_gradient": np.where(np.abs(loss - 0.775) < 0.0375, 4.0, 1.0)}
    )
    for k, level in enumerate(levels, 1):
        run[f"loss_{k}"], run[f"divergence_{k}"] = level, np.abs(loss - level)
    run["lag_1"], run["lag_2"] = np.arange(100) > 30, np.arange(100) > 70
    found = load("one_seed")(run.astype(float))
    assert found["order"] == 1
    assert_allclose(found["position_1"], -0.01 / (math.log(3) - 0.95), rtol=1e-6)
    assert_allclose(found["position_2"], -0.1, rtol=1e-6)
    assert_allclose(found["end"], 0, atol=1e-6)
    assert found["lag_2_2"] == 0
    assert found["steps_2"] > 8
    assert load("squared_gradients")(run, 2) == [1, 4]


def test_ratio_and_power_of_norms(load):
    """Norms in proportion to T^-2 have the power 2; a ratio of norms is the root of that of squares."""
    noise = np.linspace(-0.1, 0.1, 6)
    assert_allclose(load("ratio", "vanishing")(9 + noise, 4 + noise).value, 1.5, rtol=1e-6)
    squares = [7 * T**-4.0 * (1 + noise) for T in (8, 16, 32)]
    found = load("power", "vanishing")([8, 16, 32], *squares)
    assert_allclose([found.value, found.low, found.high], 2, rtol=1e-6)


def test_squared_gradient_agrees_with_finite_differences(read, code, grams):
    """The probe returns the inner product of the gradients on training and test data."""
    data = [grams("grams")(jax.random.key(s), sequences=5, states=3, length=8) for s in (0, 1)]
    model = code(NAME, "Simplified")(heads=2)
    params = model.init(jax.random.key(2), data[0], dtype=np.float32)
    context = SimpleNamespace(
        params=params,
        model=model,
        data=SimpleNamespace(train=data[0], test=data[1]),
        outputs=lambda x: model.outputs(params, x),
    )
    found = grams("Stages")().measure(context)

    def loss(params, data):
        p = [predict(params, ids, 3) for ids in np.asarray(data.ids)]
        return -(np.asarray(data.targets) * np.log(np.array(p) + 1e-8)).sum(axis=1).mean()

    exact = {name: np.asarray(x, float) for name, x in params.items()}
    total = 0.0
    for name, x in exact.items():
        for place in np.ndindex(x.shape):
            if name == "A" and place[2] > place[1]:
                continue  # masked
            shift = np.zeros_like(x)
            shift[place] = 1e-4
            slopes = [
                (loss(exact | {name: x + shift}, d) - loss(exact | {name: x - shift}, d)) / 2e-4 for d in data
            ]
            total += slopes[0] * slopes[1]
    assert_allclose(found["squared_gradient"], total, rtol=1e-3)
