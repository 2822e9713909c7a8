"""Verify a certificate for a max-margin direction in exact arithmetic, using only the standard library.

    python check_certificate.py CERTIFICATE.json

The data are keys K_s (one float64 vector per token) and sequences X of distinct tokens, with one selected
token each. A vector q separates the selected tokens if, for every X with selected token s and every other
token t,

    q·(K_s - K_t) ≥ 1.

"Accepted" means that one of the following holds exactly for the data with the printed SHA-256:

- If the file contains P, with p = P / scale: p separates the selected tokens, and no separating vector is
  shorter than √(1 - gap) ‖p‖. Proof: for λ ≥ 0 and w = Σ λ (K_s - K_t), every separating vector q satisfies
  Σ λ ≤ q·w ≤ ‖q‖ ‖w‖, and the file contains λ with 1 - (Σ λ)² / (‖w‖² ‖p‖²) ≤ gap.
- Otherwise: no vector separates the selected tokens. Proof: the file contains λ > 0 with w = 0, and a
  separating vector q would satisfy 0 < Σ λ ≤ q·w = 0.

"Accepted" does not imply that the data come from an experiment, or that training converges to p.

Files may come from anyone. Only regular files are read, and the sizes of files and numbers are checked before
they are read or built.
"""

import hashlib
import json
import os
import re
import stat
import struct
import sys
from fractions import Fraction
from operator import mul
from pathlib import Path
from typing import Any

# Largest sizes of the certificate and of the data in bytes, and largest number of integers of all sequences.
_CLAIM, _DATA, _ENTRIES = 2**24, 2**30, 2**25
# Largest number of digits of an integer; Python's own limit for the conversion from text is the same.
_DIGITS = 4300
# Forms of an exact number: A, A/B, or a decimal with an exponent of at most four digits.
_NUMBER = re.compile(
    rf"[0-9]{{1,{_DIGITS}}}(/[0-9]{{1,{_DIGITS}}}|(\.[0-9]{{1,40}})?([Ee][+-]?[0-9]{{1,4}})?)"
)


def require(condition: bool, reason: str) -> None:
    """Reject the certificate unless the condition holds."""
    if not condition:
        raise ValueError(reason)


def contents(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes."""

    def opener(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=opener) as file:
        status = os.fstat(file.fileno())
        require(stat.S_ISREG(status.st_mode), f"{path.name} is not a regular file")
        require(status.st_size <= limit, f"{path.name} has more than {limit} bytes")
        return file.read(limit)


def parse(text: bytes) -> dict[str, Any]:
    """Parse a certificate, whose numbers are integers of at most _DIGITS digits."""

    def integer(text: str) -> int:
        require(len(text) <= _DIGITS, f"an integer has more than {_DIGITS} digits")
        return int(text)

    def refuse(text: str) -> None:
        require(False, f"{text[:20]} is not an integer")

    try:
        claim = json.loads(
            text.decode("utf-8-sig"), parse_int=integer, parse_float=refuse, parse_constant=refuse
        )
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    require(type(claim) is dict, "the file does not contain a JSON object")
    return claim


def exact_number(text: Any) -> Fraction:
    """Convert a string to an exact number; numbers in JSON would be rounded to float64."""
    short = type(text) is str and len(text) <= 2 * _DIGITS + 1
    require(short and _NUMBER.fullmatch(text) is not None, "the scale or the gap is not a number in a string")
    return Fraction(text)


def read(data: bytes) -> tuple[int, int, list[tuple[int, list[int]]]]:
    """Parse `data` as the number of tokens, the dimension, and each sequence's selected and other tokens."""
    magic, tokens, dim, number = struct.unpack_from("<8s3q", data)
    require(magic == b"MAXMARG1" and min(tokens, dim, number) > 0, "the data are not in the format MAXMARG1")
    begin = 32 + 8 * tokens * dim  # per sequence: its length, s if selected, -1 - t for other tokens
    require(0 < len(data) - begin <= 4 * _ENTRIES, "the sequences are missing or too large")
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


def check(claim: dict[str, Any], data: bytes) -> str:
    """Return the statement that the certificate proves. Raise ValueError if the certificate is rejected."""
    digest = hashlib.sha256(data).hexdigest()
    require(digest == claim["sha256"], "the data are not those that the certificate was written for")
    tokens, dim, sequences = read(data)
    shown = f"for {tokens} x {dim} keys and {len(sequences)} sequences, data {digest}"
    weights = {(s, t): weight for s, t, weight in claim["multipliers"]}
    require(all(type(x) is int and x > 0 for x in weights.values()), "a multiplier is not a positive integer")
    require(0 < len(weights) == len(claim["multipliers"]), "a pair is listed twice, or there is none")
    unknown = set(weights).difference((s, t) for s, others in sequences for t in others)
    require(not unknown, f"no sequence has the pair {min(unknown, default=None)} of a multiplier")
    net = dict.fromkeys(range(tokens), 0)  # w = Σ net_s K_s
    for (s, t), weight in weights.items():
        net[s], net[t] = net[s] + weight, net[t] - weight
    p = claim.get("p", [0] * dim)
    require(all(type(x) is int for x in p) and len(p) == dim, f"P is not {dim} integers")
    keys = data[32 : 32 + 8 * tokens * dim]
    # All keys are integer multiples of the same power of two, 2^(1 - places).
    places = max(x.as_integer_ratio()[1] for (x,) in struct.iter_unpack("<d", keys)).bit_length()
    scores, w = [], [0] * dim
    for token, row in enumerate(struct.iter_unpack(f"<{dim}d", keys)):
        integers = [a << places - b.bit_length() for a, b in (x.as_integer_ratio() for x in row)]
        scores.append(sum(map(mul, integers, p)))
        w = [x + net[token] * y for x, y in zip(w, integers, strict=True)] if net[token] else w
    if "p" not in claim:
        require(not any(w), "Σ λ (K_s - K_t) is not 0")
        return f"no vector separates the selection {shown}"
    scale, gap = exact_number(claim["scale"]) * 2 ** (places - 1), exact_number(claim["gap"])
    require(scale > 0 and 0 <= gap < 1, "the scale or the gap is out of range")
    for number, (s, others) in enumerate(sequences):
        for t in others:
            refused = f"sequence {number}: p·(K_s - K_t) < 1 for s = {s}, t = {t}"
            require(scores[s] - scores[t] >= scale, refused)
    proven = 1 - (sum(weights.values()) * scale) ** 2 / (sum(map(mul, w, w)) * sum(map(mul, p, p)))
    require(proven <= gap, f"the gap is {float(proven):.3e}, not {claim['gap']}")
    return f"gap ≤ {claim['gap']} {shown}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python check_certificate.py CERTIFICATE.json")
    try:
        path = Path(sys.argv[1])
        claim = parse(contents(path, _CLAIM))
        proved = check(claim, contents(path.with_name(claim["data"]), _DATA))
    except (ValueError, OSError, ArithmeticError, MemoryError) as reason:
        sys.exit(f"refused: {' '.join(str(reason).split())[:200]}")
    except (TypeError, KeyError, struct.error) as reason:
        sys.exit(f"refused: the file is malformed, {repr(reason)[:200]}")
    print("accepted:", proved)
