"""Random attention layers: moments at finite width compared with those of the limit, and power laws."""

import numpy as np

from jaxattn.lab.books import around, mean

SCORE = {"expected": around(1.0, 0.02), "published": "1 for large n"}
KURTOSIS = {"expected": around(1.0, 0.3), "published": "1 for large n"}
HEADS = {"expected": around(1.0, 0.05), "published": "1"}


def check(results):
    """Compare moments of outputs and scores with closed forms, and fit power laws in width and heads."""
    by_width, by_heads = tables_by(results["study"])
    variance, kurtosis = limit_moments(2)
    widths = by_width["variance"].index
    for n in widths:
        text = f"n = {n}: variance of a score of a token with itself / closed form"
        yield mean(f"n={n}.own_score", text, by_width["own_score"].loc[n] / (1 + 2 / n) ** 2, **SCORE)
        text = f"n = {n}: variance of a score of two tokens / closed form"
        yield mean(f"n={n}.other_score", text, by_width["other_score"].loc[n] / (1 + 2 / n), **SCORE)
    n = widths[-1]
    text = f"n = {n}: variance of the output / limit"
    yield mean(f"n={n}.variance", text, by_width["variance"].loc[n] / variance, **SCORE)
    text = f"n = {n}: excess kurtosis / limit"
    yield mean(f"n={n}.kurtosis", text, by_width["excess_kurtosis"].loc[n] / kurtosis, **KURTOSIS)
    slopes = exponents(by_width["from_limit"].iloc[:3])
    text = "exponent of n in the divergence from the limit"
    yield mean("n.exponent", text, slopes, expected=around(-2.0, 0.3), basis="beyond")
    for heads in by_heads["limit_excess_kurtosis"].index:
        ratio = by_heads["limit_excess_kurtosis"].loc[heads] / limit_moments(heads)[1]
        text = f"limit, {heads} heads: excess kurtosis / closed form"
        yield mean(f"h={heads}.kurtosis", text, ratio, **HEADS)
    slopes = exponents(by_heads["limit_from_normal"])
    text = "exponent of H in the divergence of the limit from a normal law"
    yield mean("h.exponent", text, slopes, expected=around(-2.0, 0.2), basis="beyond")


def exponents(table):
    """Fit the exponent of the index in a table with one column per seed, (S,)."""
    return np.polyfit(np.log(table.index.to_numpy(float)), np.log(table.to_numpy()), 1)[0]


def tables_by(study):
    """Return the metrics by width, and by number of heads: tables with one column per seed, by metric."""
    records = study.with_axes(study.records)
    last = records[records["step"] == records["step"].max()]
    return tuple(
        {
            name: x.pivot_table(index=axis, columns="seed", values="value")
            for name, x in last[last["block"] == block].groupby("metric")
        }
        for block, axis in (("width", "data.dim"), ("heads", "model.heads"))
    )


def limit_moments(heads: int, points: int = 24) -> tuple[float, float]:
    """Compute variance and excess kurtosis of the limit law by Gauss-Hermite quadrature over four scores.

    The variance is E‖a‖² with a = softmax of four N(0, 1) scores, and the excess kurtosis is
    3 Var‖a‖²/(H (E‖a‖²)²).
    """
    x, w = np.polynomial.hermite_e.hermegauss(points)
    scores = np.stack(np.meshgrid(x, x, x, x), axis=-1)
    weights = np.prod(np.meshgrid(w, w, w, w), axis=0) / np.sqrt(2 * np.pi) ** 4
    attention = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    square = (attention**2).sum(axis=-1)
    average = (weights * square).sum()
    return average, 3 * ((weights * square**2).sum() - average**2) / (heads * average**2)


def tables(results):
    """Return the divergences from the limit by width, and of the limit from a normal law by heads."""
    by_width, by_heads = tables_by(results["study"])
    return {
        f"Divergence by {name}, mean over seeds": table.mean(axis=1).rename("divergence").reset_index()
        for name, table in (("n", by_width["from_limit"]), ("H", by_heads["limit_from_normal"]))
    }
