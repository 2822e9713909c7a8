"""Certificates of max-margin directions in integers, for `check_certificate.py`, which imports no library."""

import hashlib
import json
import math
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction
from operator import mul
from pathlib import Path

import numpy as np

from jaxattn.attention.scores import Scores
from jaxattn.core.errors import InputError, writing
from jaxattn.theory.certificate import MaxMargin
from jaxattn.theory.constraints import distinct_tokens
from jaxattn.theory.selection import Selection

# Bits that the largest entry of p and the largest multiplier have as integers.
_BITS = 80


def write_certificate(path: str | Path, scores: Scores, selection: Selection, answer: MaxMargin) -> float:
    """Write a certificate that can be checked in exact arithmetic, and return the gap that it proves.

        p·(Φ_s - Φ_t) ≥ 1  for all X, selected s and other tokens t of X,
        ‖q‖² ≥ (1 - gap) ‖p‖²  for every q that meets these constraints.

    The JSON file has p, multipliers and the gap as integers and fractions; a binary file next to it has the
    keys, the sequences and the selection. `python jaxattn/theory/check_certificate.py PATH` checks them with
    Python's standard library alone.

    Args:
        path: the JSON file; the binary file has the same name with the suffix `.bin`.
        scores: the keys Φ (m, D) and bags of the problem.
        selection: the selection that was separated, one distinct token per sequence.
        answer: its max-margin direction, `max_margin(scores, selection)`.

    Returns:
        The proven relative gap. `answer.duality_gap` is the same quantity in floating point.

    Raises:
        InputError: `answer` is a batch or has no direction, the selection has ties, or p does not separate
            the selection in exact arithmetic.
        RunError: a file cannot be written.

    Source:
        Weak duality; the format and its checker are this library's.
    """
    if np.ndim(answer.margin) != 0 or not answer.feasible or len(answer.pairs) == 0:
        raise InputError(f"answer: no single direction to certify ({answer.reason})")
    if len(answer.ties):
        raise InputError(
            "selection: several distinct tokens of a sequence tie; there is no exact certificate"
        )
    keys = np.ascontiguousarray(scores.keys, np.float64)
    sequences = _sequences(scores, selection)
    p, weights = _integers(np.asarray(answer.p)), _integers(np.asarray(answer.multipliers))
    pairs = [(int(s), int(t), x) for (s, t), x in zip(answer.pairs, weights, strict=True) if x]
    exact, w, unit = _scores_and_sum(keys, p, pairs)
    scale = min(exact[s] - exact[t] for s, others in sequences for t in others)
    if scale <= 0:
        raise InputError("answer: p does not separate the selection in exact arithmetic")
    total = sum(x for *_, x in pairs)
    gap = 1 - Fraction(total**2 * scale**2, sum(x * x for x in w) * sum(x * x for x in p))
    entries = [x for s, others in sequences for x in (1 + len(others), s, *(-1 - t for t in others))]
    header = b"MAXMARG1" + np.array([*keys.shape, len(sequences)], "<i8").tobytes()
    data = header + keys.astype("<f8").tobytes() + np.array(entries, "<i4").tobytes()
    path = Path(path)
    claim = {
        "data": path.with_suffix(".bin").name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "gap": str(_rounded_up(gap)),
        "scale": str(scale * unit),
        "p": p,
        "multipliers": pairs,
    }
    with writing(path):
        path.with_suffix(".bin").write_bytes(data)
        path.write_text(json.dumps(claim), encoding="utf-8")
    return float(gap)


def _sequences(scores: Scores, selection: Selection) -> list[tuple[int, list[int]]]:
    """List the selected token of every sequence, and its other distinct tokens."""
    present, owner, token = distinct_tokens(scores.corpus)
    chosen = np.asarray(selection.mask)[present]
    selected = dict(zip(owner[chosen].tolist(), token[chosen].tolist(), strict=True))
    others: list[list[int]] = [[] for _ in range(scores.corpus.num_examples)]
    for number, t in zip(owner[~chosen].tolist(), token[~chosen].tolist(), strict=True):
        others[number].append(t)
    return [(selected[number], each) for number, each in enumerate(others)]


def _integers(x: np.ndarray) -> list[int]:
    """Round numbers to integer multiples of a common power of two, with _BITS bits for the largest one."""
    shift = _BITS - math.frexp(float(np.abs(x).max()))[1]
    return [round(Fraction(value) * Fraction(2) ** shift) for value in x.tolist()]


def _scores_and_sum(
    keys: np.ndarray, p: list[int], pairs: list[tuple[int, int, int]]
) -> tuple[list[int], list[int], Fraction]:
    """Compute K p and Σ λ (K_s - K_t) exactly, in multiples of a power of two, which is returned too."""
    net = dict.fromkeys(range(len(keys)), 0)
    for s, t, weight in pairs:
        net[s], net[t] = net[s] + weight, net[t] - weight
    mantissa, exponent = np.frexp(keys)
    smallest = int(exponent[keys != 0].min())
    shift = np.where(keys != 0, exponent - smallest, 0)
    exact, w = [], [0] * keys.shape[1]
    for token, row in enumerate((mantissa * 2.0**53).astype(np.int64)):
        integers = [x << by for x, by in zip(row.tolist(), shift[token].tolist(), strict=True)]
        exact.append(sum(map(mul, integers, p)))
        if net[token]:
            w = [x + net[token] * y for x, y in zip(w, integers, strict=True)]
    return exact, w, Fraction(2) ** (smallest - 53)


def _rounded_up(gap: Fraction) -> Decimal:
    return Context(prec=4, rounding=ROUND_UP).divide(Decimal(gap.numerator), Decimal(gap.denominator))
