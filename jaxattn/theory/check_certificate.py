"""Check a certificate of a max-margin direction in exact arithmetic, with the standard library alone.

    python check_certificate.py CERTIFICATE.json

The data are keys K_s (rows of float64 numbers, one per token) and sequences X of distinct tokens, of which
one is selected. A vector q separates the selection if, for every X with selected token s and other tokens t,

    q·(K_s - K_t) ≥ 1.

"Accepted" means that two statements hold exactly for the data with the printed SHA-256, with p = P / scale:

1. p separates the selection.
2. No vector that separates it is shorter than √(1 - gap) ‖p‖. For λ ≥ 0 and w = Σ λ (K_s - K_t) over some of
   these pairs, such a q has Σ λ ≤ q·w ≤ ‖q‖ ‖w‖, and the file has λ with 1 - (Σ λ)² / (‖w‖² ‖p‖²) ≤ gap.

It does not mean that the data are those of an experiment, or that training converges to p.
"""

import hashlib
import json
import struct
import sys
from fractions import Fraction
from operator import mul
from pathlib import Path


def require(condition: bool, reason: str) -> None:
    """Refuse the certificate unless a condition holds."""
    if not condition:
        raise ValueError(reason)


def read(data: bytes) -> tuple[int, int, list[tuple[int, list[int]]]]:
    """Return the number of tokens, the dimension, and the selected and the other tokens of every sequence."""
    magic, tokens, dim, number = struct.unpack_from("<8s3q", data)
    require(magic == b"MAXMARG1" and min(tokens, dim, number) > 0, "the data are not in the format MAXMARG1")
    begin = 32 + 8 * tokens * dim  # a sequence: its length, then s for the selected token, -1 - t for another
    entries = struct.unpack(f"<{(len(data) - begin) // 4}i", data[begin:])
    found: list[tuple[int, list[int]]] = []
    place = 0
    while place < len(entries):
        held = entries[place + 1 : place + 1 + entries[place]]
        selected, others = [s for s in held if s >= 0], [-1 - t for t in held if t < 0]
        distinct = len({*selected, *others}) == entries[place]
        require(distinct and len(selected) == 1, f"sequence {len(found)} is malformed")
        require(max(*selected, *others, 0) < tokens, f"sequence {len(found)} has an unknown token")
        found.append((selected[0], others))
        place += 1 + len(held)
    require(len(found) == number, f"there are {len(found)} sequences in place of {number}")
    return tokens, dim, found


def check(path: str | Path) -> str:
    """Return what was proved; raise ValueError if the certificate is refused."""
    claim = json.loads(Path(path).read_text(encoding="utf-8"))
    data = Path(path).with_name(claim["data"]).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    require(digest == claim["sha256"], "the data are not those that the certificate was written for")
    tokens, dim, sequences = read(data)
    p, scale, gap = claim["p"], Fraction(claim["scale"]), Fraction(claim["gap"])
    weights = {(s, t): weight for s, t, weight in claim["multipliers"]}
    require(all(type(x) is int for x in [*p, *weights.values()]), "P or a multiplier is not an integer")
    require(len(p) == dim and scale > 0 and 0 <= gap < 1, "P, the scale or the gap is out of range")
    require(min(weights.values()) > 0, "a multiplier is not positive")
    require(len(weights) == len(claim["multipliers"]), "a pair is listed twice")
    net = dict.fromkeys(range(tokens), 0)  # w = Σ net_s K_s
    for (s, t), weight in weights.items():
        net[s], net[t] = net[s] + weight, net[t] - weight
    keys = data[32 : 32 + 8 * tokens * dim]
    # All keys are integers times one power of two, 2^(1 - places).
    places = max(x.as_integer_ratio()[1] for (x,) in struct.iter_unpack("<d", keys)).bit_length()
    scale *= 2 ** (places - 1)
    scores, w = [], [0] * dim
    for token, row in enumerate(struct.iter_unpack(f"<{dim}d", keys)):
        ratios = [x.as_integer_ratio() for x in row]
        integers = [a << places - b.bit_length() for a, b in ratios]
        scores.append(sum(map(mul, integers, p)))
        w = [x + net[token] * y for x, y in zip(w, integers, strict=True)] if net[token] else w
    for number, (s, others) in enumerate(sequences):
        for t in others:
            require(
                scores[s] - scores[t] >= scale, f"sequence {number}: p·(K_s - K_t) < 1 for s = {s}, t = {t}"
            )
    unknown = set(weights).difference((s, t) for s, others in sequences for t in others)
    require(not unknown, f"no sequence has the pair {min(unknown, default=None)} of a multiplier")
    proven = 1 - (sum(weights.values()) * scale) ** 2 / (sum(map(mul, w, w)) * sum(map(mul, p, p)))
    require(proven <= gap, f"the gap is {float(proven):.3e}, not {claim['gap']}")
    return f"gap ≤ {claim['gap']} for {tokens} x {dim} keys and {len(sequences)} sequences, data {digest}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python check_certificate.py CERTIFICATE.json")
    try:
        print("accepted:", check(sys.argv[1]))
    except (ValueError, OSError, ArithmeticError) as reason:
        sys.exit(f"refused: {reason}")
    except (TypeError, KeyError, struct.error) as reason:
        sys.exit(f"refused: the file is malformed, {reason!r}")
