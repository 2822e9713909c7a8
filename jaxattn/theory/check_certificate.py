"""Check a certificate of a max-margin direction in exact arithmetic, with the standard library alone.

    python check_certificate.py CERTIFICATE.json

The data are keys K_s (rows of float64 numbers, one per token) and sequences X of tokens, of which some are
selected. A vector q separates the selection if, for every X, every selected s and every other token t of X,

    q·(K_s - K_t) ≥ 1.

"Accepted" means that two statements hold exactly, for p = P / scale:

1. p separates the selection.
2. No vector that separates it is shorter than √(1 - gap) ‖p‖. For λ ≥ 0 and w = Σ λ (K_s - K_t) over some of
   these pairs, such a q has Σ λ ≤ q·w ≤ ‖q‖ ‖w‖, and the file has λ with 1 - (Σ λ)² / (‖w‖² ‖p‖²) ≤ gap.
"""

import hashlib
import json
import sys
from array import array
from fractions import Fraction
from operator import mul
from pathlib import Path


def sequences(entries: array) -> list[tuple[list[int], list[int]]]:
    """List the selected and the other tokens: an entry is a length, then s if selected, -1 - t if not."""
    found, place = [], 0
    while place < len(entries):
        held = entries[place + 1 : place + 1 + entries[place]]
        found.append(([x for x in held if x >= 0], [-1 - x for x in held if x < 0]))
        place += 1 + len(held)
    return found


def check(path: str | Path) -> str:
    """Return why a certificate is refused, or "" if it is accepted."""
    claim = json.loads(Path(path).read_text(encoding="utf-8"))
    data = Path(path).with_name(claim["data"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != claim["sha256"]:
        return "the data are not those that the certificate was written for"
    tokens, dim, p, scale = claim["tokens"], claim["dimension"], claim["p"], Fraction(claim["scale"])
    keys, entries = array("d", data[: 8 * tokens * dim]), array("i", data[8 * tokens * dim :])
    for numbers in (keys, entries) if sys.byteorder == "big" else ():
        numbers.byteswap()
    weights = {(s, t): weight for s, t, weight in claim["multipliers"]}
    if any(type(x) is not int for x in [*p, *weights.values()]) or len(p) != dim or scale <= 0:
        return "an entry of P or a multiplier is not an integer, or the scale is not positive"
    if min(weights.values()) <= 0 or len(weights) != len(claim["multipliers"]):
        return "a multiplier is not positive, or a pair is listed twice"
    net = dict.fromkeys(range(tokens), 0)  # w = Σ net_s K_s
    for (s, t), weight in weights.items():
        net[s], net[t] = net[s] + weight, net[t] - weight
    # All keys are integers times one power of two, 2^(1 - places).
    places = max(x.as_integer_ratio()[1] for x in keys).bit_length()
    scale *= 2 ** (places - 1)
    scores, w = [], [0] * dim
    for token in range(tokens):
        ratios = [x.as_integer_ratio() for x in keys[token * dim : (token + 1) * dim]]
        row = [a << places - b.bit_length() for a, b in ratios]
        scores.append(sum(map(mul, row, p)))
        if net[token]:
            w = [x + net[token] * y for x, y in zip(w, row, strict=True)]
    unknown = set(weights)
    for number, (selected, others) in enumerate(sequences(entries)):
        for s, t in [(s, t) for s in selected for t in others]:
            unknown.discard((s, t))
            if scores[s] - scores[t] < scale:
                return f"sequence {number}: p·(K_s - K_t) < 1 for s = {s}, t = {t}"
    if unknown:
        return f"no sequence has the pair {min(unknown)} of a multiplier"
    bound = (sum(weights.values()) * scale) ** 2 / (sum(map(mul, w, w)) * sum(map(mul, p, p)))
    return (
        ""
        if 1 - bound <= Fraction(claim["gap"])
        else f"the gap is {float(1 - bound):.3e}, not {claim['gap']}"
    )


if __name__ == "__main__":
    reason = check(sys.argv[1])
    print(f"refused: {reason}" if reason else f"accepted: {sys.argv[1]}")
    sys.exit(bool(reason))
