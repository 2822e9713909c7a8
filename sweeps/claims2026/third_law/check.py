"""Local exponents of the test loss and the training loss, for each temperature."""

import pandas as pd

from jaxattn.lab.books import Finding, at_least, cells
from jaxattn.lab.results import power_laws


def name(cell):
    """Return the name of a cell for readers."""
    return cell.name.replace("data.temperature", "temperature")


def check(results):
    """Return the exponents of the last three decades; on a fixed training set, the test loss rises."""
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
                rises = id == "fixed-training-set.test_loss.10000"
                about = {"expected": at_least(0) if rises else None, "basis": "beyond"}
                yield Finding(id, text, row["exponent"], bounds, seeds=int(row["n"]), **about)


def tables(results):
    """Return all local exponents."""
    laws = power_laws(results["study"], "test_loss")
    return {"Local exponents of the loss on test examples": pd.DataFrame(laws).round(4)}
