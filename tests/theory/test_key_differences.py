"""Groups of equal key differences, compared with exact arithmetic on keys that nearly coincide."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from jaxattn.theory.key_differences import key_groups


def across(x, t):
    """Return the squared lengths of x and of its part orthogonal to t, in exact arithmetic."""
    square = sum(a * a for a in x)
    along = sum(a * b for a, b in zip(x, t, strict=True))
    return square, square - along * along / sum(a * a for a in t) if any(t) else square


def is_equal(x, y, t):
    """Differences are equal modulo t if the part of x - y orthogonal to t is below 1e-11 of it."""
    square, rest = across([a - b for a, b in zip(x, y, strict=True)], t)
    return rest <= Fraction(1, 10**22) * square if any(t) else square == 0


@pytest.mark.parametrize("tied", [False, True])
def test_groups_match_exact_arithmetic(rng, tied):
    compared = 0
    for _ in range(60):
        keys = rng.integers(-2, 3, (5, 3)).astype(float)
        # Two tokens nearly have the key of token 0; the differences are exact in float64.
        keys[1:3] = keys[0] + 2.0**-44 * rng.integers(-2, 3, (2, 3))
        t = rng.integers(-2, 3, 3) if tied else np.zeros(3, int)
        normals = t[None] / np.linalg.norm(t) if t.any() else np.zeros((0, 3))
        token, top = np.array(list(product(range(3), range(3, 5)))).T
        exact = [[Fraction(x) for x in row] for row in keys]
        rows = [
            [a - b for a, b in zip(exact[k], exact[s], strict=True)] for s, k in zip(token, top, strict=True)
        ]
        # The first row is that of tied tokens.
        every = [[Fraction(0)] * 3, *rows]
        same = np.array([[is_equal(x, y, t.tolist()) for y in every] for x in every])
        if (same @ same != same).any():
            continue  # equality up to a tolerance is not transitive here
        same = same[1:, 1:]
        compared += 1
        group, several = key_groups(keys, token, top, normals)
        np.testing.assert_array_equal(group[:, None] == group, same)
        distinct = [len({tuple(rows[j]) for j in np.flatnonzero(own)}) > 1 for own in same]
        np.testing.assert_array_equal(several, distinct)
    assert compared > 20
