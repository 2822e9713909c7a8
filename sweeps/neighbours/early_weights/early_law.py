"""Analysis of the early weights: comparison with closed forms, and dependence on the width."""

import numpy as np
import pandas as pd
from corpus_statistics import COMPARED, width_law

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge


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


def early(results, item, *, step: int = 8, limit: float = 0.9) -> Measured:
    """Compare weights at `step` with their closed forms, and closed forms with those at infinite width."""
    table = results.records.pivot_table(index=["metric", "cell", "step", "seed"], values="value")["value"]
    config = results.manifest["config"]
    findings, widths = [], {name: {} for name in COMPARED}

    def add(name: str, samples) -> None:
        samples = np.asarray(samples)
        findings.append(Finding(name, judge.mean(samples), f"{len(samples)} seeds"))

    for cell, name in cell_names(results):
        if name == "one-hot":
            factors = powers(step, config["phases"][0]["step_size"])
            for part in COMPARED:
                add(f"{part}: cosine after {step} steps", table[f"cosine_{part}", cell, step])
                add(f"{part}: size / closed form", table[f"factor_{part}", cell, step] / factors[part])
            add(f"output without frequencies: cosine after {step} steps", table["cosine_bigrams", cell, step])
            for part in COMPARED:
                seeds = table[f"cosine_{part}", cell].unstack("seed")
                add(
                    f"{part}: step at which the cosine is below {limit}",
                    [first_below(seeds[s], limit) for s in seeds],
                )
            continue
        dim = int(name.split("=")[-1])
        for part in COMPARED:
            add(f"d = {dim}, {part}: cosine after {step} steps", table[f"cosine_{part}", cell, step])
            widths[part][dim] = table[f"width_{part}", cell, step].to_numpy()
    for part, by_dim in widths.items():
        log_dim = np.log(list(by_dim))
        slopes = np.polyfit(log_dim, np.log(np.stack(list(by_dim.values()))), 1)[0]
        add(f"{part}: power of d in the distance from infinite width", slopes)
    words = config["blocks"]["embedded"]["data"]["words"] + 1  # with the token for all other words
    ratio = np.stack([found / width_law(words, dim) for dim, found in widths["output"].items()])
    add("output: distance from infinite width / √((words + 1)/d)", np.sqrt((ratio**2).mean(axis=0)))
    return Measured(findings, {})
