"""Mirror descent: convergence to the ℓ_q attention SVM of its own norm."""

import numpy as np
import pytest
from scipy.optimize import minimize

pytestmark = pytest.mark.more

NORMS = ("1.75", "2", "3")


def test_divergence_is_smallest_for_the_svm_in_the_norm_of_the_optimiser(run):
    """The divergence of a run in ℓ_q is smallest for the program in ℓ_q, and decreases strongly."""
    others = ("7/4", "2", "3", "3, all digits")
    at = run("mirror_descent", "seeds=2", *(f"blocks.{name}=null" for name in others))
    for cell, own in enumerate(NORMS[:2]):
        near = at(f"divergence_to_{own}", cell=cell)
        assert (near < at(f"divergence_to_{own}", 0, cell=cell) / 50).all()
        for other in set(NORMS) - {own}:
            assert (near < at(f"divergence_to_{other}", cell=cell)).all()
        assert all((at(f"gap_{q}", cell=cell) < 1e-8).all() for q in NORMS)


def test_step_minimises_its_proximal_problem(code):
    """w⁺ = argmin η g·w / ‖g‖_q* + D_ψ(w, w₀), by a generic solver."""
    mirror = code("mirror_descent", "mirror")
    rng = np.random.default_rng(0)
    w, g, q, eta = rng.normal(size=5), rng.normal(size=5), 1.75, 0.1
    step = mirror(lambda count: eta, q=q)
    moved = w + np.asarray(step.update({"w": g}, step.init({"w": w}), {"w": w})[0]["w"])

    def cost(x):
        bregman = (np.abs(x) ** q - np.abs(w) ** q) / q - np.sign(w) * np.abs(w) ** (q - 1) * (x - w)
        return eta * g @ x / np.linalg.norm(g, q / (q - 1)) + bregman.sum()

    best = minimize(cost, w, options={"gtol": 1e-10}).x
    np.testing.assert_allclose(moved, best, atol=2e-5)
