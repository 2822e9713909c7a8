"""Measures based on metrics: final values in each cell, and the exponent of d in the one-step law."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.lab.books.book import Item
from jaxattn.lab.books.findings import Finding, Measured
from jaxattn.lab.results import judge
from jaxattn.lab.results.fits import power_law
from jaxattn.lab.results.judge import Estimate
from jaxattn.lab.results.labels import setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import last_steps

# Metrics measured by `along`, and the name of the finding returned by `law`.
ALONG = ("test_accuracy", "train_accuracy", "loss")
POWER = "power of d in the error per unit of η0"


def cells(results: Run, item: Item, *, metrics: Sequence[str]) -> Measured:
    """Measure the given metrics at the end of the last phase in each cell."""
    findings = [last(results, cell, metric, name) for metric in metrics for cell, name in cell_names(results)]
    return Measured(findings, {})


def along(results: Run, item: Item) -> Measured:
    """Measure final accuracy and loss in the last phase of each cell, and tabulate both during training."""
    findings = [last(results, cell, metric, name) for cell, name in cell_names(results) for metric in ALONG]
    records = results.records[results.records["metric"].isin(["test_accuracy", "loss"])]
    wide = records.pivot_table(index=["cell", "step"], columns="metric", values="value").reset_index()
    names = wide.pop("cell").map(dict(cell_names(results)))
    wide.insert(0, "", names)
    wide = wide.rename(columns=lambda x: x.replace("_", " "))
    return Measured(findings, {"Along the way, mean over seeds": wide})


def law(results: Run, item: Item) -> Measured:
    """Fit the exponent of d in the error of the one-step law."""
    records = last_steps(results.records)
    records = results.with_axes(records[records["metric"] == "one_step_error"])
    wide = records.pivot_table(index="model.dim", columns="seed", values="value").sort_index()
    fit = power_law(wide.index.to_numpy(float), wide.to_numpy(float))
    finding = Finding(POWER, fit.estimate, f"{fit.seeds} seeds")
    errors = {"d": list(wide.index), "error per unit of η0": wide.mean(axis=1).tolist()}
    return Measured([finding], {"Error of the one-step law": pd.DataFrame(errors)})


def named_metric(metric: str, name: str = "") -> str:
    """Return the finding name for a metric, prefixed with the cell name `name` unless it is empty."""
    words = metric.replace("_", " ")
    return f"{name}: {words}" if name else words


def last(results: Run, cell: int, metric: str, of: str = "") -> Finding:
    """Measure a metric at the end of a cell's last phase; `of` is a prefix for the finding's name."""
    name, samples = named_metric(metric, of), values(results, cell, metric)
    if not len(samples):
        return Finding(name, Estimate(np.nan, np.nan, np.nan), "not measured")
    between = (0.0, 1.0) if metric.endswith(("accuracy", "mass")) else judge.ANYTHING
    found = judge.mean(samples, between)
    if found.missing:
        return Finding(name, found, f"{found.seeds} of {len(samples)} seeds, which have a value")
    return Finding(name, found, "one seed" if len(samples) == 1 else f"{len(samples)} seeds")


def values(results: Run, cell: int, metric: str) -> NDArray[np.float64]:
    """Return the values of a metric at the end of a cell's last phase, one per seed."""
    records = results.records
    records = records[(records["cell"] == cell) & (records["phase"] == last_phase(results, cell))]
    return last_steps(records[records["metric"] == metric])["value"].to_numpy(float)


def cell_names(results: Run) -> list[tuple[int, str]]:
    """Return (index, name) for each cell."""
    return [(int(entry["cell"]), cell_name(entry["settings"])) for entry in results.manifest["cells"]]


def cell_name(settings: Mapping[str, object]) -> str:
    """Return a cell's name, built from its block and its other settings."""
    others = [f"{key} = {setting(x)}" for key, x in settings.items() if key != "block"]
    block = settings.get("block")
    return ", ".join([*([str(block)] if block else []), *others])


def last_phase(results: Run, cell: int) -> str:
    """Return the name of the last phase in a cell."""
    return str(results.records["phase"][results.records["cell"] == cell].iloc[-1])
