"""Linear attention: number of drops of the loss, the losses between them, and their times."""

import numpy as np
import pandas as pd
from regression_prompts import CONTEXT, saddles, spectrum

from jaxattn.lab.books import around, at_least, cells, mean

SLOW = 0.02  # as a fraction of the peak speed of the slower of the two adjacent drops
# Blocks that are added to those of the paper have no published number of drops or losses.
NAMES = {
    "mlp": "two-layer network on cubic features",
    "merged, white": "merged, white x",
    "merged, more prompts": "merged, 80,000 prompts",
    "separate, smaller start": "separate, smaller initial weights",
}
QUARTER = (around(0.25, 0.025), "1/4", "published")
DROPS = {
    "merged": QUARTER,
    "mlp": QUARTER,
    "merged, white": QUARTER,
    "separate": (around(1.0, 0.1), "1", "published"),
    "D = 8, model.rank = 1": (around(1.0, 0.1), "1", "published"),
    "D = 8, model.rank = 2": (around(0.5, 0.1), "1/2", "beyond"),
    "D = 8, model.rank = 4": (around(0.25, 0.1), "1/4", "beyond"),
    "D = 8, model.rank = 8": (around(0.125, 0.1), "1/8", "beyond"),
}
LOSSES = ("separate", "merged", "mlp", "merged, white", "D = 8, model.rank = 1")
LEARNED = {"expected": around(3.8, 0.5), "published": "3.8 of 6 seeds in the figure"}


def check(results):
    """Measure drops per learned component, plateau losses divided by their closed form, and times."""
    for cell in cells(results["study"]):
        name, loss = title(cell), curves(cell, "loss")
        seeds = {seed: plateaus(loss[seed].to_numpy(), levels(cell)) for seed in loss}
        about = LEARNED if cell.name == "separate" else {}
        learned = [learned for learned, _ in seeds.values()]
        yield mean(f"{cell.id}.learned", f"{name}: components learned", learned, **about)
        expected, published, basis = DROPS.get(cell.name, (None, "", "published"))
        about = {"expected": expected, "published": published, "basis": basis}
        ends = [(len(found) - 1) / learned for learned, found in seeds.values() if learned]
        yield mean(f"{cell.id}.drops", f"{name}: drops per learned component", ends, **about)
        if cell.name == "separate":
            text = f"{name}: share of plateaus with the m largest components"
            parts = [curves(cell, f"component_{d + 1}") for d in range(dimension(cell))][::-1]
            shares = [in_order(parts, seed, found) for seed, (_, found) in seeds.items()]
            yield mean(f"{cell.id}.ordered", text, shares, expected=at_least(0.9), published="1")
        about = {"expected": around(1.0, 0.02), "published": "1"} if cell.name in LOSSES else {}
        for m, ratio in losses(cell, loss, seeds).items():
            if len(ratio) >= 2:
                text = f"{name}: loss on plateau {m} / closed form"
                yield mean(f"{cell.id}.plateau.{m}", text, ratio, **about)
    yield from times(results["study"])


def title(cell):
    """Return the name of a cell for readers."""
    name = NAMES.get(cell.name, cell.name)
    return name.replace("D = 8, model.rank = ", "separate, D = 8, rank ")


def dimension(cell):
    """Return the dimension D of the inputs."""
    return 8 if "D = 8" in cell.name else 4


def levels(cell):
    """Return the losses at the saddles, in closed form."""
    return saddles(dimension(cell), "white" in str(cell.run.settings(cell.cell)))


def curves(cell, metric: str) -> pd.DataFrame:
    """Return a metric of a cell by step and seed."""
    rows = cell.records[cell.records["metric"] == metric]
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


def losses(cell, loss, seeds):
    """Return the losses on each plateau, divided by their closed form, over the seeds that have it."""
    return {
        m: [loss[seed].iloc[found[m]] / level for seed, (_, found) in seeds.items() if m in found]
        for m, level in enumerate(levels(cell))
    }


def in_order(parts, seed, found):
    """Return the share of a seed's plateaus m on which exactly the m largest components are learned."""
    ones = [(m, [part[seed].iloc[place] for part in parts]) for m, place in found.items()]
    return np.mean([np.allclose(x, np.arange(len(parts)) < m, rtol=0, atol=0.1) for m, x in ones])


def half(values: pd.Series) -> float:
    """Return the interpolated step at which an increasing metric reaches 1/2."""
    last = int((values.to_numpy() >= 0.5).argmax())
    return float(np.interp(0.5, values.iloc[last - 1 : last + 1], values.index[last - 1 : last + 1]))


def times(study):
    """Compare the half time of merged attention with its closed form, and with the half time of the MLP."""
    every = {cell.name: cell for cell in cells(study)}
    average = {
        name: sum(curves(every[name], f"component_{d}") for d in range(1, 5)) / 4
        for name in ("merged", "mlp", "merged, white")
    }
    steps = {name: np.array([half(values[seed]) for seed in values]) for name, values in average.items()}
    value = spectrum(4, True)[0]
    slope = CONTEXT * value**2 * 2  # ‖E[y z]‖; the factor 2 is √D with D = 4
    end = 2 / (value * (CONTEXT + 1 + 1 / value))
    begun = curves(every["merged, white"], "growing").iloc[0].to_numpy()
    predicted = np.log(end / begun - 1) / (4 * slope * 0.001)
    text = "merged, white x: time of half the drop / closed form"
    ratio = steps["merged, white"] / predicted
    yield mean("half_time", text, ratio, expected=around(1.0, 0.05), published="1")
    text = "merged: time of half the drop / that of the MLP"
    ratio = steps["merged"] / steps["mlp"]
    yield mean("half_time_mlp", text, ratio, expected=around(1.0, 0.02), published="1")


def tables(results):
    """Return how many seeds have each plateau."""
    rows = []
    for cell in cells(results["study"]):
        loss = curves(cell, "loss")
        seeds = {seed: plateaus(loss[seed].to_numpy(), levels(cell)) for seed in loss}
        found = losses(cell, loss, seeds)
        for m, level in enumerate(levels(cell)):
            rows.append({"": title(cell), "m": m, "closed form": level, "seeds on it": len(found[m])})
    return {"Plateaus of the loss": pd.DataFrame(rows)}
