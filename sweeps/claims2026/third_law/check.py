"""Local exponents of the test loss and the training loss, for each temperature."""

import pandas as pd

from jaxattn.lab.books import Finding, cells
from jaxattn.lab.results import power_laws


def name(cell):
    """Return the name of a cell for readers."""
    return cell.name.replace("data.temperature", "temperature")


def check(results):
    """Return the exponents of the last three decades, without a criterion."""
    study = results["study"]
    for metric, words in (("test_loss", "loss on test examples"), ("loss", "loss on the training set")):
        laws = power_laws(study, metric)
        for cell in cells(study):
            if metric == "loss" and cell["block"] == "fresh":
                continue
            for row in laws[laws["cell"] == cell.cell].tail(3).to_dict("records"):
                span = f"steps {row['from']:.0f} to {row['to']:.0f}"
                text = f"{name(cell)}, {span}: exponent of the {words}"
                bounds, id = (row["low"], row["high"]), f"{cell.id}.{metric}.{row['to']:.0f}"
                yield Finding(id, text, row["exponent"], bounds, seeds=int(row["n"]), basis="beyond")


def tables(results):
    """Return all local exponents."""
    laws = power_laws(results["study"], "test_loss")
    return {"Local exponents of the loss on test examples": pd.DataFrame(laws).round(4)}
