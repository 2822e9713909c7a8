"""Figures of metrics against the step, or against another metric such as ‖p‖."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from jaxattn.core.errors import InputError
from jaxattn.lab.figures.panels import columns, cross_out, label_below, looks, panel_grid
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import INK, SOFT, legend_below, style
from jaxattn.lab.results.labels import (
    LONGEST_LABEL,
    evenly_spaced,
    file_name,
    literal,
    seed_words,
    settings_label,
    unknown_metric,
)
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import aggregate, geometric_words

PANELS = ("loss", "accuracy", "p_norm", "log_gradient_norm", "important_mass")
_MAX_CELLS = 12
# Maximum total number of characters in the titles of a row of panels; longer titles are wrapped.
_TITLE_WIDTH = 108
_TRAINING: Any = {"linestyle": (0, (3, 1.5)), "linewidth": 1.0}
# Number of markers on a curve.
_MARKS = 6


def curves(
    results: Run,
    *,
    phase: str | None = None,
    metrics: tuple[str, ...] | None = None,
    cells: tuple[int, ...] | None = None,
    x: str | None = None,
    scale: Literal["linear", "log"] | None = None,
    levels: tuple[float, ...] = (),
    each_seed: bool = False,
) -> RenderedFigure:
    """Plot metrics against the step, as means over seeds with 95 % intervals; see `statistics.aggregate`.

    Use x = "p_norm" to compare phases with different step sizes or dynamics, whose steps are not
    comparable.

    Args:
        results: a results folder.
        phase: name of the phase; defaults to every phase with more than two recorded steps, with panels for
            each.
        metrics: names of the metrics, with one panel each; defaults to loss, accuracy, ‖p‖, log ‖∇L‖ and
            attention on important tokens. The training and test values of a metric share a panel.
        cells: indices of the cells, one line each; defaults to at most twelve cells.
        x: "step", or the metric on the horizontal axis, plotted as its mean over seeds at each step.
            Defaults to the metric `time` in phases that record it, such as `gradient_flow` phases, and to
            the step in all other phases.
        scale: scale of the vertical axes. None selects a logarithmic scale for metrics that have no negative
            values and whose means span decades.
        levels: values marked by dotted horizontal lines in every panel, such as known plateaus of the loss.
        each_seed: True to draw one line per seed instead of the mean and its interval.

    Raises:
        InputError: a phase, metric or cell is unknown, or a metric on a logarithmic scale has negative
            values.
    """
    axes = _axes(results, phase, x)
    panels = _panels(results.records, metrics)
    every = [int(cell["cell"]) for cell in results.manifest["cells"]]
    chosen = evenly_spaced(every, _MAX_CELLS) if cells is None else list(cells)
    labels = [settings_label(results.settings(cell))[:LONGEST_LABEL] or f"cell {cell}" for cell in chosen]
    drawn = [name for names in panels.values() for name in names]
    table = _points(results, axes, drawn, chosen, each_seed)
    if scale == "log" and (negative := table.loc[table["negative"], "metric"]).any():
        raise InputError(
            f'curves: scale = "log" is not possible, because {negative.min()} has negative values; '
            'use "linear"'
        )
    found = set(map(tuple, table.loc[table["n"] > 0, ["phase", "metric"]].to_numpy().tolist()))
    shown = [(name, panel) for name in axes for panel in panels if found & {(name, x) for x in panels[panel]}]
    if not shown:
        where = f"{', '.join(drawn)} in {', '.join(axes)}"
        raise InputError(f"curves: no finite values of {where}; choose other metrics or phases")
    ordered = len(results.axes) == 1 and pd.api.types.is_numeric_dtype(results.cells[results.axes[0]])
    lines = [look | {"linestyle": "-"} for look in looks(len(chosen), ordered=ordered)]
    if len(chosen) == 1 or each_seed:
        lines = [look | {"marker": ""} for look in lines]
    with style():
        figure, grid = panel_grid(len(shown))
        label_below(grid, [results.label(axes[name]) for name, _ in shown])
        for ax, (name, panel) in zip(grid, shown, strict=True):
            names = [each for each in panels[panel] if (name, each) in found]
            own = table[(table["phase"] == name) & table["metric"].isin(names)]
            _draw(ax, own, names, dict(zip(chosen, lines, strict=True)))
            of_phase = f", {literal(name)}" if len(axes) > 1 else ""
            title = results.label(panel if len(names) > 1 else names[0]) + of_phase
            ax.set_title(textwrap.fill(title, _TITLE_WIDTH // columns(ax)))
            _scale_steps(ax, own)
            _scale_values(ax, own, scale)
            for level in levels:
                ax.axhline(level, color=SOFT, linestyle=":", linewidth=0.8)
        handles = [Line2D([], [], label=label, **look) for label, look in zip(labels, lines, strict=True)]
        shared = any(len(panels[panel]) > 1 for _, panel in shown)
        if handles := (handles if len(chosen) > 1 else []) + _of_splits() * shared:
            legend_below(figure, handles)
    other = [x] if x and x != "step" else []
    words = " Dotted lines mark known values." if levels else ""
    return RenderedFigure(
        file_name("curves", *([phase] if phase else []), *(metrics or []), *other),
        "Training curves",
        _caption(results, table, axes, chosen, each_seed) + words,
        figure,
    )


def _of_splits() -> list[Line2D]:
    """Return the entries of a legend for test and training values."""
    return [
        Line2D([], [], color=INK, label="test"),
        Line2D([], [], color=INK, label="training", **_TRAINING),
    ]


def _caption(
    results: Run, table: pd.DataFrame, axes: Mapping[str, str], chosen: Sequence[int], each_seed: bool
) -> str:
    words_of = {"step": "the step", "time": "the time t"}
    against = {x: words_of.get(x, f"{x} at the same step") for x in axes.values()}
    counts = table.loc[table["n"] > 0, "n"]
    averaged = counts.max() > 1 and not each_seed
    every = len(results.manifest["cells"])
    words = results.cell_words(chosen[0]) if len(chosen) == 1 else f", {len(chosen)} cells"
    lost = 0 if each_seed else int(table["lost"].sum())
    return (
        f"{'Means over' if averaged else 'Values of'} {seed_words(counts)} as a function of "
        f"{' or '.join(against.values())} in the "
        f"{'phase' if len(axes) == 1 else 'phases'} {', '.join(axes)}{words}"
        + (f"{geometric_words(table)}. Bands are 95 % intervals." if averaged else ".")
        + (f" {len(chosen)} of {every} cells are shown." if len(chosen) < every else "")
        + (" A cross marks where a mean loses seeds." if lost else "")
    )


def _axes(results: Run, phase: str | None, x: str | None) -> dict[str, str]:
    """Return the phases to draw, each with the metric on its horizontal axis."""
    phases, records = results.phases, results.records
    if x not in (None, "step"):
        phases = [name for name in phases if name in set(records.loc[records["metric"] == x, "phase"])]
        if not phases:
            raise unknown_metric(x, records["metric"].unique())
    if phase is not None and phase not in phases:
        which = "the run has only" if x in (None, "step") else f"{x} was recorded only in"
        raise InputError(f"phase {phase!r}: {which} {', '.join(phases)}")
    steps = records.groupby("phase", observed=True)["step"].nunique()
    # Omit phases with a single step, because one step is not a curve.
    chosen = [phase] if phase else [name for name in phases if steps[name] > 2] or phases[-1:]
    timed = set(records.loc[records["metric"] == "time", "phase"])
    return {name: x or ("time" if name in timed else "step") for name in chosen}


def _panels(records: pd.DataFrame, metrics: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the metrics of each panel; the training and test values of a metric share one."""
    recorded = set(records["metric"].unique())
    if metrics is None:
        every = [name for panel in PANELS for name in (f"test_{panel}", panel, f"train_{panel}")]
        metrics = [name for name in every if name in recorded]
    missing = [name for name in metrics if name not in recorded]
    if missing or not metrics:
        raise unknown_metric((missing or ["?"])[0], recorded)
    panels: dict[str, list[str]] = {}
    for name in metrics:
        panels.setdefault(name.removeprefix("train_").removeprefix("test_"), []).append(name)
    return panels


def _points(
    results: Run, axes: Mapping[str, str], drawn: Sequence[str], cells: Sequence[int], each_seed: bool
) -> pd.DataFrame:
    """Return the points of all curves, with columns x, mean, mean_low, mean_high, n, lost and negative.

    `lost` is the number of seeds that have a value at the point before, but not here. `negative` states
    whether the metric has negative values.
    """
    records = results.records
    wanted = records["metric"].isin([*drawn, *axes.values()]) & records["cell"].isin(cells)
    records = records[wanted & records["phase"].isin(list(axes))]
    if each_seed:
        value, keys = records["value"], ["cell", "phase", "step", "metric"]
        n = records.groupby(keys, observed=True)["value"].transform("count")
        table = records.assign(mean=value, mean_low=value, mean_high=value, n=n, missing=0, scale="linear")
    else:
        table = aggregate(replace(results, records=records))
    location = [key for key in ("cell", "phase", "seed", "step") if key in table]
    known = table[table["n"] > 0].set_index(location)
    across = pd.Series(table["step"].astype(float))
    for phase, x in axes.items():
        if x != "step":
            at = known.loc[known["metric"] == x, "mean"].rename("x")
            across = across.mask(table["phase"] == phase, table[location].join(at, on=location)["x"])
    negative = table["metric"].isin(records.loc[records["value"] < 0, "metric"].unique())
    lost = table.groupby(["cell", "phase", "metric"], observed=True)["missing"].diff()
    lost = lost.fillna(table["missing"]).clip(lower=0)
    table = table.assign(x=across, negative=negative, lost=lost)
    return table[table["metric"].isin(drawn) & table["x"].notna()]


def _draw(
    ax: matplotlib.axes.Axes, table: pd.DataFrame, names: Sequence[str], lines: Mapping[int, dict[str, Any]]
) -> None:
    """Draw the curves of one panel, dashed for training values next to test values."""
    each_seed = "seed" in table
    keys = ["metric", "cell", *(["seed"] if each_seed else [])]
    for number, (key, rows) in enumerate(table.groupby(keys, sort=False, observed=True)):
        name, cell = key[:2]
        look = lines[cell] | ({} if name.startswith("test_") or len(names) == 1 else _TRAINING)
        look |= {"linewidth": 0.6} if each_seed else {}
        space = max(1, len(rows) // _MARKS)
        ax.plot(rows["x"], rows["mean"], markevery=(number % space, space), **look)
        band: Any = {"color": look["color"], "alpha": 0.18, "linewidth": 0}
        ax.fill_between(rows["x"], rows["mean_low"], rows["mean_high"], **band)
        if (rows["lost"] > 0).any():
            cross_out(ax, rows["x"], rows["mean"].ffill(), rows["lost"])


def _scale_steps(ax: matplotlib.axes.Axes, rows: pd.DataFrame) -> None:
    last, least = rows["x"].max(), rows["x"].min()
    positive = rows.loc[rows["x"] > 0, "x"]
    if len(positive) and least >= 0 and last >= 30 * positive.min():
        first = positive.min()
        ax.set_xscale("symlog", linthresh=first, linscale=0.35)
        decades = 10.0 ** np.arange(np.ceil(np.log10(first)), np.floor(np.log10(last)) + 1)
        start = [0] if least == 0 else []
        ticks = [*start, *decades[:: -(-len(decades) // 4)]]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks] if last < 1e5 else None)


def _scale_values(ax: matplotlib.axes.Axes, rows: pd.DataFrame, scale: str | None) -> None:
    value = rows["mean"].dropna()
    spans = len(value) and value.min() > 0 and value.max() > 100 * value.min()
    if scale == "log" or (scale is None and spans and not rows["negative"].any()):
        ax.set_yscale("log")
