"""Statements of this project on gradient flow on p, with keys and values of small integers."""

import numpy as np
from measured import OUTSIDE, measured

import jaxattn as ja
from jaxattn.lab.refute import Integers, Space, flows
from jaxattn.theory import Scores

# Two equal sequences with opposite labels, whose first-order forces can cancel, and two more.
SEQUENCES, LABELS, VOCAB = [[0, 1, 2], [0, 1, 2], [2, 3], [1, 3]], [1, -1, 1, -1], 4
CORPUS = ja.data.from_sequences(SEQUENCES, LABELS, vocab_size=VOCAB)
FLOWS, NORM = 128, 1e4
SPACE = Space(
    arrays={"keys": Integers("token dim", -3, 3), "values": Integers("token", -2, 2)},
    sizes=({"token": VOCAB, "dim": 2}, {"token": VOCAB, "dim": 3}),
)
CONTROL = {"keys": [[1, 0], [0, 0], [0, 1], [0, 0]], "values": [1, 0, 1, 0]}
SHARED = {"size": FLOWS, "batch": 1024, "fixed": ("token",), "horizon": f"‖p‖ = {NORM:g}", "control": CONTROL}


def path_of(batch, rtol, until_norm=NORM, scale=1.0):
    """Integrate the flow from p = 0 for a batch."""
    keys = batch["keys"].astype(float) * scale
    scores = Scores(keys, CORPUS, batch["values"].astype(float))
    start = np.zeros((len(keys), keys.shape[2]))
    return ja.dynamics.exact_flow(scores, start, until_norm=until_norm / scale, rtol=rtol, max_steps=3000)


def top_tokens(keys, p):
    """Return the top token of each sequence, (B, n), and the smallest gap below it relative to ‖p‖, (B,)."""
    length = np.maximum(np.linalg.norm(p, axis=1, keepdims=True), 1e-300)
    scores = np.einsum("bvd,bd->bv", keys, p) / length
    tops, gaps = [], []
    for tokens in SEQUENCES:
        own = np.sort(scores[:, tokens], axis=1)
        tops.append(np.array(tokens)[scores[:, tokens].argmax(axis=1)])
        gaps.append(own[:, -1] - own[:, -2])
    return np.stack(tops, axis=1), np.min(gaps, axis=0)


def distance_from_margin(batch, rtol):
    """Return 1 - cos between the end of the flow and the max-margin direction of the tokens on top.

    Instances in which two tokens of a sequence have the same value are outside the assumptions.
    """
    keys, path = batch["keys"].astype(float), path_of(batch, rtol)
    tops, gap = top_tokens(keys, path.p[:, -1])
    number = np.arange(len(keys))
    pairs = [(X, s) for X, tokens in enumerate(SEQUENCES) for s in tokens]
    rows = np.stack([keys[number, tops[:, X]] - keys[:, s] for X, s in pairs], axis=1)
    required = np.stack([(tops[:, X] != s).astype(float) for X, s in pairs], axis=1)
    found = flows.one_minus_cosine(path.p[:, -1], flows.shortest_batch(rows, required))
    inside = (path.status == ja.dynamics.Stop.NORM) & (gap > 1e-3) & np.isfinite(found)
    values = [np.sort(batch["values"][:, tokens], axis=1) for tokens in SEQUENCES]
    differ = [(np.diff(own, axis=1) != 0).all(axis=1) for own in values]
    return np.where(inside & np.all(differ, axis=0), found, OUTSIDE)


margin = measured(
    distance_from_margin,
    tolerance=1e-4,
    quantity="1 - cos between p and the max-margin direction",
    statement=(
        "If gradient flow on p ends with status norm and one token on top of each sequence, its direction is "
        "the max-margin direction of these tokens: 1 - cos ≤ 1e-4 at ‖p‖ = 1e4."
    ),
    source=(
        "The form of a theorem of arXiv 2306.13596 that this project tests; its conditions were not read in "
        "the paper. docs/notes/exact_flow_ties.md has exceptions."
    ),
    hypothesis="Status norm, one top token per sequence, and different values within each sequence.",
    repaired="Pairs whose first-order forces cancel require half a margin; see `theory.certify_limit`.",
    space=SPACE,
    **SHARED,
)


def uncertified(batch, rtol):
    """Return 1 if `certify_limit` refuses the end of the flow, or the distance of its score differences."""
    keys, path = batch["keys"].astype(float), path_of(batch, rtol)
    _, gap = top_tokens(keys, path.p[:, -1])
    found = np.full(len(keys), OUTSIDE)
    for index in np.flatnonzero((path.status == ja.dynamics.Stop.NORM) & (gap > 1e-3)):
        selection = ja.theory.Selection(path.selection.mask[index])
        scores = Scores(keys[index], CORPUS, batch["values"][index].astype(float))
        limit = ja.theory.certify_limit(scores, path.p[index, -1], selection)
        found[index] = float(limit.distance) if limit.holds else 1.0
    return found


certificate = measured(
    uncertified,
    tolerance=1e-4,
    quantity="1 - cos of score differences at p and at the certified limit, 1 without a certificate",
    statement=(
        "If gradient flow on p ends with status norm and one token on top of each sequence, `certify_limit` "
        "certifies its limit: 1 - cos ≤ 1e-4 at ‖p‖ = 1e4."
    ),
    source="docs/explanation/limits.md and docs/notes/exact_flow_ties.md.",
    hypothesis="Status norm, and one top token per sequence.",
    space=SPACE,
    **{**SHARED, "batch": 256},
)


def differs_in_units(batch, rtol):
    """Return the largest difference of paths in units that differ by 8, which is exact in floating point."""
    first, second = path_of(batch, rtol), path_of(batch, rtol, scale=8.0)
    found = np.abs(first.p - 8 * second.p).max(axis=(1, 2)) + np.abs(first.status - second.status)
    return np.where(np.isfinite(found), found, OUTSIDE)


powers = measured(
    differs_in_units,
    tolerance=0.0,
    quantity="largest difference of p in two units",
    statement=(
        "Paths of `exact_flow` for keys Φ 2^k and p 2^(-k) are bitwise identical: their difference is ≤ 0."
    ),
    source="Source code of jaxattn.dynamics.exact_flow; here k = 3.",
    hypothesis="The keys are small integers.",
    space=SPACE,
    **SHARED,
)


def differs_in_order(batch, rtol):
    """Return 1 - cos between the ends of two paths whose coordinates and label signs are exchanged."""
    turned = {"keys": batch["keys"][:, :, ::-1], "values": batch["values"]}
    first, second = path_of(batch, rtol), path_of(turned, rtol)
    apart = flows.one_minus_cosine(first.p[:, -1], second.p[:, -1, ::-1])
    normal = (first.status == ja.dynamics.Stop.NORM) & (second.status == ja.dynamics.Stop.NORM)
    return np.where(first.status != second.status, 1.0, np.where(normal, apart, OUTSIDE))


order = measured(
    differs_in_order,
    tolerance=1e-6,
    quantity="1 - cos between the ends, 1 for different statuses",
    statement=(
        "The status of `exact_flow` and the direction of its end do not depend on the order of the "
        "coordinates: 1 - cos ≤ 1e-6."
    ),
    source="Rotation invariance of gradient flow, which docs/notes/training_without_d.md uses.",
    hypothesis="The keys are small integers.",
    space=SPACE,
    **SHARED,
)
