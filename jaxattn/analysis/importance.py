"""Figures of token importance: E·v and E·p against the posterior difference, and the one-step law."""

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import spearmanr

from jaxattn.analysis.results import Results
from jaxattn.analysis.statistics import number
from jaxattn.analysis.style import BLUE, INK, RED, SOFT, VALUES, WIDTH, Drawn, cell_words, file_name, style
from jaxattn.analysis.tokens import BINS, HIGH, LOW, Tokens, at_end, bin_means
from jaxattn.errors import InputError

MOST_POINTS = 20_000
WORDS = {"Ev": "E·v", "Ep": "E·p"}


def importance(
    results: Results,
    *,
    phase: str | None = None,
    cell: int = 0,
    label: int | None = None,
    bins: int = BINS,
    low: float = LOW,
    high: float = HIGH,
) -> Drawn:
    """Draw E·v and E·p of every token against its posterior difference, with bin means.

    Args:
        results: a results folder.
        phase: the phase at whose end tokens are taken; the last one if None.
        cell: which cell.
        label: which class of K > 2; by default all, one row of panels each.
        bins: number of equal bins.
        low: lower end of the first bin.
        high: upper end of the last bin; tokens outside are drawn but are in no bin.

    Returns:
        The figure.

    Raises:
        InputError: an unknown phase, cell or class, or no tokens.

    Source:
        Figures 1-3 of arXiv 2505.17282.
    """
    tokens = at_end(results, phase=phase, cell=cell)
    labels = _labels(tokens, label)
    several = len(tokens.classes) > 1
    outside, facts = 0, []
    with style():
        figure = Figure(figsize=(WIDTH, 2.65 * len(labels)), layout="constrained")
        grid = figure.subplots(len(labels), 2, squeeze=False, sharex=True)
        for row, k in zip(grid, labels, strict=True):
            table = tokens.table[tokens.table["class"] == k]
            x = table["posterior_difference"].to_numpy(float)
            for ax, quantity, colour in zip(row, ("Ev", "Ep"), (BLUE, RED), strict=True):
                y = table[quantity].to_numpy(float)
                means = bin_means(x, y, bins=bins, low=low, high=high)
                _scatter(ax, x, y, colour)
                _bins(ax, means, colour)
                name = VALUES[quantity].replace("v$", f"v_{{{k}}}$") if several else VALUES[quantity]
                ax.set_title(name + (f"   (class {k})" if several and quantity == "Ep" else ""))
                facts.append(_fact(means, quantity) + (f" for class {k}" if several else ""))
            outside = max(outside, int(len(x) - means["n"].sum()))
        for ax in grid[-1]:
            ax.set_xlabel("posterior difference of token $s$")
    count = tokens.table["id"].nunique()
    inside = "" if not outside else f" {outside} points outside that range are drawn but are in no bin."
    return Drawn(
        file_name("importance", tokens.phase, *_cell_part(results, cell), *([f"class{label}"] if label else [])),
        "Token importance",
        f"E·v and E·p of {count:,} tokens against their posterior difference after phase {tokens.phase}"
        f"{cell_words(results, cell)}, {tokens.over_seeds}. Dots: mean over {bins} equal bins of "
        f"[{number(low)}, {number(high)}]; bars: one standard deviation within the bin.{inside} "
        f"Over the bins, {'; '.join(facts)}.",
        figure,
    )


def one_step_law(
    results: Results,
    *,
    phase: str | None = None,
    cell: int = 0,
    label: int | None = None,
    step_size: float | None = None,
) -> Drawn:
    """Draw E·v after one step on E against α, with the line of the one-step law, η0 α_s / 2 (K classes: η0 α_{s,k}).

    Args:
        results: a results folder.
        phase: the one-step phase; by default the first phase of kind "one_step".
        cell: which cell.
        label: which class of K > 2; by default all in one panel.
        step_size: η0; by default that of the phase, or of the cell where it is swept.

    Returns:
        The figure.

    Raises:
        InputError: an unknown phase, cell or class, no one-step phase, no tokens.

    Source:
        Lemma 4.1 of arXiv 2505.17282; K classes from its public review thread.
    """
    if phase is None:
        steps = [entry["name"] for entry in results.manifest["config"]["phases"] if entry.get("kind") == "one_step"]
        if not steps:
            raise InputError("one_step_law: the run has no phase of kind 'one_step'; name the phase to draw")
        phase = steps[0]
    # Averaging over seeds would shrink the very distance to the law that is to be seen.
    tokens = at_end(results, phase=phase, cell=cell, average=False)
    labels = _labels(tokens, label)
    several = len(tokens.classes) > 1
    eta = _step_size(results, phase, cell) if step_size is None else step_size
    slope = eta if several else eta / 2
    table = tokens.table[tokens.table["class"].isin(labels)]
    alpha, value = table["alpha"].to_numpy(float), table["Ev"].to_numpy(float)
    distance = np.abs(value - slope * alpha).max()
    correlation = np.corrcoef(alpha, value)[0, 1] if np.ptp(alpha) > 0 and np.ptp(value) > 0 else np.nan
    with style():
        figure = Figure(figsize=(0.62 * WIDTH, 3.1), layout="constrained")
        ax = figure.subplots()
        _scatter(ax, alpha, value, BLUE, size=9)
        ends = np.array([alpha.min(), alpha.max()])
        law = r"$\eta_0\,\alpha_{s,k}$" if several else r"$\eta_0\,\alpha_s / 2$"
        ax.plot(ends, slope * ends, color=INK, linewidth=1.0, label=f"one-step law {law}", zorder=3)
        ax.legend(loc="upper left")
        ax.set_xlabel(r"average signed frequency $\alpha_{s,k}$" if several else r"average signed frequency $\alpha_s$")
        ax.set_ylabel(r"$E_s^\top v_k$" if several else VALUES["Ev"])
        ax.xaxis.set_major_locator(MaxNLocator(6))
    formula = "η₀α" if several else "η₀α/2"
    return Drawn(
        file_name("one_step_law", *_cell_part(results, cell), *([f"class{label}"] if label else [])),
        "One-step law",
        f"E·v of {table['id'].nunique():,} tokens after phase {phase}{cell_words(results, cell)} against their average "
        f"signed frequency α, {tokens.over_seeds}; the line is {formula} with η₀ = {number(eta)}. "
        f"Correlation {correlation:.4f}; largest distance to the line {number(distance)}, which is "
        f"{number(distance / eta)} per unit of η₀ (the start E⁰·v included).",
        figure,
    )


def _labels(tokens: Tokens, label: int | None) -> list[int]:
    if label is not None and label not in tokens.classes:
        raise InputError(f"label {label}: tokens hold the classes {', '.join(map(str, tokens.classes))}")
    return tokens.classes if label is None else [label]


def _step_size(results: Results, phase: str, cell: int) -> float:
    phases = results.manifest["config"]["phases"]
    index = [entry["name"] for entry in phases].index(phase)
    settings = results.settings(cell)
    for key in (f"phases.{index}.step_size", f"phases.{phase}.step_size"):
        if key in settings:
            return float(settings[key])
    if phases[index].get("step_size") is None:
        raise InputError(f"one_step_law: phase {phase!r} has no step_size; give one with the figure")
    return float(phases[index]["step_size"])


def _scatter(ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, colour: str, *, size: float = 7) -> None:
    if len(x) > MOST_POINTS:
        kept = np.random.default_rng(0).choice(len(x), MOST_POINTS, replace=False)
        x, y = x[kept], y[kept]
    # The more points, the fainter each: the eye then sees their density.
    alpha = float(np.clip(12 / np.sqrt(len(x)), 0.06, 0.7))
    ax.scatter(x, y, s=size, color=colour, alpha=alpha, linewidths=0, rasterized=True)


def _bins(ax: matplotlib.axes.Axes, means: pd.DataFrame, colour: str) -> None:
    full = means[means["n"] > 0]
    ax.errorbar(
        full["center"],
        full["mean"],
        yerr=full["sd"],
        fmt="o-",
        color=INK,
        markersize=3.6,
        markerfacecolor=colour,
        markeredgecolor="white",
        markeredgewidth=0.5,
        linewidth=0.8,
        elinewidth=0.8,
        zorder=3,
    )
    ax.axhline(0, color=SOFT, linewidth=0.5, zorder=1)
    ax.axvline(0, color=SOFT, linewidth=0.5, zorder=1)


def _fact(means: pd.DataFrame, quantity: str) -> str:
    """What the theory says of the curve: E·v rises, E·p has its minimum in the middle."""
    full = means[means["n"] > 0]
    if quantity == "Ep":
        return f"E·p is smallest at {number(full['center'].iloc[full['mean'].argmin()])}" if len(full) else "E·p is empty"
    if len(full) < 3 or full["mean"].nunique() < 2:
        return "E·v has too few bins for a rank correlation"
    return f"Spearman of E·v is {spearmanr(full['center'], full['mean']).statistic:.3f}"


def _cell_part(results: Results, cell: int) -> list[str]:
    return [f"cell{cell}"] if len(results.manifest["cells"]) > 1 else []
