"""Accuracy and loss during training."""

from jaxattn.lab.books import cells

NAMES = {"E at its start": "E fixed at its initialisation", "all trained": "all parameters trained"}


def metrics_by_step(results):
    """Return a table of the loss and the test accuracy, averaged over seeds, for each cell and step."""
    records = results.records[results.records["metric"].isin(["test_accuracy", "loss"])]
    wide = records.pivot_table(index=["cell", "step"], columns="metric", values="value").reset_index()
    names = wide.pop("cell").map({cell.cell: cell.name for cell in cells(results)})
    for before, after in NAMES.items():
        names = names.str.replace(before, after)
    wide.insert(0, "", names)
    return {"Training steps, mean over seeds": wide.rename(columns=lambda x: x.replace("_", " "))}
