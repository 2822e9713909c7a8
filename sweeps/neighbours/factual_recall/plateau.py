"""Analysis of factual recall: the plateau between learning relations and learning facts, and the end."""

import numpy as np

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.books.metrics import cells
from jaxattn.lab.results import judge


def plateau(results, item) -> Measured:
    """Measure the end of training, and the plateau: the slowest decrease of a loss between 3 and 1."""
    findings = cells(results, item, metrics=["test_accuracy", "test_loss", "relation_known"]).findings
    for cell, name in cell_names(results):
        records = results.records[results.records["cell"] == cell]
        metrics = ("test_loss", "test_accuracy", "relation_known")
        wide = records[records["metric"].isin(metrics)].pivot_table(
            index=["seed", "step"], columns="metric", values="value"
        )
        places = []
        for _, one in wide.groupby("seed"):
            one = one.droplevel("seed")
            loss, step = one["test_loss"].to_numpy(), one.index.to_numpy(float)
            fall = -np.gradient(loss, step)
            fall[(loss > 3) | (loss < 1)] = np.inf
            places.append(one.iloc[int(fall.argmin())].to_dict() | {"step": step[int(fall.argmin())]})
        for what in ("step", *metrics):
            samples = np.array([place[what] for place in places])
            words = f"{name}: {what.replace('_', ' ')} on the plateau"
            findings.append(Finding(words, judge.mean(samples), f"{len(samples)} seeds"))
    return Measured(findings, {})
