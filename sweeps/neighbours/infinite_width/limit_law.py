"""Analysis of random attention layers: moments at finite width compared with those of the limit."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge


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
    mean = (weights * square).sum()
    return mean, 3 * ((weights * square**2).sum() - mean**2) / (heads * mean**2)


def layers(results, item) -> Measured:
    """Compare moments of outputs and scores with closed forms, and fit power laws in width and heads."""
    records = results.with_axes(results.records)
    last = records[records["step"] == records["step"].max()]
    findings, tables = [], {}

    def add(name: str, samples) -> None:
        samples = np.asarray(samples)
        findings.append(Finding(name, judge.mean(samples), f"{len(samples)} seeds"))

    def wide(block: str, axis: str) -> dict[str, pd.DataFrame]:
        rows = last[last["block"] == block]
        return {
            name: x.pivot_table(index=axis, columns="seed", values="value")
            for name, x in rows.groupby("metric")
        }

    by_width, (variance, kurtosis) = wide("width", "data.dim"), limit_moments(2)
    for n in by_width["variance"].index:
        add(
            f"n = {n}: variance of a score of a token with itself / closed form",
            by_width["own_score"].loc[n] / (1 + 2 / n) ** 2,
        )
        add(
            f"n = {n}: variance of a score of two tokens / closed form",
            by_width["other_score"].loc[n] / (1 + 2 / n),
        )
    add(f"n = {n}: variance of the output / limit", by_width["variance"].loc[n] / variance)
    add(f"n = {n}: excess kurtosis / limit", by_width["excess_kurtosis"].loc[n] / kurtosis)
    log_n = np.log(by_width["from_limit"].index.to_numpy(float))[:3]
    add(
        "power of n in the divergence from the limit",
        np.polyfit(log_n, np.log(by_width["from_limit"].to_numpy()[:3]), 1)[0],
    )
    by_heads = wide("heads", "model.heads")
    for heads in by_heads["limit_excess_kurtosis"].index:
        add(
            f"limit, {heads} heads: excess kurtosis / closed form",
            by_heads["limit_excess_kurtosis"].loc[heads] / limit_moments(heads)[1],
        )
    log_heads = np.log(by_heads["limit_from_normal"].index.to_numpy(float))
    add(
        "power of H in the divergence of the limit from a normal law",
        np.polyfit(log_heads, np.log(by_heads["limit_from_normal"].to_numpy()), 1)[0],
    )
    for name, table in (("n", by_width["from_limit"]), ("H", by_heads["limit_from_normal"])):
        tables[f"Divergence by {name}, mean over seeds"] = (
            table.mean(axis=1).rename("divergence").reset_index()
        )
    return Measured(findings, tables)
