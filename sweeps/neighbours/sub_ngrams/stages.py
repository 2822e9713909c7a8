"""Analysis of the stages of training: plateaus, their order, attention and gradients."""

import numpy as np
import pandas as pd
from vanishing import norm, ratio

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge

NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}
NEAR = 0.25  # as a fraction of the difference between adjacent losses


def by_step(results, cell: int) -> dict[int, pd.DataFrame]:
    """Return the metrics of a cell by step, for each seed."""
    records = results.records[results.records["cell"] == cell]
    wide = records.pivot_table(index=["seed", "step"], columns="metric", values="value")
    return {seed: run.droplevel("seed") for seed, run in wide.groupby("seed")}


def positions(run: pd.DataFrame) -> np.ndarray:
    """Map test losses to positions: 0 to 3 at the losses of uniform, unigram, bigram, trigram predictions."""
    levels = [np.log(3), *(run[f"loss_{k}"].iloc[0] for k in NAMES)]
    loss = run["test_loss"].to_numpy()
    inside = np.interp(-loss, -np.array(levels), np.arange(4.0))
    beyond = np.fmax(levels[3] - loss, 0) / (levels[2] - levels[3])
    return inside + beyond


def plateau(position: np.ndarray, k: int) -> int | None:
    """Return the row where the loss changes most slowly while its position is nearest to k, or None."""
    rows = np.flatnonzero(np.abs(position - k) < 0.5)
    return int(rows[np.abs(np.gradient(position))[rows].argmin()]) if len(rows) else None


def one_seed(run: pd.DataFrame) -> dict[str, float]:
    """Measure the stages of one seed."""
    position, found = positions(run), {}
    nearest = run[[f"divergence_{k}" for k in NAMES]].to_numpy().argmin(axis=1) + 1
    found["nearest estimator is unigram, bigram, trigram in order"] = float(
        list(np.unique(nearest)) == [1, 2, 3] and (np.diff(nearest) >= 0).all()
    )
    for k in (1, 2):
        at = plateau(position, k)
        name, lower = NAMES[k], NAMES[k + 1]
        found[f"{name} plateau: position - {k}"] = np.nan if at is None else position[at] - k
        near, drop = (np.abs(position - x) < NEAR for x in (k, k + 0.5))
        done = (position > k + 1 - NEAR).any()
        ratio = near.sum() / max(drop.sum(), 1) if done else np.nan
        found[f"steps on the {name} plateau / in the drop to {lower}s"] = ratio
        if k == 2:
            for lag, words in ((1, "the previous token"), (2, "the token before it")):
                value = np.nan if at is None else run[f"lag_{lag}"].iloc[at]
                found[f"{name} plateau: attention of a head to {words}"] = value
    found["end: 3 - position"] = 3 - position[-1]
    for lag, words in ((1, "the previous token"), (2, "the token before it")):
        found[f"end: attention of a head to {words}"] = run[f"lag_{lag}"].iloc[-1]
    return found


def stages(results, item) -> Measured:
    """Measure the plateaus, their order, the attention and the gradients of each block."""
    findings, rows = [], []
    for cell, name in cell_names(results):
        runs = by_step(results, cell)
        seeds = [one_seed(run) for run in runs.values()]
        known = [key for key in seeds[0] if any(np.isfinite(seed[key]) for seed in seeds)]
        for key in known:
            samples = np.array([seed[key] for seed in seeds], float)
            found = judge.share(samples == 1) if key.startswith("nearest") else judge.mean(samples)
            findings.append(Finding(f"{name}: {key}", found, f"{found.seeds} seeds"))
        for k in (1, 2):
            squares = np.array([squared_gradients(run, k) for run in runs.values()])
            found = ratio(squares[:, 1], squares[:, 0])
            words = f"gradient norm in the drop to {NAMES[k + 1]}s / on the {NAMES[k]} plateau"
            if np.isfinite(found.value):
                findings.append(Finding(f"{name}: {words}", found, f"{found.seeds} seeds"))
            near, drop = (norm(x[np.isfinite(x)]) for x in squares.T)
            rows.append({"": name, "plateau": NAMES[k], "on the plateau": near, "in the drop": drop})
    return Measured(findings, {"Norm of the population gradient": pd.DataFrame(rows)})


def squared_gradients(run: pd.DataFrame, k: int) -> list[float]:
    """Return the mean squared gradient on plateau k and in the drop after it, each NaN if it is absent."""
    position, square = positions(run), run["squared_gradient"]
    return [square[np.abs(position - x) < NEAR].mean() for x in (k, k + 0.5)]
