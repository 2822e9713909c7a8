"""Plateaus before sparse attention."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from jaxattn.core import backend

pytestmark = pytest.mark.more


def plateau(d, T):
    """Return the time for which the published flow keeps the risk above 80 % of its initial value."""

    def parts(state):
        w, delta = state
        alpha = 1 / (1 + (T - 1) * np.exp(-delta))
        return w, alpha, (np.sqrt(d) - alpha * w) / d, (1 - alpha) / (d * (T - 1))

    def speed(_, state):
        w, alpha, short, spread = parts(state)
        pull = w * short + spread * w**2
        return [alpha * short - (1 - alpha) * spread * w, alpha * (1 - alpha) * pull]

    def above(_, state):
        w, alpha, short, spread = parts(state)
        return d * short**2 + (1 - alpha) * spread * w**2 - 0.8

    above.terminal = True
    return solve_ivp(speed, [0, 1e6], [0.0, 0.0], events=above, rtol=1e-9, atol=1e-12).t[-1]


def test_gradient_descent_on_the_risk_follows_the_published_flow(run):
    """At a published size, with steps of √d T / 1000; the flow omits the factor T/(T - 1)."""
    assert round(plateau(16, 256)) == 1351
    at = run("plateaus", "blocks=null", "figures=null", "seeds=1")
    np.testing.assert_allclose(at("plateau"), plateau(16, 256), rtol=0.01)


def test_training_on_fresh_batches_has_a_similar_plateau(run):
    overrides = ("data.dim=8", "data.length=64", "phases.train.fresh=16", "seeds=2")
    at = run("plateaus", "blocks=null", "figures=null", *overrides)
    np.testing.assert_allclose(at("plateau").mean(), plateau(8, 64), rtol=0.15)


def test_risk_matches_mean_loss(code):
    """The mean is over 20,000 sequences."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 5, 3)) / np.sqrt(3)
    W, a = rng.normal(size=(3, 3)), rng.normal(size=5)
    errors = ((np.exp(a) / np.exp(a).sum()) @ X @ W.T - X[:, -1]) ** 2
    with backend.float64():
        ours = float(code("plateaus", "risk")(code("plateaus", "Params")(jnp.asarray(W), jnp.asarray(a))))
    loss = errors.sum(axis=1) / 2
    assert abs(ours - loss.mean()) < 4 * loss.std() / np.sqrt(len(loss))
