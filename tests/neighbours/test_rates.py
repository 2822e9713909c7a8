"""Convergence rates to the max-margin direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import backend

pytestmark = pytest.mark.more


def test_steepest_direction_matches_gradient(read, code):
    """Compared with the derivative of the logistic loss, and the loss itself, at a random W."""
    data = read("rates").dataset(0).train
    with backend.float64():
        W = jnp.asarray(np.random.default_rng(0).normal(size=(20, 20)))
        data = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), data)

        def loss(W):
            q = jax.nn.softmax(jnp.einsum("ntd,de,ne->nt", data.X, W, data.z), axis=1)
            return jnp.log1p(jnp.exp(-data.targets * (q * data.X[:, :, 0]).sum(axis=1))).mean()

        u, log_norm, log_excess = code("rates", "steepest")(code("rates", "Params")(W), data)
        slope = jax.grad(loss)(W)
        np.testing.assert_allclose(jnp.exp(log_norm) * u, -slope, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(jnp.exp(log_excess), loss(W) - np.log1p(np.exp(-1)), rtol=1e-9)


@pytest.mark.parametrize(("rule", "least", "most"), [("normalised", 5, 20), ("gradient", 1, 1.6)])
def test_normalised_steps_converge_faster_than_gradient_steps(run, rule, least, most):
    """Normalised steps come about ten times closer to the certified direction, gradient steps hardly."""
    overrides = (f"phases.train.rule={rule}", "phases.train.steps=1000", "probes.steps=[100, 1000]")
    at = run("rates", "blocks=null", "seeds=3", *overrides)
    assert (at("duality_gap") < 1e-9).all()
    ratio = np.sqrt(at("one_minus_cosine", 100) / at("one_minus_cosine"))
    assert ((ratio > least) & (ratio < most)).all()


def test_rescaled_norms_match_the_formula(read, tmp_path):
    """From step 100 on ‖W‖ = 80 · 1.2^k, because steps of length 1 reach the boundary of the ball."""
    overrides = ("phases.train.rule=rescaled", "phases.train.hold=20", "phases.train.steps=200", "seeds=2")
    results = read("rates", "blocks=null", *overrides).run(tmp_path / "rates", quiet=True)
    for seed in range(2):
        np.testing.assert_allclose(np.linalg.norm(results.params(seed=seed).W), 80 * 1.2**4, rtol=1e-12)
