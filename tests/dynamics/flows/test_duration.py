import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxattn.dynamics.flows.duration import log_integral

pytestmark = pytest.mark.usefixtures("x64")


@jax.jit
def compute(curve, before=-jnp.inf, tolerance=1e-3, wanted=True):
    """Integrate exp(x) for x(θ) = log Σ_i exp(a_i + b_i θ + c_i θ²), with a, b and c the rows of `curve`."""

    def x(fraction):
        a, b, c = curve
        return jax.nn.logsumexp(a + b * fraction + c * fraction**2)

    ends = x(jnp.zeros(())), x(jnp.ones(()))
    return log_integral(x, *ends, jnp.asarray(before), tolerance, jnp.asarray(wanted))


def exact(curve):
    """Compute the same integral in closed form, with 50 digits."""

    def term(a, b, c):
        if b == c == 0:
            return mpmath.exp(a)
        if c == 0:
            return mpmath.exp(a) * mpmath.expm1(b) / b
        root, middle = mpmath.sqrt(-c), b / (2 * c)
        ends = mpmath.erf(root * (1 + middle)) - mpmath.erf(root * middle)
        return mpmath.exp(a - b * middle / 2) * mpmath.sqrt(mpmath.pi) / (2 * root) * ends

    with mpmath.workdps(50):
        total = sum(term(*(mpmath.mpf(float(x)) for x in column)) for column in np.transpose(curve))
        return float(mpmath.log(mpmath.re(total)))


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param([[0.3], [0.0], [0.0]], id="constant"),
        pytest.param([[-2000.0], [7000.0], [0.0]], id="linear, e^5000"),
        pytest.param([[0.0], [-3.0], [0.0]], id="decreasing"),
        pytest.param([[0.0], [2.0], [-4.0]], id="bell"),
        pytest.param([[0.0], [-1.0], [30.0]], id="convex"),
        pytest.param([[0.0, -20.0], [10.0, 40.0], [0.0, 0.0]], id="two rates"),
        pytest.param([[0.0, -5000.0], [1e3, 6010.0], [0.0, 0.0]], id="two rates that cross at the end"),
        pytest.param([[300.0, 0.0], [-900.0, 1.0], [0.0, 0.0]], id="fast decrease, then slow increase"),
    ],
)
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_integral_matches_its_closed_form(curve, tolerance):
    found = compute(jnp.asarray(curve), tolerance=tolerance)
    np.testing.assert_allclose(found, exact(curve), rtol=1e-14, atol=tolerance)


def test_tolerance_is_relative_to_the_integral_before():
    """A part that is negligible needs no accuracy: one evaluation suffices for the curve below."""
    curve = jnp.asarray([[0.0], [2.0], [-400.0]])
    alone, after = compute(curve), compute(curve, before=50.0)
    assert abs(alone - exact(curve)) < 1e-3
    assert abs(after - exact(curve)) > 0.1


def between(x, start, end, tolerance=1e-3):
    """Integrate exp(x) for any function x with known values at the ends, without an integral before."""
    start, end, before = map(jnp.asarray, (start, end, -jnp.inf))
    return log_integral(x, start, end, before, tolerance, jnp.asarray(True))


def test_zero_gradient_and_missing_values_give_no_nan():
    """x = 1e300 stands for an infinite time; where x is not finite within the step, it is interpolated."""
    assert between(lambda x: 1e300 * x, 0.0, 1e300) > 1e299
    for value in (jnp.nan, jnp.inf):
        np.testing.assert_allclose(
            between(lambda x, value=value: x + value, 0.0, 1.0), np.log(np.e - 1), rtol=1e-12
        )
    assert compute(jnp.zeros((3, 1)), wanted=False) == -jnp.inf


def test_noise_does_not_lead_to_endless_halving():
    assert -10 <= between(lambda x: 10 * jnp.sin(1e9 * x), 0.0, 0.0, tolerance=1e-12) <= 10
