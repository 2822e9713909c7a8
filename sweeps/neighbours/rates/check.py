"""Rates: power laws in t of the distance from the max-margin direction, and of attention to other tokens."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import around, at_least, cells, mean, powers, within_factor

FLOOR = 1e-6  # smaller distances are within the duality gap
NAMES = {
    "gradient": "gradient steps",
    "normalised": "normalised steps",
    "Polyak": "Polyak steps",
    "rescaled every 5": "norm rescaled every 5 steps",
    "rescaled every 100": "norm rescaled every 100 steps",
}
TEXTS = {
    "distance": "decay exponent a, where distance ~ t^(-a)",
    "distance_per_step": "decrease of the logarithm of the distance per step",
    "log_attention": "exponent a of -log(attention on other tokens) ~ t^a",
    "attention": "exponent a of attention on other tokens ~ t^(-a)",
    "gap": "duality gap of the certified direction",
}
FAST = {
    "distance": (at_least(0.75), "3/4 at least, up to logarithms"),
    "log_attention": (around(1.0, 0.05), "e^(-t)"),
}
EXPECTED = {
    "gradient": {"attention": (around(1.0, 0.1), "")},
    "normalised": FAST,
    "Polyak": FAST,
    "rescaled every 5": {"distance_per_step": (within_factor(0.0365, 1.25), "exponential")},
    "rescaled every 100": {"distance_per_step": (within_factor(0.00182, 1.25), "exponential")},
}
GAP = {"gap": (around(0.0, 1e-8), "")}


def check(results):
    """Fit powers of t, and the decay rate of the distance, to the last decade of steps."""
    for cell in cells(results["study"]):
        distance, off = distances(cell), by_step(cell, "log_off")
        t = distance.columns.to_numpy(float)
        late = t >= t[-1] / 10
        x, far = t[late], distance.loc[:, late].to_numpy()
        far = np.where(far > FLOOR, far, np.nan)
        off = -off.loc[:, late].to_numpy()
        samples = {
            "distance": -powers(x, far),
            "distance_per_step": [
                -np.polyfit(x[np.isfinite(y)], np.log(y[np.isfinite(y)]), 1)[0] for y in far
            ],
            "log_attention": powers(x, off),
            "attention": -powers(x, np.exp(-off)),
            "gap": by_step(cell, "duality_gap").iloc[:, -1],
        }
        for id, text in TEXTS.items():
            expected, published = (EXPECTED[cell.name] | GAP).get(id, (None, ""))
            about = {"expected": expected, "published": published}
            yield mean(f"{cell.id}.{id}", f"{NAMES[cell.name]}: {text}", samples[id], **about)


def by_step(cell, metric):
    """Return a metric after step 0: one row per seed, one column per step."""
    records = cell.records[(cell.records["step"] > 0) & (cell.records["metric"] == metric)]
    return records.pivot_table(index="seed", columns="step", values="value")


def distances(cell):
    """Return the distances of W/‖W‖ from the certified direction by seed and step."""
    return np.sqrt(2 * by_step(cell, "one_minus_cosine").clip(lower=0))


def tables(results):
    """Return the mean distance at powers of ten of the step."""
    rows = [
        {"steps": NAMES[cell.name], "t": int(t), "distance": float(y.mean())}
        for cell in cells(results["study"])
        for t, y in distances(cell).items()
    ]
    table = pd.DataFrame(rows).pivot_table(index="steps", columns="t", values="distance", sort=False)
    table = table[[t for t in table.columns if np.log10(t) % 1 == 0]].reset_index()
    return {"Distance to the max-margin direction at step t": table}
