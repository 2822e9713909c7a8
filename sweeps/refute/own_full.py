"""Statements of this project on gradient flow on E, p and v, from starts of small integers."""

import numpy as np
from measured import OUTSIDE, measured

import jaxattn as ja
from jaxattn.lab.refute import Integers, Space

SEQUENCES, LABELS, VOCAB = [[0, 2], [1, 2], [0, 3], [1, 3], [0, 2, 3]], np.array([1, -1, 1, -1, 1]), 4
CORPUS = ja.data.from_sequences(SEQUENCES, LABELS.tolist(), vocab_size=VOCAB)
FLOWS, EARLY, LATE = 32, -300.0, -3000.0
SHARED = {
    "size": FLOWS,
    "batch": 128,
    "fixed": ("token",),
    "rtols": (1e-8, 1e-10),
    "control": {"E": [[1, 0], [-1, 0], [0, 0], [0, 0]], "p": [0, 0], "v": [1, 0]},
    "space": Space(
        arrays={
            "E": Integers("token dim", -1, 1),
            "p": Integers("dim", -1, 1),
            "v": Integers("dim", -1, 1),
        },
        sizes=({"token": VOCAB, "dim": 2},),
    ),
}


def ends(batch, log_loss, rtol):
    """Integrate the flow; return whether it reached the loss, E, p and v there, and the top tokens."""
    start = {name: batch[name].astype(float) for name in ("E", "p", "v")}
    path = ja.dynamics.full_flow(start, CORPUS, until_log_loss=log_loss, rtol=rtol, points=8, max_steps=5_000)
    E, p, v = path.E[:, -1], path.p[:, -1], path.v[:, -1]
    scores = np.nan_to_num(np.einsum("bvr,br->bv", E, p))
    tops = np.stack([np.array(x)[scores[:, x].argmax(axis=1)] for x in SEQUENCES], axis=1)
    gaps = [np.diff(np.sort(scores[:, x], axis=1)[:, -2:], axis=1)[:, 0] for x in SEQUENCES]
    reached = (path.status == ja.dynamics.Stop.LOSS) & (np.min(gaps, axis=0) > 0.1)
    return reached, E, p, v, tops


def shared_tops(tops):
    """Return the number of tokens that are on top under both labels."""
    return sum(
        ((tops == s) & (LABELS > 0)).any(axis=1) & ((tops == s) & (LABELS < 0)).any(axis=1)
        for s in range(VOCAB)
    )


def inconsistent(batch, rtol):
    """Return the number of tokens on top under both labels at small loss."""
    reached, *_, tops = ends(batch, EARLY, rtol)
    return np.where(reached, shared_tops(tops), OUTSIDE)


cover = measured(
    inconsistent,
    tolerance=0.0,
    quantity="number of tokens on top under both labels",
    statement="At small loss, no token is on top of sequences with different labels: their number is ≤ 0.",
    source="docs/findings/which_cover.md, What would refute it.",
    hypothesis="The flow on E, p and v reaches log L = -300, and top tokens are ahead by 0.1.",
    horizon=f"log L = {EARLY:g}",
    **SHARED,
)


def distance_of_values(batch, rtol):
    """Return the largest |y_s E_s·v √r_eff / ‖v‖² - 1| on top tokens."""
    reached, E, _, v, tops = ends(batch, LATE, rtol)
    consistent = shared_tops(tops) == 0
    values = np.einsum("bvr,br->bv", E, v) / np.maximum((v**2).sum(axis=1, keepdims=True), 1e-300)
    count = np.array([len(set(own)) for own in tops.tolist()])
    signed = LABELS * np.take_along_axis(values, tops, axis=1) * np.sqrt(count)[:, None]
    return np.where(reached & consistent, np.abs(signed - 1).max(axis=1), OUTSIDE)


values = measured(
    distance_of_values,
    tolerance=0.1,
    quantity="largest |y_s E_s·v √r_eff / ‖v‖² - 1|",
    statement="E_s·v → y_s ‖v‖²/√r_eff on the tokens that end on top: |y_s E_s·v √r_eff/‖v‖² - 1| ≤ 0.1.",
    source="docs/findings/which_cover.md and docs/notes/full_flow.md; the tolerance is chosen here.",
    hypothesis="The flow on E, p and v reaches log L = -3000 with a label-consistent cover on top.",
    horizon=f"log L = {LATE:g}",
    **SHARED,
)


def growth_of_query(batch, rtol):
    """Return ‖p‖/‖v‖ at log L = -3000 minus ‖p‖/‖v‖ at log L = -300."""
    ratios = []
    for log_loss in (LATE, EARLY):
        reached, _, p, v, _ = ends(batch, log_loss, rtol)
        ratios.append(np.where(reached, np.linalg.norm(p, axis=1) / np.linalg.norm(v, axis=1), np.nan))
    found = ratios[0] - ratios[1]
    return np.where(np.isfinite(found), found, OUTSIDE)


query = measured(
    growth_of_query,
    tolerance=0.0,
    quantity="increase of ‖p‖/‖v‖",
    statement="p/‖v‖ → 0: ‖p‖/‖v‖ at log L = -3000 minus its value at log L = -300 is ≤ 0.",
    source="docs/notes/full_flow.md.",
    hypothesis="The flow on E, p and v reaches log L = -3000.",
    horizon=f"log L = {LATE:g}",
    **SHARED,
)
