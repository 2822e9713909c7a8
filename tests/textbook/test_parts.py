"""The parts of the textbook: gradients against finite differences, and statistics of small examples."""

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from textbook import forward, losses, metrics, steps

LOSSES = ["classification", "logistic", "cross_entropy", "exponential", "squared", "hinge"]
X = [0, 2, 2, 1]


@pytest.fixture
def params(rng):
    def make(kind, outputs):
        d, heads = 3, (2,) if kind == "multi_head" else ()
        found = {"E": rng.normal(size=(4, d)), "p": rng.normal(size=(*heads, d))}
        found["v"] = rng.normal(size=(*heads, d, outputs))
        square = {"key_query": ["W"], "mlp": ["W"], "two_layer_weights": ["W1", "W2"]}.get(kind, [])
        found |= {name: rng.normal(size=(d, d)) for name in square}
        return found | ({"b": rng.normal(size=d)} if kind == "mlp" else {})

    return make


def slopes(of, x, size=1e-5):
    """Return central differences of a function of an array."""
    found = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = size
        found[index] = (of(x + step) - of(x - step)) / (2 * size)
    return found


@pytest.mark.parametrize("kind", forward.MODELS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_match_finite_differences(params, rng, kind, outputs):
    now, weights = params(kind, outputs), rng.normal(size=outputs)
    options = {"residual": True} if kind == "two_layer" else {}
    _, backward = forward.MODELS[kind](now, X, **options)
    gradients = backward(weights)
    for name, x in now.items():

        def of(x, name=name):
            return forward.MODELS[kind](now | {name: x}, X, **options)[0] @ weights

        np.testing.assert_allclose(gradients[name], slopes(of, x), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_derivatives_of_losses_match_finite_differences(rng, name, smoothing):
    for f, label in ((rng.normal(size=1), -1), (rng.normal(size=3), 2)):
        if (name == "logistic" and len(f) > 1) or (name == "cross_entropy" and len(f) == 1):
            continue
        _, derivative = losses.loss(name, f, label, smoothing)
        of = slopes(lambda f, y=label: losses.loss(name, f, y, smoothing)[0], f)
        np.testing.assert_allclose(derivative, of, rtol=1e-6, atol=1e-9)


def test_adam_and_momentum_match_sums_over_all_gradients(rng):
    every, memory, other = rng.normal(size=(5, 3)), {}, {}
    for k, g in enumerate(every):
        adam = steps.adam_direction(memory, {"p": g}, k, b1=0.8, b2=0.7)["p"]
        heavy = steps.with_momentum(other, {"p": g}, momentum=0.5)["p"]
    m, v = (
        (1 - b) * (b ** np.arange(4, -1, -1)) @ x / (1 - b**5) for b, x in ((0.8, every), (0.7, every**2))
    )
    np.testing.assert_allclose(adam, m / (np.sqrt(v) + 1e-8), rtol=1e-12)
    np.testing.assert_allclose(heavy, 0.5 ** np.arange(4, -1, -1) @ every, rtol=1e-12)


def test_ranks_of_ties_are_averages():
    assert metrics.ranks([Fraction(1, 3), 2, Fraction(2, 6), 0]) == [Fraction(5, 2), 4, Fraction(5, 2), 1]
    assert metrics.bin_means([1.0, 2.0, 4.0], [Fraction(3, 10), 1, -1], 10, 0.0, 1.0)[3] == 1.0


def test_textbook_does_not_import_the_package():
    """`package` uses the public methods of a study and its results, and hands over arrays and records."""
    for path in sorted(Path(__file__).parent.glob("[!t_]*.py")):
        imported = [
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in [getattr(node, "module", None), *(x.name for x in node.names)]
        ]
        uses = any(name and name.split(".")[0] in ("jax", "jaxattn", "optax") for name in imported)
        assert not uses, path.name
