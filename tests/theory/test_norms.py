"""Norms, against arithmetic with many digits."""

import math

import mpmath
import numpy as np
import pytest

from jaxattn.theory.norms import dual_norm, lengths, norm


@pytest.mark.parametrize("q", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_norm_does_not_overflow(rng, q, size):
    if q == 2 and size != 1:
        pytest.skip("squares overflow; keys of such lengths are rejected")
    x = size * rng.normal(size=5)
    with mpmath.workdps(50):
        exact = mpmath.norm([mpmath.mpf(float(v)) for v in x], mpmath.inf if q == math.inf else q)
    np.testing.assert_allclose(norm(x, q), float(exact), rtol=1e-14)


@pytest.mark.parametrize(("q", "dual"), [(1, math.inf), (math.inf, 1), (2, 2), (3, 1.5)])
def test_dual_norm(q, dual):
    assert dual_norm(q) == dual


def test_lengths_of_rows():
    np.testing.assert_array_equal(lengths(np.array([[3.0, 4.0], [0.0, -2.0]])), [5.0, 2.0])
