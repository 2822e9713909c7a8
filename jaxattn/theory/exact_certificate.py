"""Integer certificates for max-margin directions, verified by the dependency-free `check_certificate.py`."""

import hashlib
import json
import math
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxattn.attention.scores import Scores
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError, writing
from jaxattn.theory.constraints import distinct_tokens
from jaxattn.theory.infeasible import exact_multipliers
from jaxattn.theory.selection import Selection, require_finite
from jaxattn.theory.solution import MaxMargin

# Largest number of digits of a multiplier. The checker, like Python, converts at most 4,300 digits.
_DIGITS = 4000


class ExactCertificate(NamedTuple):
    """Exact certificate, to be verified by `check_certificate.check`.

    Attributes:
        claim: contents of the JSON file: the SHA-256 of the data, the multipliers and, unless the
            selection is infeasible, p, scale and gap.
        data: the keys, the sequences and the selection, as bytes.
        gap: proven relative gap in ‖p‖²; NaN for an infeasible selection.
    """

    claim: dict[str, Any]
    data: bytes
    gap: float

    def __repr__(self) -> str:
        """Return the proven gap, without the digits of the claim."""
        return f"ExactCertificate(gap <= {self.gap:.3g}, data {self.claim['sha256'][:12]})"


@checked
def certify_exactly(scores: Scores, selection: Selection, solution: MaxMargin) -> ExactCertificate:
    """Certify, in exact arithmetic, a max-margin direction or the absence of any separating direction.

    The certificate proves, for the vector p = `solution.p` / scale, that

        p·(Φ_s - Φ_t) ≥ 1  for every X, its selected token s and its other tokens t,
        ‖q‖² ≥ (1 - gap) ‖p‖²  for every q that satisfies these constraints;

    or, if no q satisfies them, that Σ λ (Φ_s - Φ_t) = 0 for some λ ≥ 0, not all zero. The arrays of
    `solution` are not rounded, so the proven gap is its gap in exact arithmetic. The certificate does not
    prove that a path of gradient flow converges to this direction: compare it with the direction of
    `certify_limit`, which differs if forces cancel or tokens tie.

    For an infeasible selection, the multipliers are computed in rational arithmetic. Their number of digits
    is proportional to the number k of pairs, and increases with the range of exponents of the keys. The time
    grows like k⁵. For k = 60 (90), it is 2 s (14 s) and there are 1,063 (1,632) digits if all entries of the
    keys have the same scale, and 5 s (27 s) and 2,057 (3,138) digits if they range over 20 decades.

    Args:
        scores: the keys Φ (m, D) and bags of the problem.
        selection: the selection, with one distinct token per sequence.
        solution: the solution, as returned by `max_margin(scores, selection)`. The required margins are 1, so
            for `Limit.direction` with other required margins, the gap refers to a different problem.

    Raises:
        InputError: `solution` is a batch, has no pairs, or is undecided; an array contains NaN or inf; the
            selection has ties; p does not separate the selected tokens exactly; no exact multipliers are
            found for an infeasible selection, for example because it has more than 128 pairs; or the exact
            multipliers have more than 4,000 digits.

    Source:
        Weak duality and Gordan's theorem.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(np.eye(3), corpus)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> mm = ja.theory.max_margin(scores, chosen)
        >>> ja.theory.certify_exactly(scores, chosen, mm).gap <= 1e-10
        True
    """
    if np.ndim(solution.margin) != 0 or len(solution.pairs) == 0 or np.isnan(solution.decided):
        raise InputError(
            f"solution: is a batch, has no pairs or is undecided ({solution.reason}); "
            "pass a decided result of max_margin "
            "for one problem"
        )
    require_finite(keys=scores.keys, multipliers=solution.multipliers)
    if len(solution.ties):
        raise InputError("selection: distinct tokens in a sequence are tied; select one token per sequence")
    keys = np.ascontiguousarray(scores.keys, np.float64)
    sequences = _sequences(scores, selection)
    entries = [x for s, others in sequences for x in (1 + len(others), s, *(-1 - t for t in others))]
    header = b"MAXMARG1" + np.array([*keys.shape, len(sequences)], "<i8").tobytes()
    data = header + keys.astype("<f8").tobytes() + np.array(entries, "<i4").tobytes()
    claim = {"sha256": hashlib.sha256(data).hexdigest()}
    if solution.infeasible:
        return ExactCertificate(claim | {"multipliers": _exact_pairs(keys, solution)}, data, math.nan)
    require_finite(p=solution.p)
    p, weights = _integers(np.asarray(solution.p)), _integers(np.asarray(solution.multipliers))
    pairs = [(int(s), int(t), x) for (s, t), x in zip(solution.pairs, weights, strict=True) if x]
    exact, w, unit = _scores_and_sum(keys, p, pairs)
    scale = min(exact[s] - exact[t] for s, others in sequences for t in others)
    if scale <= 0:
        raise InputError(
            "solution: p fails to separate the selected tokens in exact arithmetic; "
            "lower the tolerance of max_margin"
        )
    total = sum(x for *_, x in pairs)
    gap = 1 - Fraction(total**2 * scale**2, sum(x * x for x in w) * sum(x * x for x in p))
    proof = {"gap": str(_rounded_up(gap)), "scale": str(scale * unit), "p": p, "multipliers": pairs}
    return ExactCertificate(claim | proof, data, float(gap))


def write_certificate(
    path: str | Path, scores: Scores, selection: Selection, solution: MaxMargin
) -> ExactCertificate:
    """Write the certificate from `certify_exactly` to a JSON file, and its data to a `.bin` file next to it.

    `python -m jaxattn.theory.check_certificate PATH` verifies both files using only Python's standard
    library. The gap in the returned certificate is computed exactly and then rounded, whereas
    `solution.duality_gap` is computed in floating point.

    Args:
        path: the JSON file.
        scores: see `certify_exactly`.
        selection: see `certify_exactly`.
        solution: see `certify_exactly`.

    Raises:
        InputError: see `certify_exactly`.
        RunError: a file cannot be written.

    Example:
        >>> import os, tempfile
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(np.eye(3), corpus)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> mm = ja.theory.max_margin(scores, chosen)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = ja.theory.write_certificate(f"{folder}/proof.json", scores, chosen, mm)
        ...     sorted(os.listdir(folder))
        ['proof.bin', 'proof.json']
    """
    found = certify_exactly(scores, selection, solution)
    save_certificate(path, found)
    return found


def save_certificate(path: str | Path, certificate: ExactCertificate) -> None:
    """Write the claim of a certificate to a JSON file, and its data to a `.bin` file next to it."""
    path = Path(path)
    with writing(path):
        path.with_suffix(".bin").write_bytes(certificate.data)
        claim = {"data": path.with_suffix(".bin").name} | certificate.claim
        path.write_text(json.dumps(claim), encoding="utf-8")


def _exact_pairs(keys: np.ndarray, solution: MaxMargin) -> list[tuple[int, int, int]]:
    found = exact_multipliers(keys, np.asarray(solution.pairs), np.asarray(solution.multipliers))
    if found is None:
        raise InputError(
            "solution: infeasible in floating point, but no exact multipliers were found; lower the "
            "tolerance of max_margin"
        )
    scale = math.lcm(*(x.denominator for x in found))
    integers = [int(x * scale) for x in found]
    shared = math.gcd(*integers)
    integers = [x // shared for x in integers]
    digits = int(max(integers).bit_length() * math.log10(2)) + 1
    if digits > _DIGITS:
        raise InputError(
            f"solution: its exact multipliers have {digits:,} digits, more than {_DIGITS:,}; use keys whose "
            "lengths differ less, or fewer pairs"
        )
    return [(int(s), int(t), x) for (s, t), x in zip(solution.pairs, integers, strict=True) if x > 0]


def _sequences(scores: Scores, selection: Selection) -> list[tuple[int, list[int]]]:
    present, owner, token = distinct_tokens(scores.corpus)
    chosen = np.asarray(selection.mask)[present]
    selected = dict(zip(owner[chosen].tolist(), token[chosen].tolist(), strict=True))
    others: list[list[int]] = [[] for _ in range(scores.corpus.num_examples)]
    for number, t in zip(owner[~chosen].tolist(), token[~chosen].tolist(), strict=True):
        others[number].append(t)
    return [(selected[number], each) for number, each in enumerate(others)]


def _integers(x: np.ndarray) -> list[int]:
    """Scale numbers by the smallest power of two that makes all of them integers."""
    ratios = [value.as_integer_ratio() for value in x.tolist()]
    scale = max(denominator for _, denominator in ratios)
    integers = [numerator * (scale // denominator) for numerator, denominator in ratios]
    shared = math.gcd(*integers)
    return [value // max(shared & -shared, 1) for value in integers]


def _scores_and_sum(
    keys: np.ndarray, p: list[int], pairs: list[tuple[int, int, int]]
) -> tuple[list[int], list[int], Fraction]:
    """Compute Φ p and Σ λ (Φ_s - Φ_t) exactly, where Φ are the keys and `pairs` contains (s, t, λ).

    Return both as lists of integers, followed by the unit of which they are multiples.
    """
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
