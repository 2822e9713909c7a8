"""Analysis of the drops of the loss: their number, the losses between them, and their times."""

import numpy as np
import pandas as pd
from regression_prompts import CONTEXT, saddles, spectrum

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge

SLOW = 0.02  # as a fraction of the peak speed of the slower of the two adjacent drops


def curves(results, cell: int, metric: str) -> pd.DataFrame:
    """Return a metric of a cell by step and seed."""
    rows = results.records[(results.records["cell"] == cell) & (results.records["metric"] == metric)]
    return rows.pivot(index="step", columns="seed", values="value")


def plateaus(loss: np.ndarray, levels: np.ndarray) -> tuple[int, dict[int, int]]:
    """Return the number of learned components, and the index of the slowest point of each plateau.

    The key of a plateau is the number of components that are learned before it.
    """
    speed = -np.gradient(loss)
    edges = (levels[1:] + levels[:-1]) / 2
    learned = int((loss[-1] < edges).sum())
    level = (loss[:, None] < edges).sum(axis=1)
    found = {0: 0, learned: len(loss) - 1} if learned else {0: 0}
    for m in range(1, learned):
        inside = np.flatnonzero(level == m)
        if len(inside) < 3:
            continue
        slowest = inside[np.abs(speed[inside]).argmin()]
        before, after = speed[:slowest].max(), speed[slowest:].max()
        if speed[slowest] < SLOW * min(before, after):
            found[m] = int(slowest)
    return learned, found


def half(values: pd.Series) -> float:
    """Return the interpolated step at which an increasing metric reaches 1/2."""
    last = int((values.to_numpy() >= 0.5).argmax())
    return float(np.interp(0.5, values.iloc[last - 1 : last + 1], values.index[last - 1 : last + 1]))


def drops(results, item) -> Measured:
    """Measure drops per learned component, and plateau losses divided by their closed form."""
    findings, rows = [], []

    def add(name: str, samples) -> None:
        findings.append(Finding(name, judge.mean(np.array(samples, float)), f"{len(samples)} seeds"))

    for cell, name in cell_names(results):
        data = results.manifest["cells"][cell]["settings"]
        dim = 8 if "D = 8" in name else 4
        levels = saddles(dim, "white" in str(data))
        loss = curves(results, cell, "loss")
        parts = [curves(results, cell, f"component_{d + 1}") for d in range(dim)]
        seeds = {seed: plateaus(loss[seed].to_numpy(), levels) for seed in loss}
        add(f"{name}: components learned", [learned for learned, _ in seeds.values()])
        ends = [(len(found) - 1) / learned for learned, found in seeds.values() if learned]
        add(f"{name}: drops per learned component", ends)
        if name == "separate":
            ordered = []
            for seed, (_, found) in seeds.items():
                ones = [(m, [part[seed].iloc[place] for part in parts[::-1]]) for m, place in found.items()]
                ordered.append(
                    np.mean([np.allclose(x, np.arange(dim) < m, rtol=0, atol=0.1) for m, x in ones])
                )
            add(f"{name}: share of plateaus with the m largest components", ordered)
        for m, level in enumerate(levels):
            at = {seed: found[m] for seed, (_, found) in seeds.items() if m in found}
            ratio = [loss[seed].iloc[place] / level for seed, place in at.items()]
            if len(ratio) >= 2:
                add(f"{name}: loss on plateau {m} / closed form", ratio)
            rows.append({"": name, "m": m, "closed form": level, "seeds on it": len(ratio)})
    findings += times(results)
    return Measured(findings, {"Plateaus of the loss": pd.DataFrame(rows)})


def times(results) -> list[Finding]:
    """Compare the half time of merged attention with its closed form, and with the half time of the MLP."""
    cells = {name: cell for cell, name in cell_names(results)}
    mean = {
        name: sum(curves(results, cells[name], f"component_{d}") for d in range(1, 5)) / 4
        for name in ("merged", "mlp", "merged, white")
    }
    steps = {name: np.array([half(values[seed]) for seed in values]) for name, values in mean.items()}
    value = spectrum(4, True)[0]
    slope = CONTEXT * value**2 * 2  # ‖E[y z]‖; the factor 2 is √D with D = 4
    end = 2 / (value * (CONTEXT + 1 + 1 / value))
    begun = curves(results, cells["merged, white"], "growing").iloc[0].to_numpy()
    predicted = np.log(end / begun - 1) / (4 * slope * 0.001)
    found = {
        "merged, white: half time / closed form": steps["merged, white"] / predicted,
        "merged: half time / that of the MLP": steps["merged"] / steps["mlp"],
    }
    return [Finding(name, judge.mean(x), f"{len(x)} seeds") for name, x in found.items()]
