"""Proposition 3.1 of arXiv 2512.11784v1: the boundary case L = 1, and the exponent of L beyond it."""

import math
from fractions import Fraction

import numpy as np

from jaxattn.lab.books import Finding, around, at_most, cells, mean, powers


def boundary():
    """Return both sides at L = 1, d = 1, u = 0, V = 1 and σ = 1: E x² = 1, and the factor ln 1."""
    second_moment = Fraction(1)  # of N(0, 1), which the softmax of one token returns
    return second_moment, Fraction(int(math.log(1)))


def check(results):
    """Return the difference of both sides at L = 1, and the exponent of L for each strength u."""
    left, right = boundary()
    gap = float(left - right)
    text = "L = 1, u = 0: left side minus right side, for all constants"
    about = {"published": "≤ 0", "source": "Proposition 3.1", "unit": "exact"}
    yield Finding("boundary", text, gap, (gap, gap), expected=at_most(0), **about)
    every = cells(results["study"])
    found = {(cell["model.strength"], cell["data.length"]): cell.last("error") for cell in every}
    text = "L = 1, u = 0: measured left side"
    yield mean("first", text, found[0.0, 1], expected=around(1, 0.05), basis="beyond")
    for strength in sorted({u for u, _ in found}):
        lengths = sorted(L for u, L in found if u == strength and L > 1)
        errors = np.stack([found[strength, L] for L in lengths], axis=1)
        expected = {"expected": around(-1, 0.05)} if strength == 0 else {}
        text = f"u = {strength:g}, L = {lengths[0]} to {lengths[-1]}: exponent of L in the error"
        samples = powers(np.array(lengths, float), errors)
        yield mean(f"exponent.{strength:g}", text, samples, basis="beyond", **expected)
