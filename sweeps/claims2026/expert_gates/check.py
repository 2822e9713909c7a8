"""Sum of the gates' weights: an exact derivative for one input, and its drift along gradient flows."""

from fractions import Fraction

import numpy as np

from jaxattn.lab.books import Finding, around, at_most, cells, mean

SOFTMAX = "Σ_i W_i of the softmax gate is conserved (Theorem 4.5)"
SIGMOID = "Σ_i W_i of the normalised sigmoid gate is conserved (Theorem 4.7)"
TOLERANCE = 1e-7


def derivative(scores, slopes):
    """Return d/dt Σ_i w_i for one input x = 1, experts with outputs 0 and 1, target 0 and the loss ½f².

    Args:
        scores: s_i > 0 of both experts; the gates are s_i / Σ s.
        slopes: ds_i/dw_i.
    """
    total = sum(scores)
    gates = [s / total for s in scores]
    outputs = (0, 1)
    f = sum(g * o for g, o in zip(gates, outputs, strict=True))
    moves = [-f * slope * (o - f) / total for slope, o in zip(slopes, outputs, strict=True)]
    return sum(moves)


def exact(scores):
    """Return the exact derivatives for sigmoids with these values, and for a softmax with these weights."""
    scores = [Fraction(s) for s in scores]
    return derivative(scores, [s * (1 - s) for s in scores]), derivative(scores, scores)


def change(cell, metric):
    """Return the largest change of the entries of a metric along the flow, (S,)."""
    names = [x for x in cell.records["metric"].unique() if x.rpartition("_")[0] == metric]
    paths = np.stack([cell.path(x) for x in names])
    return np.abs(paths - paths[:, :, :1]).max(axis=(0, 2))


def check(results):
    """Return exact derivatives, and drifts relative to the change of the first gate."""
    for scores in (("1/2", "3/4"), ("1/2", "1/3")):
        name = " and ".join(scores)
        for gate, value in zip(("sigmoid", "softmax"), exact(scores), strict=True):
            claim = SIGMOID if gate == "sigmoid" else SOFTMAX
            text = f"{gate} gate, scores {name}: exact derivative of Σ_i W_i, {value}"
            number = float(value)
            yield Finding(
                f"exact.{gate}.{'-'.join(scores).replace('/', '_')}",
                text,
                number,
                (number, number),
                expected=around(0, 0),
                published="0",
                unit="exact",
                claim=claim,
            )
    for cell in cells(results["study"]):
        gate = cell["model.gate"]
        text = f"{gate} gate: drift of Σ_i W_i / change of W_1"
        claim = SIGMOID if gate == "sigmoid" else SOFTMAX
        samples = change(cell, "sum") / change(cell, "first")
        yield mean(f"{gate}.drift", text, samples, expected=at_most(TOLERANCE), published="0", claim=claim)
