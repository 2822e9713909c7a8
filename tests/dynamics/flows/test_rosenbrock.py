from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from jaxattn.dynamics.flows import rosenbrock

pytestmark = pytest.mark.usefixtures("x64")


def solver(jacobian):
    return partial(rosenbrock.by_factors, jacobian)


def spiral(y):
    """In polar coordinates r' = r (1 - r²), θ' = 3."""
    return (1 - y @ y) * y + 3 * jnp.array([-y[1], y[0]])


def spiral_solution(time):
    """From (1/2, 0): r² = 1 / (1 + 3 e^(-2t))."""
    r = 1 / np.sqrt(1 + 3 * np.exp(-2 * time))
    return r * np.array([np.cos(3 * time), np.sin(3 * time)])


def van_der_pol(y):
    """Its fast time scale is 1e-5 / 3 on the branch y[0] ≈ 2."""
    return jnp.array([y[1], 1e5 * ((1 - y[0] ** 2) * y[1] - y[0])])


def integrate(field, y, end, counts):
    """Go from 0 to the end in equal steps, with each of the counts."""

    @jax.jit
    def run(y, h, count):
        def step(_, y):
            return rosenbrock.step(field, y, field(y), solver(jax.jacfwd(field)(y)), h)[0]

        return jax.lax.fori_loop(0, count, step, y)

    return [np.asarray(run(jnp.asarray(y), jnp.asarray(end / count), count)) for count in counts]


@jax.jit
def amplification(z):
    """One step of length 1 for y' = z y from y = 1: R(z) and the error estimate, as pairs of real numbers."""
    A = jnp.array([[z.real, -z.imag], [z.imag, z.real]])
    y = jnp.array([1.0, 0.0])
    return rosenbrock.step(lambda y: A @ y, y, A @ y, solver(A), jnp.ones(()))


def test_halving_the_step_divides_the_error_by_sixteen():
    results = integrate(spiral, [0.5, 0.0], 2.0, (80, 160, 320))
    errors = np.array([np.linalg.norm(y - spiral_solution(2.0)) for y in results])
    assert errors[-1] < 1e-7
    np.testing.assert_allclose(errors[:-1] / errors[1:], 16, rtol=0.1)


def test_one_step_is_off_by_the_fifth_power_of_its_length_and_its_estimate_by_the_fourth():
    y = jnp.array([0.5, 0.0])

    @jax.jit
    def step(h):
        return rosenbrock.step(spiral, y, spiral(y), solver(jax.jacfwd(spiral)(y)), h)

    lengths = np.array([0.04, 0.02, 0.01])
    results = [step(jnp.asarray(h)) for h in lengths]
    errors = [np.linalg.norm(x - spiral_solution(h)) for (x, _), h in zip(results, lengths, strict=True)]
    estimates = [np.linalg.norm(estimate) for _, estimate in results]
    np.testing.assert_allclose(np.diff(np.log2(errors)), -5, atol=0.25)
    np.testing.assert_allclose(np.diff(np.log2(estimates)), -4, atol=0.25)
    # The estimate belongs to the result of order 3, so it is the larger one.
    assert (np.array(estimates) > np.array(errors)).all()


@pytest.mark.parametrize("size", [1e6, 1e12])
def test_what_decays_at_once_is_gone_after_one_step(size):
    """L-stability: R(z) → 0 as z → -∞."""
    moved, error = amplification(-size + 0j)
    assert jnp.linalg.norm(moved) < 10 / size
    assert jnp.linalg.norm(error) < 10 / size


def test_no_step_lets_an_oscillation_or_a_decay_grow():
    """A-stability: |R(z)| ≤ 1 wherever the real part of z is at most 0."""
    z = np.geomspace(1e-2, 1e4, 200)[:, None] * np.exp(1j * np.pi * np.linspace(0.5, 1, 8))
    moved, _ = jax.vmap(amplification)(jnp.asarray(z.ravel()))
    assert jnp.linalg.norm(moved, axis=1).max() <= 1 + 1e-9


def test_a_stiff_problem_is_followed_as_by_an_independent_implicit_method():
    """Van der Pol's oscillator on its slow branch: steps a thousand times longer than its fast time scale."""
    start = [2.0, -0.66]
    field = jax.jit(van_der_pol)
    reference = solve_ivp(lambda _, y: field(y), (0, 0.5), start, method="Radau", rtol=1e-10, atol=1e-12)
    coarse, fine = integrate(van_der_pol, start, 0.5, (50, 100))
    expected = reference.y[:, -1]
    np.testing.assert_allclose(coarse, expected, rtol=1e-5)
    np.testing.assert_allclose(fine, expected, rtol=1e-6)


def test_a_point_at_rest_stays():
    y = jnp.array([1.0, -2.0, 0.5])
    still = solver(jnp.zeros((3, 3)))
    moved, error = rosenbrock.step(jnp.zeros_like, y, jnp.zeros(3), still, jnp.asarray(10.0))
    np.testing.assert_array_equal(moved, y)
    np.testing.assert_array_equal(error, 0)
