"""Single-location regression on the population risk: the risk, and its two minima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from jaxattn.core import backend

pytestmark = pytest.mark.more


@pytest.fixture
def risk(code):
    """Compute the risk at vectors k and v of any norm; `dim` determines the mean of X_ℓ."""
    model, params = (code("single_location_starts", name) for name in ("Risk", "Params"))

    def of(k, v, **settings):
        point = params(jnp.asarray(k), jnp.asarray(v), jnp.zeros(()))
        return model(**settings).outputs(point, None)[0]

    return of


def test_risk_matches_mean_squared_error(risk):
    """200,000 sequences of four tokens, sampled by NumPy."""
    rng = np.random.default_rng(0)
    k, v = (x / np.linalg.norm(x) for x in rng.normal(size=(2, 6)))
    X = rng.normal(size=(200_000, 4, 6))
    X[:, 0] = np.sqrt(0.5) * X[:, 0] + np.sqrt(6 / 2) * np.eye(6)[0]
    errors = ((erf(0.5 * X @ k) * (X @ v)).sum(axis=1) - X[:, 0, 1]) ** 2
    with backend.float64():
        ours = float(risk(k, v, dim=6, length=4, sharpness=0.5))
    assert abs(ours - errors.mean()) < 4 * errors.std() / np.sqrt(len(errors))


def test_swapped_alignment_is_a_local_minimum(risk):
    """At k = v*, v·k* = 0.63 no second derivative along the spheres is negative, so it is not a saddle."""
    with backend.float64():

        def of(x):
            k, v = x.reshape(2, 5)
            return risk(k / jnp.linalg.norm(k), v / jnp.linalg.norm(v))

        def step(_, x):
            moved = (x - 4e-3 * jax.grad(of)(x)).reshape(2, 5)
            return (moved / jnp.linalg.norm(moved, axis=1, keepdims=True)).ravel()

        start = jnp.zeros(10).at[1].set(1).at[5].set(0.6).at[7].set(0.8)
        x = jax.jit(lambda x: jax.lax.fori_loop(0, 5000, step, x))(start)
        curvatures = np.linalg.eigvalsh(jax.jit(jax.hessian(of))(x))
        assert jnp.linalg.norm(jax.grad(of)(x)) < 1e-10
    np.testing.assert_allclose(x[5], 0.6298, atol=1e-4)
    # The risk does not depend on the norms of k and v, nor on two directions of v.
    np.testing.assert_allclose(curvatures[:4], 0, atol=1e-10)
    assert curvatures[4] > 0.2


def test_initialisations_converge_to_either_alignment(run):
    """Within 4,000 steps."""
    at = run("single_location_starts", "blocks=null", "seeds=12", "phases.train.steps=4000")
    found = at("nu") > 0.99
    assert 0 < found.sum() < 12
    assert (at("kappa")[found] > 0.8).all()
    assert (at("eta")[~found] > 0.99).all()
    np.testing.assert_allclose(at("theta")[~found], 0.63, atol=0.01)
