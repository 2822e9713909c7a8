"""Markov chains in context: phases of uniform, unigram and bigram predictions, and the two layers."""

import numpy as np

from jaxattn.lab.books import around, at_least, cells, mean

STRATEGIES = ["uniform", "unigram", "bigram"]
NAMES = {
    "k = 2": "two states",
    "k = 3": "three states",
    "k = 2, unigrams uninformative": "two states, uninformative unigrams",
}
# Loss of the best predictor from counts and the current token, relative to the unigram loss.
BEST = {"k = 2": 0.8207, "k = 3": 0.9145}
# Text, criterion, published value and basis by id. The criteria are those of the informative blocks.
MEASURED = {
    "loss_start": ("loss at the start / uniform loss", around(1.0, 0.05), "1", "published"),
    "loss_plateau": ("loss on the plateau / unigram loss", around(1.0, 0.1), "1", "published"),
    "loss_plateau_counts": (
        "loss on the plateau / loss of counts and current token",
        around(1.0, 0.1),
        "",
        "beyond",
    ),
    "order": (
        "nearest strategy is uniform, unigram, bigram in order",
        at_least(0.9),
        "1",
        "published",
    ),
    "loss_end": (
        "(loss at the end - bigram loss) / (unigram - bigram loss)",
        around(0.0, 0.2),
        "0",
        "published",
    ),
    "first_layer": (
        "first layer: attention to the previous token",
        at_least(0.5),
        "near 1",
        "published",
    ),
    "second_layer": (
        "second layer: attention after the current token",
        at_least(0.8),
        "near 1",
        "published",
    ),
    "layers": ("steps from the second to the first layer", at_least(0.0), "above 0", "published"),
    "drop": ("step of the bigram drop", None, "", "published"),
}


def check(results):
    """Compare losses with those of strategies on the same sequences, for each block."""
    drops = {}
    for cell in cells(results["study"]):
        seeds = [one_seed(run, BEST.get(cell.name, 0)) for run in cell.wide()]
        for id in seeds[0]:
            text, expected, published, basis = MEASURED[id]
            about = (
                {"expected": expected, "published": published, "basis": basis} if cell.name in BEST else {}
            )
            samples = np.array([seed[id] for seed in seeds], float)
            yield mean(f"{cell.id}.{id}", f"{NAMES[cell.name]}: {text}", samples, **about)
        drops[cell.name] = np.array([seed["drop"] for seed in seeds])
    ratio = drops["k = 2"] / drops["k = 2, unigrams uninformative"]
    text = "step of the bigram drop, two states / that with uninformative unigrams"
    yield mean("drop_ratio", text, ratio, expected=at_least(1.0), published="above 1")


def first_step(values, threshold) -> float:
    """Return the first step at which a series exceeds a threshold, NaN if it never does."""
    above = values.to_numpy() > threshold
    return float(values.index[above.argmax()]) if above.any() else np.nan


def one_seed(run, best: float) -> dict[str, float]:
    """Measure one seed from its metrics by step; `best` is as in `BEST`, or 0 if unknown."""
    uniform, unigram, bigram = (run[f"{name}_loss"].iloc[0] for name in STRATEGIES)
    loss = run["kl_truth"]
    on_plateau = (loss < (uniform + unigram) / 2) & (loss > (unigram + bigram) / 2)
    nearest = run[[f"kl_{name}" for name in STRATEGIES]].to_numpy().argmin(axis=1)
    found = {"loss_start": loss.iloc[0] / uniform}
    if best:
        plateau = loss[on_plateau].median()
        found["loss_plateau"] = plateau / unigram
        found["loss_plateau_counts"] = plateau / (best * unigram)
        every = list(np.unique(nearest)) == [0, 1, 2]
        found["order"] = every and bool((np.diff(nearest) >= 0).all())
    found["loss_end"] = (loss.iloc[-1] - bigram) / (unigram - bigram)
    found["first_layer"] = run["previous"].iloc[-1]
    found["second_layer"] = run["after_same"].iloc[-1]
    layers = [
        first_step(run[name], 0.9 * run[name].iloc[0] + 0.1 * run[name].iloc[-1])
        for name in ("previous", "after_same")
    ]
    found["layers"] = layers[0] - layers[1]
    found["drop"] = first_step(-loss, -(unigram + bigram) / 2)
    return found
