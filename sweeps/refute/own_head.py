"""Statements of this project on gradient flow on p and v, with embeddings of small integers."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
from measured import OUTSIDE, measured

import jaxattn as ja
from jaxattn.lab.refute import Integers, Space, flows

FLOWS, NORM = 64, 1e4


class Setting:
    """A corpus whose embeddings are searched."""

    def __init__(self, sequences, labels, vocab):
        self.sequences, self.labels = sequences, np.array(labels)
        self.corpus = ja.data.from_sequences(sequences, labels, vocab_size=vocab)
        self.space = Space(
            arrays={"E": Integers("token dim", -3, 3)},
            sizes=({"token": vocab, "dim": 2}, {"token": vocab, "dim": 3}),
        )

    def path(self, batch, rtol):
        """Integrate the flow from p = v = 0 for a batch."""
        E = batch["E"].astype(float)
        zero = np.zeros((len(E), E.shape[2]))
        start = {"E": E, "p": zero, "v": zero}
        return ja.dynamics.joint_flow(start, self.corpus, until_norm=NORM, rtol=rtol, max_steps=2000)

    def program(self, E, p, keep_ties=False):
        """Return p_relax of the tokens on top at p, their margin, the smallest gap below them, and the tops.

        Unless ties are kept, the smallest gap is 0 if a token below the top of a tight sequence has the same
        value as the top token.
        """
        scores = np.einsum("bvd,bd->bv", E, p)
        tops = np.stack([np.array(x)[scores[:, x].argmax(axis=1)] for x in self.sequences], axis=1)
        number = np.arange(len(E))
        signed = self.labels[:, None] * np.stack([E[number, t] for t in tops.T], axis=1)
        head = flows.shortest_batch(signed, np.ones(signed.shape[:2]))
        tight = np.einsum("bnd,bd->bn", signed, head) < 1 + 1e-9
        rows, required, gaps, tied = [], [], [], np.zeros(len(E), bool)
        for X, tokens in enumerate(self.sequences):
            for s in tokens:
                other = tops[:, X] != s
                rows.append(E[number, tops[:, X]] - E[:, s])
                required.append(other & tight[:, X])
                value = self.labels[X] * np.einsum("bd,bd->b", E[:, s], head)
                tied |= other & tight[:, X] & (np.abs(value - 1) < 1e-9)
                gaps.append(np.where(other, np.einsum("bd,bd->b", rows[-1], p), np.inf))
        gaps, required = np.stack(gaps, axis=1), np.stack(required, axis=1)
        relaxed = flows.shortest_batch(np.stack(rows, axis=1), required.astype(float))
        margin = np.where(required, gaps, np.inf).min(axis=1)
        lowest = gaps.min(axis=1) / np.maximum(np.linalg.norm(p, axis=1), 1e-300)
        lowest = np.where(tied & (not keep_ties), 0.0, lowest)
        return np.where(np.isnan(head[:, :1]), np.nan, relaxed), margin, lowest, tops


ONE = Setting([[0, 2], [1, 2], [0, 3], [1, 3]], [1, -1, 1, -1], 4)
TWO = Setting([[0, 1, 4], [2, 3, 4], [0, 4], [3, 4]], [1, -1, 1, -1], 5)
SHARED = {"size": FLOWS, "batch": 256, "fixed": ("token",)}


def distance_from_relaxed(batch, rtol, keep_ties=False):
    """Return 1 - cos between the end of the flow and p_relax, if the relevant tokens are on top."""
    E, path = batch["E"].astype(float), ONE.path(batch, rtol)
    relaxed, _, gap, tops = ONE.program(E, path.p[:, -1], keep_ties)
    found = flows.one_minus_cosine(path.p[:, -1], relaxed)
    selects = (tops == [0, 1, 0, 1]).all(axis=1) & (gap > 1e-3)
    inside = (path.status == ja.dynamics.Stop.NORM) & selects & np.isfinite(found)
    return np.where(inside, found, OUTSIDE)


RELAXED = {
    "tolerance": 1e-4,
    "quantity": "1 - cos between p and p_relax",
    "statement": (
        "Under Assumption 1, if every sequence selects its relevant token, p converges in direction to "
        "p_relax (`relaxed_max_margin` with tied = 1) when p and v are trained: 1 - cos ≤ 1e-4 at ‖p‖ = 1e4."
    ),
    "space": ONE.space,
    "horizon": f"‖p‖ = {NORM:g}",
    "control": {"E": [[1, 0], [-1, 0], [0, 0], [0, 0]]},
}

relaxed = measured(
    distance_from_relaxed,
    source="docs/explanation/limits.md, Limit of p and v (conjecture).",
    hypothesis=(
        "Assumption 1, status norm, the relevant tokens on top, and no other token of the same value under "
        "v_mm."
    ),
    **RELAXED,
    **SHARED,
)

tied = measured(
    partial(distance_from_relaxed, keep_ties=True),
    source="docs/explanation/limits.md, Limit of p and v (conjecture), without the condition on values.",
    hypothesis="Assumption 1, status norm, and the relevant tokens on top.",
    repaired="No token below the top of a tight sequence has the same value under v_mm, or tied = 1/2.",
    **RELAXED,
    **SHARED,
)


def distance_from_clock(batch, rtol):
    """Return |2 log ‖v‖ / (margin of p) - 1| for p far along the path, if the relevant tokens are on top."""
    E, path = batch["E"].astype(float), ONE.path(batch, rtol)
    _, margin, gap, tops = ONE.program(E, path.p[:, -1])
    found = np.abs(2 * path.log_v_norm[:, -1] / margin - 1)
    selects = (tops == [0, 1, 0, 1]).all(axis=1) & (gap > 1e-3)
    inside = (path.status == ja.dynamics.Stop.NORM) & selects & np.isfinite(found)
    return np.where(inside, found, OUTSIDE)


clock = measured(
    distance_from_clock,
    tolerance=0.02,
    quantity="|2 log ‖v‖ / margin - 1|",
    statement=(
        "When p and v are trained, the smallest gap of the sequences in the support of v_mm is 2 log ‖v‖ to "
        "leading order: |2 log ‖v‖ / gap - 1| ≤ 0.02 at ‖p‖ = 1e4."
    ),
    source="docs/notes/joint_flow.md: ‖v‖ ≈ e^(margin ‖p‖ / 2).",
    hypothesis=(
        "Assumption 1, status norm, the relevant tokens on top, and no other token of the same value under "
        "v_mm."
    ),
    space=ONE.space,
    horizon=f"‖p‖ = {NORM:g}",
    control={"E": [[1, 0], [-1, 0], [0, 0], [0, 0]]},
    **SHARED,
)


def distance_from_certified(batch, rtol):
    """Return 1 - cos between the end of the flow and the limit that `certify_joint_limit` certifies there."""
    folder = str(Path(__file__).parents[1] / "findings" / "which_mixture")
    if folder not in sys.path:
        sys.path.append(folder)
    from joint_limit import certify_joint_limit

    E, path = batch["E"].astype(float), TWO.path(batch, rtol)
    found = np.full(len(E), OUTSIDE)
    for index in np.flatnonzero(path.status == ja.dynamics.Stop.NORM):
        v = path.v[index, -1] * np.exp(min(path.log_v_norm[index, -1], 300.0))
        limit = certify_joint_limit(ja.theory.Scores(E[index], TWO.corpus), path.p[index, -1], v)
        if limit.holds:
            found[index] = flows.one_minus_cosine(path.p[index, -1], limit.p)
    return found


certified = measured(
    distance_from_certified,
    tolerance=1e-4,
    quantity="1 - cos between p and the certified p_*",
    statement=(
        "With two relevant tokens in a sequence, p converges in direction to the p_* that "
        "`certify_joint_limit` certifies: 1 - cos ≤ 1e-4 at ‖p‖ = 1e4."
    ),
    source="docs/findings/which_mixture.md.",
    hypothesis="Status norm, and a certificate at the end of the path.",
    space=TWO.space,
    horizon=f"‖p‖ = {NORM:g}",
    control={"E": [[1, 0], [1, 0], [-1, 0], [-1, 0], [0, 0]]},
    **SHARED,
)
