"""Early weights: comparison with closed forms after a few steps, and dependence on the width."""

import numpy as np
import pandas as pd
from corpus_statistics import COMPARED, width_law

from jaxattn.lab.books import around, at_least, cells, mean

STEP, LIMIT = 8, 0.9
NAMES = {"output": "output matrix", "value": "value matrix", "score": "score matrix"}
COSINE = {"expected": at_least(0.99), "published": "1 to leading order"}
SIZE = {"expected": around(1.0, 0.03), "published": "1 to leading order"}
# Exponents of d, derived here.
POWERS = {"output": around(-0.5, 0.05), "value": around(-0.5, 0.1), "score": around(-0.5, 0.1)}


def check(results):
    """Compare the weights with their closed forms, and the closed forms with those at infinite width."""
    study = results["study"]
    table = study.records.pivot_table(index=["metric", "cell", "step", "seed"], values="value")["value"]
    widths = {name: {} for name in COMPARED}
    for cell in cells(study):
        if cell.name == "one-hot":
            yield from one_hot(table, cell)
            continue
        dim = int(cell.name.split("=")[-1])
        for part in COMPARED:
            text = f"d = {dim}, {NAMES[part]}: cosine after {STEP} steps"
            samples = table[f"cosine_{part}", cell.cell, STEP]
            yield mean(f"d={dim}.{part}.cosine", text, samples, **COSINE)
            widths[part][dim] = table[f"width_{part}", cell.cell, STEP].to_numpy()
    for part, by_dim in widths.items():
        slopes = np.polyfit(np.log(list(by_dim)), np.log(np.stack(list(by_dim.values()))), 1)[0]
        text = f"{NAMES[part]}: exponent of d in the distance from infinite width"
        yield mean(f"{part}.exponent", text, slopes, expected=POWERS[part], basis="beyond")
    words = (
        study.manifest["config"]["blocks"]["embedded"]["data"]["words"] + 1
    )  # with one for all other words
    ratio = np.stack([found / width_law(words, dim) for dim, found in widths["output"].items()])
    text = "output matrix: distance from infinite width / √((words + 1)/d)"
    samples = np.sqrt((ratio**2).mean(axis=0))
    yield mean("output.width", text, samples, expected=around(1.0, 0.1), basis="beyond")


def one_hot(table, cell):
    """Compare direction and size of the weights with the closed forms, for one-hot embeddings."""
    factors = powers(STEP, cell.run.manifest["config"]["phases"][0]["step_size"])
    for part in COMPARED:
        text, place = f"{NAMES[part]}: cosine after {STEP} steps", (cell.cell, STEP)
        yield mean(f"{part}.cosine", text, table[f"cosine_{part}", *place], **COSINE)
        samples = table[f"factor_{part}", *place] / factors[part]
        yield mean(f"{part}.size", f"{NAMES[part]}: size / closed form", samples, **SIZE)
    text = f"output matrix without frequencies: cosine after {STEP} steps"
    yield mean("output_without_frequencies.cosine", text, table["cosine_bigrams", cell.cell, STEP], **COSINE)
    for part in COMPARED:
        seeds = table[f"cosine_{part}", cell.cell].unstack("seed")
        text = f"{NAMES[part]}: step at which the cosine is below {LIMIT}"
        yield mean(f"{part}.end", text, [first_below(seeds[s], LIMIT) for s in seeds])


def powers(step: int, eta: float) -> dict[str, float]:
    """Return the factors of the leading terms of O, V and W after `step` steps from zero.

    In each step, the factor of O grows by η, that of V by η times that of O, and that of W by η times both.
    """
    k = np.arange(step)
    return {
        "output": eta * step,
        "value": eta**2 * k.sum(),
        "score": eta**4 * (k**2 * (k - 1) / 2).sum(),
    }


def first_below(values: pd.Series, limit: float) -> float:
    """Return the first step after step 0 at which values are below the limit; NaN if there is none."""
    below = values.index[(values < limit) & (values.index > 0)]
    return float(below[0]) if len(below) else np.nan
