"""Conserved matrices of attention: exact derivatives, and the drift along gradient flows."""

import random
from fractions import Fraction

import numpy as np

from jaxattn.lab.books import at_least, at_most, cells, mean

INSTANCES, DIM, RANK = 30, 3, 4
# Rational rotations of the two blocks, for two distances.
TURNS = [[(3, 4, 5), (5, 12, 13)], [(4, -3, 5), (12, 5, 13)]]
TOLERANCE = 1e-7


def times(a, b):
    """Return the product of two rational matrices."""
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a
    ]


def transposed(a):
    """Return the transpose of a matrix."""
    return [list(column) for column in zip(*a, strict=True)]


def rotation(turns):
    """Return the block rotation with cos = a/c and sin = b/c for each (a, b, c)."""
    found = [[Fraction(0)] * RANK for _ in range(RANK)]
    for k, (a, b, c) in enumerate(turns):
        cos, sin = Fraction(a, c), Fraction(b, c)
        found[2 * k][2 * k : 2 * k + 2] = [cos, -sin]
        found[2 * k + 1][2 * k : 2 * k + 2] = [sin, cos]
    return found


def derivative(Q, K, slopes, rotations):
    """Return the time derivative of QᵀQ - KᵀK for given derivatives of the loss with respect to Q R_p Kᵀ."""
    Q_dot, K_dot = ([[Fraction(0)] * RANK for _ in range(DIM)] for _ in range(2))
    for G, R in zip(slopes, rotations, strict=True):
        Q_step, K_step = times(times(G, K), transposed(R)), times(times(transposed(G), Q), R)
        Q_dot = [[x - y for x, y in zip(*rows, strict=True)] for rows in zip(Q_dot, Q_step, strict=True)]
        K_dot = [[x - y for x, y in zip(*rows, strict=True)] for rows in zip(K_dot, K_step, strict=True)]
    of_Q, of_K = times(transposed(Q), Q_dot), times(transposed(K), K_dot)
    return [[of_Q[a][b] + of_Q[b][a] - of_K[a][b] - of_K[b][a] for b in range(RANK)] for a in range(RANK)]


def exact(rotations, number, blocks):
    """Return the largest derivative of an entry, or of a block's trace, for each random integer instance."""
    rng, largest = random.Random(number), []

    def matrix(columns):
        return [[Fraction(rng.randint(-9, 9)) for _ in range(columns)] for _ in range(DIM)]

    for _ in range(INSTANCES):
        found = derivative(matrix(RANK), matrix(RANK), [matrix(DIM) for _ in rotations], rotations)
        if blocks:
            traces = [found[k][k] + found[k + 1][k + 1] for k in range(0, RANK, 2)]
            largest.append(float(max(map(abs, traces))))
        else:
            largest.append(float(max(abs(x) for row in found for x in row)))
    return largest


def drift(cell, metric):
    """Return the largest change of an entry of a metric along the flow, relative to the control's, (S,)."""
    records = cell.records

    def change(name):
        names = [x for x in records["metric"].unique() if x.rpartition("_")[0] == name]
        paths = np.stack([cell.path(x) for x in names])
        return np.abs(paths - paths[:, :, :1]).max(axis=(0, 2))

    return change(metric) / change("control")


def check(results):
    """Return exact derivatives, and drifts relative to those of the control."""
    still = [[[Fraction(int(a == b)) for b in range(RANK)] for a in range(RANK)]]
    turned = [rotation(turns) for turns in TURNS]
    zero = {"expected": at_most(0), "published": "0", "unit": "instance"}
    moves = {"expected": at_least(1), "basis": "beyond", "unit": "instance"}
    yield mean("exact.plain", "exact derivative of QᵀQ - KᵀK, largest entry", exact(still, 0, False), **zero)
    text = "rotary positions: exact derivative of the traces of the blocks of QᵀQ - KᵀK"
    yield mean("exact.rotary", text, exact(turned, 1, True), **zero)
    text = "control, rotary positions: exact derivative of QᵀQ - KᵀK, largest entry"
    yield mean("exact.control", text, exact(turned, 1, False), **moves)
    for cell in cells(results["study"]):
        laws = (
            ("value_output", "blocks") if cell.name == "rotary" else ("value_output", "blocks", "query_key")
        )
        for metric in laws:
            text = f"{cell.name}: drift of {metric.replace('_', ' ')} / change of QᵀQ + KᵀK"
            about = {"expected": at_most(TOLERANCE), "published": "0"}
            yield mean(f"{cell.id}.{metric}", text, drift(cell, metric), **about)
        if cell.name == "rotary":
            text = f"control, {cell.name}: drift of single entries of QᵀQ - KᵀK / change of QᵀQ + KᵀK"
            samples = drift(cell, "query_key")
            yield mean(f"{cell.id}.control", text, samples, expected=at_least(0.01), basis="beyond")
