"""MLP head on IMDB with other initialisations: does E·v rise or fall?"""

import pandas as pd

from jaxattn.lab.books import cells, share

# E·v rises in a seed if its Spearman correlation with the bin centres is at least RISING, and falls if it is
# at most -RISING.
RISING = 0.9
NAMES = {
    "as mlp_imdb": "settings of the MLP head on IMDB",
    "W and b stay": "W and b fixed",
    "W starts at 1": "W initialised to 1",
    "W and b stay at 1 and 0": "W and b fixed at 1 and 0",
}


def check(results):
    """Measure the shares of seeds in which E·v rises, and in which it falls, for each initialisation."""
    for cell in cells(results["study"]):
        each = cell.last("spearman_Ev_bins")
        for way, sign in (("rises", 1), ("falls", -1)):
            text = f"{NAMES[cell.name]}: share of seeds in which E·v {way}"
            yield share(f"{cell.id}.{way}", text, sign * each >= RISING)


def tables(results):
    """Return the correlation of every seed."""
    rows = [
        {
            "": NAMES[cell.name],
            "Spearman correlation of E·v with the bin centres, each seed": ", ".join(
                f"{x:.2f}" for x in cell.last("spearman_Ev_bins")
            ),
            "test accuracy": cell.final("test_accuracy").measured,
        }
        for cell in cells(results["study"])
    ]
    return {"Every seed": pd.DataFrame(rows)}
