"""Factual capacity: the largest load up to which facts are recalled, and its dependence on d."""

import numpy as np
import pandas as pd
from factual_capacity import number

from jaxattn.lab.books import around, mean, powers

RECALLED = 0.99


def check(results):
    """Fit the exponent of d in N log N at capacity, and measure the capacity at the largest d."""
    found = capacity(results["study"])
    d, load = np.array(list(found), float), np.array(list(found.values()))
    text = "exponent of d in N log N at capacity"
    exponent = 2 + powers(d, load.T)
    yield mean("exponent", text, exponent, expected=around(2.0, 0.1), published="2")
    text = f"d²/(N log N) at capacity, d = {d[-1]:g}"
    yield mean("inverse_load", text, 1 / load[-1], expected=around(1.3, 0.15), published="1.3")


def capacity(study):
    """Return the largest load with at least 99 % of facts recalled, (S,), for each d; NaN if all are."""
    records = study.with_axes(study.records[study.records["metric"] == "train_accuracy"])
    best = records.groupby(["data.dim", "data.load", "seed"])["value"].max().unstack("seed")
    rows = {}
    for d, table in best.groupby(level="data.dim"):
        loads = np.append(np.nan, table.index.get_level_values("data.load"))
        held = (table.to_numpy() >= RECALLED).cumprod(axis=0).sum(axis=0)
        rows[d] = np.where(held < len(loads) - 1, loads[held], np.nan)  # all facts recalled: grid too small
    return rows


def tables(results):
    """Return the capacity for each d."""
    found = capacity(results["study"])
    load = np.nanmean(np.array(list(found.values())), axis=1)
    table = pd.DataFrame({"d": list(found), "N log N / d²": load})
    table["N"] = [number(x, d) for d, x in table.itertuples(index=False)]
    return {"Capacity, mean over seeds": table}
