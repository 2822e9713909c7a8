"""Fits of power laws in t: distance from the max-margin direction, and attention to the tokens 2, 3, ..."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge
from jaxattn.lab.results.fits import powers

FLOOR = 1e-6  # smaller distances are within the duality gap


def slopes(results, item) -> Measured:
    """Fit powers of t, and the decay rate of the distance, to the last decade of steps."""
    findings, rows = [], []
    for entry in results.manifest["cells"]:
        name, records = entry["settings"]["block"], results.records
        records = records[(records["cell"] == entry["cell"]) & (records["step"] > 0)]
        wide = {m: _wide(records, m) for m in ("one_minus_cosine", "log_off", "duality_gap")}
        distance = np.sqrt(2 * wide["one_minus_cosine"].clip(lower=0))
        t = distance.columns.to_numpy(float)
        late = t >= t[-1] / 10
        x, far = t[late], distance.loc[:, late].to_numpy()
        far = np.where(far > FLOOR, far, np.nan)
        off = -wide["log_off"].loc[:, late].to_numpy()
        rate = [-np.polyfit(x[np.isfinite(y)], np.log(y[np.isfinite(y)]), 1)[0] for y in far]
        for what, samples in (
            ("distance ~ t to the power -", -powers(x, far)),
            ("distance: fall of its logarithm a step", rate),
            ("-log attention off ~ t to the power", powers(x, off)),
            ("attention off ~ t to the power -", -powers(x, np.exp(-off))),
            ("duality gap", wide["duality_gap"].iloc[:, -1]),
        ):
            findings.append(Finding(f"{name}: {what}", judge.mean(samples), f"{len(distance)} seeds"))
        rows += [{"steps": name, "t": int(t), "distance": float(y.mean())} for t, y in distance.items()]
    table = pd.DataFrame(rows).pivot_table(index="steps", columns="t", values="distance", sort=False)
    table = table[[t for t in table.columns if np.log10(t) % 1 == 0]].reset_index()
    return Measured(findings, {"Distance to the max-margin direction at step t": table})


def _wide(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    return records[records["metric"] == metric].pivot_table(index="seed", columns="step", values="value")
