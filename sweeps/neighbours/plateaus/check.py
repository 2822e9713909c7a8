"""Plateaus: exponents of d and T in their lengths."""

import numpy as np

from jaxattn.lab.books import around, mean, slug

NAMES = {"risk": "flow on the risk", "risk, small": "flow on the risk, small sizes"}
EXPECTED = {
    "risk": {"d": (around(0.489, 0.005), "0.489"), "T": (around(0.996, 0.005), "0.996")},
    "fresh batches": {"d": (around(0.5, 0.1), "1/2"), "T": (around(1.0, 0.1), "1")},
}


def check(results):
    """Fit log plateau = c + x log d + z log T to the cells of each block, for each seed."""
    for block, rows in lengths(results["study"]).groupby("block", sort=False):
        wide = rows.pivot_table(index=["data.dim", "data.length"], columns="seed", values="value")
        d, T = (np.log(wide.index.get_level_values(x).to_numpy(float)) for x in wide.index.names)
        fit = np.linalg.lstsq(np.stack([np.ones_like(d), d, T], 1), np.log(wide.to_numpy()), rcond=None)[0]
        for letter, samples in zip(("d", "T"), fit[1:], strict=True):
            expected, published = EXPECTED.get(block, {}).get(letter, (None, ""))
            text = f"{NAMES.get(block, block)}: exponent of {letter} in the length of the plateau"
            yield mean(f"{slug(block)}.{letter}", text, samples, expected=expected, published=published)


def lengths(study):
    """Return the length of the plateau of every run."""
    records = study.with_axes(study.records[study.records["metric"] == "plateau"])
    return records[records["step"] == records["step"].max()]


def tables(results):
    """Return the mean length for each d and T."""
    index = ["block", "data.dim", "data.length"]
    table = lengths(results["study"]).groupby(index)["value"].mean().reset_index()
    names = {"data.dim": "d", "data.length": "T", "value": "length of the plateau"}
    return {"Length of the plateau, mean over seeds": table.rename(columns=names)}
