"""Measures of the population gradient: its norm at the constructions of k-gram estimators, and ratios."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import Finding, Measured, cells
from jaxattn.lab.results import judge


def norm(squares: np.ndarray) -> float:
    """Return the norm from unbiased estimates of its square, one per seed, which may be negative."""
    return float(np.sqrt(np.fmax(np.mean(squares), 0))) if len(squares) else np.nan


def left_out(function, *samples: np.ndarray) -> judge.Estimate:
    """Estimate a function of samples with one entry per seed, with a jackknife interval."""
    known = np.isfinite(samples).all(axis=0)
    samples = [np.asarray(x)[known] for x in samples]
    seeds = range(known.sum())
    return judge.jackknifed(
        [function(*samples), *(function(*(np.delete(x, s) for x in samples)) for s in seeds)]
    )


def ratio(squares: np.ndarray, others: np.ndarray) -> judge.Estimate:
    """Estimate the ratio of two norms from unbiased estimates of their squares, (S,) each."""
    return left_out(lambda x, y: norm(x) / max(norm(y), 1e-4), squares, others)


def power(lengths: list[int], *squares: np.ndarray) -> judge.Estimate:
    """Estimate the exponent a of a gradient norm proportional to T^-a."""
    return left_out(lambda *xs: -np.polyfit(np.log(lengths), np.log([norm(x) for x in xs]), 1)[0], *squares)


def vanishing(training, results, item, *, lengths: list[int]) -> Measured:
    """Compare the gradient at the constructions for increasing lengths and scales."""
    at = {}
    for cell in cells(results):
        settings = (cell["model.grams"], cell["data.length"], cell["model.scale"])
        at[settings] = cell.path("squared_gradient", "train")[:, 0]
    rows = [{"k": k, "T": T, "c": c, "gradient norm": norm(x)} for (k, T, c), x in sorted(at.items())]
    start = cells(training)[0].path("squared_gradient", "train")[:, 0]
    scales = sorted(c for k, T, c in at if (k, T) == (2, 256))
    findings = {}
    for k, name in ((1, "unigram"), (2, "bigram"), (3, "trigram")):
        last = at[k, max(T for n, T, c in at if n == k), scales[-1]]
        findings[f"{name} construction: gradient norm / that of the initial weights"] = ratio(last, start)
        if k > 1:
            found = power(lengths, *(at[k, T, scales[-1]] for T in lengths))
            findings[f"{name} construction: power of 1/T in the gradient norm"] = found
    found = ratio(at[2, 256, scales[-2]], at[2, 256, scales[0]])
    findings[f"bigram construction: gradient norm at c = {scales[-2]:g} / at c = {scales[0]:g}"] = found
    findings["trigram construction: gradient norm at c = 4 / at c = 12"] = ratio(
        at[3, 128, 4], at[3, 128, 12]
    )
    found = [Finding(name, x, f"{x.seeds} seeds") for name, x in findings.items()]
    return Measured(found, {"Gradient at the constructions": pd.DataFrame(rows)})
