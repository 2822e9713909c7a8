"""A label-consistent cover lacks a relevant token, so a stationary direction exists without it.

This proves the exact target alone, not that the flow from (E, p, v) reaches it. In a cover, each sequence has
a top token, and no token is on top under both labels. On its r tokens, E_s = y_s c v with c² r = 1 has equal
margins.
"""

from fractions import Fraction
from itertools import product

INSTANCE = {'tokens': [[0, 2], [1, 2]], 'E': [[0, 0], [1, 0], [0, 1]], 'p': [0, 0], 'v': [0, 1]}
CONTROL = {'tokens': [[0, 0], [1, 1]], 'E': [[1], [-1], [0]], 'p': [0], 'v': [1]}
LABELS = [1, -1]


def missing(tokens, **start):
    """Return covers without some relevant token, with c², and the tokens that they lack."""
    seen = {s: {y for x, y in zip(tokens, LABELS, strict=True) if s in x} for x in tokens for s in x}
    relevant = {s for s, labels in seen.items() if len(labels) == 1}
    if any(len(relevant.intersection(x)) != 1 for x in tokens):
        raise SystemExit("Assumption 1 fails: a sequence does not have exactly one relevant token")
    found = []
    for top in product(*tokens):
        consistent = all(
            a != b or y == z for (a, y), (b, z) in product(zip(top, LABELS, strict=True), repeat=2)
        )
        if consistent and relevant - set(top):
            found.append((top, str(Fraction(1, len(set(top)))), relevant - set(top)))
    return found


found, control = missing(**INSTANCE), missing(**CONTROL)
print(f"{INSTANCE}: cover, c², lacking: {found}; control {CONTROL}: {control}")
raise SystemExit(not found or bool(control))
