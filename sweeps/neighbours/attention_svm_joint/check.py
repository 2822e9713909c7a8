"""Attention SVM, p and v together: certified optimal values, and distances of p and v from the directions."""

import numpy as np
from attention_svm_joint import HEIGHTS, PLACES, three_sequences

import jaxattn as ja
from jaxattn.lab.books import Finding, around, cells, slug

CASES = {"tight": "v tight on all sequences", "relaxed": "v tight on two of three sequences"}
STEPS = {
    "normalised": "normalised steps",
    "all digits": "normalised steps without cancellation errors",
    "flow": "exact flow",
}
# Half a unit in the last published digit of ½‖p‖².
DIGIT = 5e-6
TIGHT = (around(0.94444, DIGIT), "0.94444")
VALUES = {"tight.relax": TIGHT, "tight.mm": TIGHT, "relaxed.relax": (around(0.5, DIGIT), "0.50000")}
GAP, P_CLOSE, V_CLOSE = around(0.0, 1e-8), around(0.0, 1e-4), around(0.0, 1e-5)


def check(results):
    """Certify the published programs, and compare the final p and v with them."""
    every = {case: directions(height) for case, height in HEIGHTS.items()}
    for case, found in every.items():
        for name in ("relax", "mm"):
            x = found[f"p_{name}"]
            id, expected = f"{case}.{name}", VALUES.get(f"{case}.{name}", (None, ""))
            text = f"{CASES[case]}: optimal value ½‖p_{name}‖²"
            yield exactly(f"{id}.value", text, x.p @ x.p / 2, x.duality_gap, expected)
            text = f"{CASES[case]}: duality gap of p_{name}"
            yield exactly(f"{id}.gap", text, x.duality_gap, 0.0, (GAP, ""))
    records = results["study"].records
    last = records.groupby(["cell", "metric"])["value"].last().unstack()
    for cell in cells(results["study"]):
        case, _, steps = cell.name.partition(", ")
        # The flow converges to p_mm if v is tight on all sequences, and to p_relax otherwise.
        limit = {"tight": "p_mm", "relaxed": "p_relax"}[case]
        for name, x in every[case].items():
            angle = last.loc[cell.cell, f"{name[0]}_angle"] - np.arctan2(x.p[1], x.p[0])
            criterion = {limit: P_CLOSE, "v_mm": V_CLOSE}.get(name)
            expected = (criterion, "tends to 0" if criterion else "")
            text = f"{CASES[case]}, {STEPS[steps]}: 1 - cos between {name[0]} and {name}"
            distance = 2 * np.sin(angle / 2) ** 2
            yield exactly(f"{slug(cell.name)}.{name}", text, distance, 0.0, expected, unit="one run")


def directions(height):
    """Return the certified directions p_relax, p_mm and v_mm for a height of the last token."""
    E = np.array(PLACES)
    E[3, 1] = height
    scores = ja.theory.Scores(E, three_sequences())
    chosen = ja.theory.selection(np.array([1.0, 0.0]), scores)
    relaxed = ja.theory.relaxed_max_margin(scores, chosen)
    return {"p_relax": relaxed.query, "p_mm": ja.theory.max_margin(scores, chosen), "v_mm": relaxed.head}


def exactly(id, text, value, gap, expected, unit="certificate"):
    """Build a finding for a number known exactly, or known to lie between value (1 - gap) and value."""
    criterion, published = expected
    interval = (float(value * (1 - gap)), float(value))
    about = {"expected": criterion, "published": published, "unit": unit}
    return Finding(id, text, float(value), interval, **about)
