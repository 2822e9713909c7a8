"""Token figures: E·v and E·p against importance, the one-step law, and the tokens with the most attention."""

from typing import Annotated, Any

import matplotlib.axes
import msgspec
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from jaxattn.core.errors import InputError
from jaxattn.core.fractions import bin_numbers
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import BLUE, FIGURE_WIDTH, GREY, INK, RED, SOFT, colours, legend_below, style
from jaxattn.lab.results.correlations import axis, bin_means
from jaxattn.lab.results.labels import VALUES, evenly_spaced, file_name, format_number, minus, short_name
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.tokens import Tokens, final_tokens, top

MAX_POINTS = 100_000
MAX_CLASSES = 6
BAND = " The band reaches from the lowest to the highest mean of a seed."


def importance(
    results: Run,
    *,
    phase: str | None = None,
    cell: int = 0,
    label: int | str | None = None,
) -> RenderedFigure:
    """Plot E·v and E·p of each token against its posterior difference, with means over the run's bins.

    Args:
        results: a results folder.
        phase: the phase after which tokens are shown; None selects the last phase.
        cell: index of the cell.
        label: index or name of a class, if K > 2. By default, at most six classes are shown, with one row
            of panels each.

    Raises:
        InputError: the phase, cell or class is unknown, or there are no tokens.

    Source:
        Figures 1-3 of arXiv 2505.17282.
    """
    tokens = final_tokens(results, phase=phase, cell=cell)
    of_seeds = (
        final_tokens(results, phase=phase, cell=cell, average=False).table if tokens.seeds > 1 else None
    )
    bins = axis(results, cell)
    labels = _labels(tokens, label)
    several = len(tokens.classes) > 1
    scores, label_of_scores = results.score_names(cell)
    names = VALUES | {"Ep": label_of_scores}
    outside = 0
    with style():
        figure = Figure(figsize=(FIGURE_WIDTH, 2.65 * len(labels)), layout="constrained")
        grid = figure.subplots(len(labels), 2, squeeze=False, sharex=True)
        for row, k in zip(grid, labels, strict=True):
            table = tokens.table[tokens.table["class"] == k]
            x = table["posterior_difference"].to_numpy(float)
            for ax, quantity, colour in zip(row, ("Ev", "Ep"), (BLUE, RED), strict=True):
                y = table[quantity].to_numpy(float)
                means = bin_means(x, y, **bins)
                _scatter(ax, x, y, colour)
                drawn = [_bins(ax, means, colour)]
                if of_seeds is not None:
                    drawn.append(_band(ax, of_seeds[of_seeds["class"] == k], quantity, bins, means))
                head = "k" if tokens.names else k
                name = names[quantity].replace("v$", f"v_{{{head}}}$") if several else names[quantity]
                head = f"   (class {short_name(tokens.name(k))})" if several else ""
                ax.set_title(name + (head if quantity == "Ep" else ""))
            outside = max(outside, int(len(x) - means["n"].sum()))
        for ax in grid[-1]:
            ax.set_xlabel("posterior difference of token $s$" + (" for the class" if several else ""))
        dots = Line2D([], [], marker="o", linestyle="", color=GREY, markersize=3, label="token")
        legend_below(figure, [dots, *drawn])
    count = tokens.table["id"].nunique()
    inside = "" if not outside else f" {outside} points outside of this range belong to no bin."
    if label is None and len(labels) < len(tokens.classes):
        inside += f" {len(labels)} of {len(tokens.classes)} classes are shown; option label draws another."
    of_class = "" if label is None or not several else f" for class {tokens.name(labels[0])}"
    return RenderedFigure(
        file_name("importance", tokens.phase, *_cell_part(results, cell), *_class_part(label)),
        "Token importance" + (f", cell {cell} of {cells}" if (cells := len(results.cells)) > 1 else ""),
        f"E·v and {scores} of {count:,} tokens against their posterior difference{tokens.signs}{of_class} "
        f"after phase {tokens.phase}{results.cell_words(cell)}, {tokens.over_seeds}. Dots are means over "
        f"{bins['bins']} equal bins of [{bins['low']:.3g}, {bins['high']:.3g}], and bars are one standard "
        f"deviation within a bin.{'' if of_seeds is None else BAND}{inside}",
        figure,
    )


def one_step_law(results: Run, *, phase: str | None = None, cell: int = 0) -> RenderedFigure:
    """Plot E·v after one step on E against α, with the predicted line η0 α_s / 2 (η0 α_{s,k} for K classes).

    Args:
        results: a results folder.
        phase: the one-step phase; defaults to the first phase of kind "one_step".
        cell: index of the cell.

    Raises:
        InputError: the phase or cell is unknown, the phase has no step size, or there are no tokens.

    Source:
        Lemma 4.1 of arXiv 2505.17282; K classes from its public review thread.
    """
    if phase is None:
        steps = [entry["name"] for entry in results.lookup(cell, "phases") if entry.get("kind") == "one_step"]
        if not steps:
            raise InputError(
                "one_step_law: the run has no phase of kind 'one_step'; set the phase to plot with the "
                "figure option 'phase'"
            )
        phase = steps[0]
    # Averaging over seeds would understate the deviation from the law.
    tokens = final_tokens(results, phase=phase, cell=cell, average=False)
    several, table = len(tokens.classes) > 1, tokens.table
    eta = results.lookup(cell, f"phases.{phase}.step_size")
    if not isinstance(eta, int | float):
        raise InputError(f"one_step_law: phase {phase!r} has no step_size; choose another phase")
    slope = eta if several else eta / 2
    alpha, value = table["alpha"].to_numpy(float), table["Ev"].to_numpy(float)
    correlation = np.corrcoef(alpha, value)[0, 1] if np.ptp(alpha) > 0 and np.ptp(value) > 0 else np.nan
    with style():
        figure = Figure(figsize=(0.62 * FIGURE_WIDTH, 3.1), layout="constrained")
        ax = figure.subplots()
        _scatter(ax, alpha, value, BLUE, size=10.0)
        ends = np.array([alpha.min(), alpha.max()])
        law = r"$\eta_0\,\alpha_{s,k}$" if several else r"$\eta_0\,\alpha_s / 2$"
        ax.plot(ends, slope * ends, color=INK, linewidth=1.0, label=f"one-step law {law}", zorder=3)
        ax.legend(loc="upper left")
        ax.set_title(f"correlation {minus(f'{correlation:.4f}')}")
        ax.set_xlabel(
            r"average signed frequency $\alpha_{s,k}$" if several else r"average signed frequency $\alpha_s$"
        )
        ax.set_ylabel(r"$E_s^\top v_k$" if several else VALUES["Ev"])
        ax.xaxis.set_major_locator(MaxNLocator(6))
    formula = "η₀α" if several else "η₀α/2"
    return RenderedFigure(
        file_name("one_step_law", *_cell_part(results, cell)),
        "One-step law",
        f"E·v of {table['id'].nunique():,} tokens after phase {phase}{results.cell_words(cell)} against "
        f"their average signed frequency α{tokens.signs}, {tokens.over_seeds}. The line is {formula} with "
        f"η₀ = {format_number(eta)}. E·v includes its value before the step.",
        figure,
    )


def _labels(tokens: Tokens, label: int | str | None) -> list[int]:
    every = tokens.classes
    if label is None:
        return evenly_spaced(every, MAX_CLASSES)
    found = [k for k in every if label in ((tokens.name(k),) if isinstance(label, str) else (k,))]
    if not found:
        known = [f"{k} ({tokens.name(k)})" if tokens.names else str(k) for k in every]
        more = ", ..." if len(every) > 20 else ""
        raise InputError(
            f"label {label!r}: no such class; choose one of the classes {', '.join(known[:20])}{more}"
        )
    return found


def _scatter(
    ax: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, colour: str, *, size: float = 7.0
) -> None:
    if len(x) > MAX_POINTS:
        kept = np.random.default_rng(0).choice(len(x), MAX_POINTS, replace=False)
        x, y = x[kept], y[kept]
    # Opacity decreases with local density, so that dense regions remain distinguishable and isolated tokens
    # visible.
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=50)
    column = np.searchsorted(x_edges[1:-1], x, side="right")
    row = np.searchsorted(y_edges[1:-1], y, side="right")
    alpha = np.clip(0.7 / np.sqrt(counts[column, row]), 0.04, 0.5)
    ax.scatter(x, y, s=size, color=colour, alpha=alpha, linewidths=0, rasterized=True)


def _band(
    ax: matplotlib.axes.Axes, table: pd.DataFrame, quantity: str, bins: dict[str, Any], means: pd.DataFrame
) -> Any:
    edges = np.linspace(bins["low"], bins["high"], bins["bins"] + 1)
    number = bin_numbers(table["posterior_difference"].to_numpy(float), edges)
    inside = number >= 0
    # Group all seeds at once, because thousands of small groupings would take longer than the study.
    of_seeds = table[quantity][inside].groupby([table["seed"][inside], number[inside]]).mean()
    ends = of_seeds.groupby(level=1).agg(["min", "max"]).reindex(means.index)
    band = ax.fill_between(means["center"], ends["min"], ends["max"], color=INK, alpha=0.25, linewidth=0)
    band.set(zorder=2, label="range over seeds")
    return band


def _bins(ax: matplotlib.axes.Axes, means: pd.DataFrame, colour: str) -> Any:
    full = means[means["n"] > 0]
    drawn = ax.errorbar(
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
        label="mean and sd of a bin",
    )
    ax.axhline(0, color=GREY, linewidth=0.6, zorder=0.9)
    ax.axvline(0, color=GREY, linewidth=0.6, zorder=0.9)
    return drawn


def _class_part(label: int | str | None) -> list[str]:
    return [] if label is None else [f"class{label}"]


def _cell_part(results: Run, cell: int) -> list[str]:
    return [f"cell{cell}"] if len(results.manifest["cells"]) > 1 else []


# Maximum number of tokens in a figure with one line per token.
_MAX = 500


def top_tokens(
    results: Run,
    *,
    phase: str | None = None,
    cell: int = 0,
    number: Annotated[int, msgspec.Meta(ge=1, le=_MAX)] = 20,
) -> RenderedFigure:
    """Plot the tokens with the largest E·p as bars, coloured by the sign of α, or by class if K > 2.

    Args:
        results: a results folder.
        phase: the phase after which tokens are shown; None selects the last phase.
        cell: index of the cell.
        number: number of tokens.

    Raises:
        InputError: the phase or cell is unknown, or there are no tokens.
    """
    tokens = final_tokens(results, phase=phase, cell=cell)
    best = top(tokens, count=number)
    shade, legend = _shades(tokens, best)
    scores, label_of_scores = results.score_names(cell)
    names = [short_name(str(token)) for token in best["token"]]
    with style():
        figure = Figure(figsize=(0.62 * FIGURE_WIDTH, 0.6 + 0.19 * len(best)), layout="constrained")
        ax, places = figure.subplots(), np.arange(len(best))
        ax.barh(places, best["Ep"], height=0.72, color=shade)
        ax.set_yticks(places, names)
        ax.set_ylim(len(best) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(label_of_scores)
        ax.axvline(0, color=SOFT, linewidth=0.6)
        handles = [Patch(color=colour, label=name) for name, colour in legend.items()]
        legend_below(figure, handles)
    whose = "class with the largest α" if len(tokens.classes) > 1 else "sign of α"
    first = " of the first seed" if tokens.seeds > 1 and not tokens.averaged else ""
    number_of_seeds = "one seed" if first else tokens.over_seeds
    return RenderedFigure(
        file_name("top_tokens", tokens.phase, *_cell_part(results, cell)),
        "Tokens that attention prefers",
        f"The {len(best)} tokens{first} with the largest {scores} after phase {tokens.phase}"
        f"{results.cell_words(cell)}, {number_of_seeds}. The colour shows the {whose}.",
        figure,
    )


def _shades(tokens: Tokens, best: pd.DataFrame) -> tuple[list[Any], dict[str, Any]]:
    if len(tokens.classes) > 1:
        palette = dict(zip(tokens.classes, colours(len(tokens.classes), ordered=False), strict=True))
        there = [k for k in tokens.classes if (best["class"] == k).any()]
        return [palette[k] for k in best["class"]], {
            f"class {short_name(tokens.name(k))}": palette[k] for k in there
        }
    positive, negative = (
        [f"class {short_name(tokens.name(k))}" for k in (1, 0)]
        if tokens.names
        else ["positive token", "negative token"]
    )
    signs = {1: (positive, BLUE), -1: (negative, RED), 0: ("irrelevant token", GREY)}
    sign = np.sign(best["alpha"].to_numpy(float)).astype(int)
    legend = {name: colour for k, (name, colour) in signs.items() if (sign == k).any()}
    return [signs[k][1] for k in sign], legend
