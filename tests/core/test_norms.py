"""Norms, against arithmetic with many digits."""

import math

import mpmath
import numpy as np
import pytest

from jaxattn.core.arithmetic import dual_norm, lengths, norm

# For q = 2, squares may overflow, but keys of such lengths are rejected.
CASES = [(q, size) for q in (1.0, 1.5, 3.0, math.inf) for size in (1e-200, 1.0, 1e200)]


@pytest.mark.parametrize(("q", "size"), [*CASES, (2.0, 1.0)])
def test_norm_does_not_overflow(rng, q, size):
    x = size * rng.normal(size=5)
    with mpmath.workdps(50):
        entries = [abs(mpmath.mpf(float(v))) for v in x]
        power = mpmath.mpf(q)
        exact = max(entries) if q == math.inf else mpmath.fsum(v**power for v in entries) ** (1 / power)
    np.testing.assert_allclose(norm(x, q), float(exact), rtol=1e-14)


@pytest.mark.parametrize(("q", "dual"), [(1.0, math.inf), (math.inf, 1.0), (2.0, 2.0), (3.0, 1.5)])
def test_dual_norm(q, dual):
    assert dual_norm(q) == dual


def test_lengths_of_rows():
    np.testing.assert_array_equal(lengths(np.array([[3.0, 4.0], [0.0, -2.0]])), [5.0, 2.0])
