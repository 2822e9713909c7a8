"""Analysis of the phases of training: uniform, unigram and bigram predictions, and the two layers."""

import numpy as np

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge

STRATEGIES = ["uniform", "unigram", "bigram"]


def first_step(values, threshold) -> float:
    """Return the first step at which a series exceeds a threshold, NaN if it never does."""
    above = values.to_numpy() > threshold
    return float(values.index[above.argmax()]) if above.any() else np.nan


def one_seed(run, best: float) -> dict[str, float]:
    """Measure one seed from its metrics by step; `best` is as in `phases`, or 0 if unknown."""
    uniform, unigram, bigram = (run[f"{name}_loss"].iloc[0] for name in STRATEGIES)
    loss = run["kl_truth"]
    on_plateau = (loss < (uniform + unigram) / 2) & (loss > (unigram + bigram) / 2)
    nearest = run[[f"kl_{name}" for name in STRATEGIES]].to_numpy().argmin(axis=1)
    found = {"loss at the start / uniform loss": loss.iloc[0] / uniform}
    if best:
        plateau = loss[on_plateau].median()
        found["loss on the plateau / unigram loss"] = plateau / unigram
        found["loss on the plateau / loss of counts and current token"] = plateau / (best * unigram)
        found["nearest strategy is uniform, unigram, bigram in order"] = list(np.unique(nearest)) == [
            0,
            1,
            2,
        ] and bool((np.diff(nearest) >= 0).all())
    found["(loss at the end - bigram loss) / (unigram - bigram loss)"] = (loss.iloc[-1] - bigram) / (
        unigram - bigram
    )
    found["first layer: attention to the previous token"] = run["previous"].iloc[-1]
    found["second layer: attention after the current token"] = run["after_same"].iloc[-1]
    layers = [
        first_step(run[name], 0.9 * run[name].iloc[0] + 0.1 * run[name].iloc[-1])
        for name in ("previous", "after_same")
    ]
    found["steps from the second to the first layer"] = layers[0] - layers[1]
    found["step of the bigram drop"] = first_step(-loss, -(unigram + bigram) / 2)
    return found


def phases(results, item, *, best: dict[str, float]) -> Measured:
    """Compare losses with those of strategies on the same sequences, for each block.

    `best` maps a block to the loss of the best predictor from counts and the current token, relative to the
    unigram loss.
    """
    findings, drops = [], {}
    for cell, name in cell_names(results):
        records = results.records[results.records["cell"] == cell]
        wide = records.pivot_table(index=["seed", "step"], columns="metric", values="value")
        seeds = [one_seed(run.droplevel("seed"), best.get(name, 0)) for _, run in wide.groupby("seed")]
        for key in seeds[0]:
            samples = np.array([seed[key] for seed in seeds], float)
            findings.append(Finding(f"{name}: {key}", judge.mean(samples), f"{len(samples)} seeds"))
        drops[name] = np.array([seed["step of the bigram drop"] for seed in seeds])
    ratio = drops["k = 2"] / drops["k = 2, unigrams uninformative"]
    words = "step of the bigram drop, k = 2 / that with uninformative unigrams"
    return Measured([*findings, Finding(words, judge.mean(ratio), f"{len(ratio)} seeds")], {})
