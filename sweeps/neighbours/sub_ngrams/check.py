"""Sub-n-grams: plateaus and their order, attention and gradients, and gradients at the constructions."""

import numpy as np
import pandas as pd
from vanishing import norm, power, ratio

from jaxattn.lab.books import around, at_least, cells, mean, of_estimate, share

GRAMS = {1: "unigram", 2: "bigram", 3: "trigram"}
LAGS = {1: "the previous token", 2: "the token before it"}
NEAR = 0.25  # as a fraction of the difference between adjacent losses
LENGTHS = [16, 32, 64, 128]
NAMES = {"n = 3": "AdamW", "n = 3, small start": "smaller initial Q and K", "n = 3, SGD": "gradient descent"}
PLATEAU, HALF = (around(0.0, 0.2), "0"), (at_least(0.5), "near 1")
MORE, ORDER = (at_least(1.0), "above 1"), (at_least(0.9), "1")
ADAM = {
    "order": ORDER,
    "position_1": PLATEAU,
    "position_2": PLATEAU,
    "end": PLATEAU,
    "steps_1": MORE,
    "steps_2": (at_least(3.0), "about 20"),
    "lag_1_2": HALF,
    "lag_2_2": (around(0.0, 0.1), "near 0"),
    "lag_1_end": HALF,
    "lag_2_end": HALF,
    "gradient_1": MORE,
    "gradient_2": MORE,
}
# Gradient descent was tried here. It passes the bigram level without a plateau.
SGD = {"order": ORDER, "position_1": PLATEAU, "steps_1": MORE, "gradient_1": MORE, "gradient_2": MORE}
VANISHING = {
    "unigram": (around(0.0, 0.01), "0"),
    "bigram": (around(0.0, 0.1), "0 in the limit"),
    "trigram": (around(0.0, 0.1), "0 in the limit"),
}


def texts():
    """Return the texts of the stages by id."""
    found = {"order": "nearest estimator is unigram, bigram, trigram in order", "end": "end: 3 - position"}
    for k in (1, 2):
        found[f"position_{k}"] = f"{GRAMS[k]} plateau: position - {k}"
        found[f"steps_{k}"] = f"steps on the {GRAMS[k]} plateau / in the drop to {GRAMS[k + 1]}s"
        drop = f"in the drop to {GRAMS[k + 1]}s / on the {GRAMS[k]} plateau"
        found[f"gradient_{k}"] = f"gradient norm {drop}"
    for lag, words in LAGS.items():
        found[f"lag_{lag}_2"] = f"bigram plateau: attention of a head to {words}"
        found[f"lag_{lag}_end"] = f"end: attention of a head to {words}"
    return found


TEXTS = texts()


def check(results):
    """Measure the stages of each block, and the gradients at the constructions."""
    for cell in cells(results["study"]):
        yield from stages(cell)
    yield from vanishing(results["study"], results["constructions"])


def stages(cell):
    """Measure the plateaus, their order, the attention and the gradients of a block."""
    criteria, basis = (SGD, "beyond") if cell.name.endswith("SGD") else (ADAM, "published")

    def about(id):
        expected, published = criteria.get(id, (None, ""))
        named = f"{cell.id}.{id}", f"{NAMES[cell.name]}: {TEXTS[id]}"
        known = {"expected": expected, "published": published, "basis": basis} if expected else {}
        return named, known

    runs = cell.wide()
    seeds = [one_seed(run) for run in runs]
    for id in [id for id in seeds[0] if any(np.isfinite(seed[id]) for seed in seeds)]:
        samples, (named, known) = np.array([seed[id] for seed in seeds], float), about(id)
        yield share(*named, samples == 1, **known) if id == "order" else mean(*named, samples, **known)
    for k in (1, 2):
        squares = np.array([squared_gradients(run, k) for run in runs])
        found, (named, known) = ratio(squares[:, 1], squares[:, 0]), about(f"gradient_{k}")
        if np.isfinite(found.value):
            yield of_estimate(*named, found, **known)


def positions(run: pd.DataFrame) -> np.ndarray:
    """Map test losses to positions: 0 to 3 at the losses of uniform, unigram, bigram, trigram predictions."""
    levels = [np.log(3), *(run[f"loss_{k}"].iloc[0] for k in GRAMS)]
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
    nearest = run[[f"divergence_{k}" for k in GRAMS]].to_numpy().argmin(axis=1) + 1
    found["order"] = float(list(np.unique(nearest)) == [1, 2, 3] and (np.diff(nearest) >= 0).all())
    for k in (1, 2):
        at = plateau(position, k)
        found[f"position_{k}"] = np.nan if at is None else position[at] - k
        near, drop = (np.abs(position - x) < NEAR for x in (k, k + 0.5))
        done = (position > k + 1 - NEAR).any()
        found[f"steps_{k}"] = near.sum() / max(drop.sum(), 1) if done else np.nan
        if k == 2:
            for lag in LAGS:
                found[f"lag_{lag}_2"] = np.nan if at is None else run[f"lag_{lag}"].iloc[at]
    found["end"] = 3 - position[-1]
    for lag in LAGS:
        found[f"lag_{lag}_end"] = run[f"lag_{lag}"].iloc[-1]
    return found


def squared_gradients(run: pd.DataFrame, k: int) -> list[float]:
    """Return the mean squared gradient on plateau k and in the drop after it, each NaN if it is absent."""
    position, square = positions(run), run["squared_gradient"]
    return [square[np.abs(position - x) < NEAR].mean() for x in (k, k + 0.5)]


def vanishing(training, constructions):
    """Compare the gradient at the constructions for increasing lengths and scales."""
    at = gradients(constructions)
    start = cells(training)[0].path("squared_gradient", "train")[:, 0]
    scales = sorted(c for k, T, c in at if (k, T) == (2, 256))
    for k, name in GRAMS.items():
        last = at[k, max(T for n, T, c in at if n == k), scales[-1]]
        text = f"{name} construction: gradient norm / that of the initial weights"
        expected, published = VANISHING[name]
        found = ratio(last, start)
        yield of_estimate(f"{name}.gradient", text, found, expected=expected, published=published)
        if k > 1:
            found = power(LENGTHS, *(at[k, T, scales[-1]] for T in LENGTHS))
            text = f"{name} construction: exponent of 1/T in the gradient norm"
            about = {"expected": at_least(0.0), "published": "above 0"}
            yield of_estimate(f"{name}.exponent", text, found, **about)
    text = f"bigram construction: gradient norm at c = {scales[-2]:g} / at c = {scales[0]:g}"
    found = ratio(at[2, 256, scales[-2]], at[2, 256, scales[0]])
    about = {"expected": around(0.0, 0.5), "published": "0 in the limit"}
    yield of_estimate("bigram.scale", text, found, **about)
    text = "trigram construction: gradient norm at c = 4 / at c = 12"
    yield of_estimate("trigram.scale", text, ratio(at[3, 128, 4], at[3, 128, 12]))


def gradients(constructions):
    """Return the squared gradients at the constructions, (S,), by k, T and c."""
    keys = ("model.grams", "data.length", "model.scale")
    return {
        tuple(cell[key] for key in keys): cell.path("squared_gradient", "train")[:, 0]
        for cell in cells(constructions)
    }


def tables(results):
    """Return the gradient norms on plateaus and in drops, and at the constructions."""
    rows = []
    for cell in cells(results["study"]):
        for k in (1, 2):
            squares = np.array([squared_gradients(run, k) for run in cell.wide()])
            near, drop = (norm(x[np.isfinite(x)]) for x in squares.T)
            row = {"": NAMES[cell.name], "plateau": GRAMS[k], "on the plateau": near, "in the drop": drop}
            rows.append(row)
    at = sorted(gradients(results["constructions"]).items())
    built = [{"k": k, "T": T, "c": c, "gradient norm": norm(x)} for (k, T, c), x in at]
    return {
        "Norm of the population gradient": pd.DataFrame(rows),
        "Gradient at the constructions": pd.DataFrame(built),
    }
