"""Figures of metrics against the step, or against another metric such as ‖p‖."""

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from jaxattn.core.errors import InputError
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import FIGURE_WIDTH, INK, SOFT, colours, legend_below, style
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
        phase: name of the phase; defaults to every phase with more than two recorded steps, with one row
            of panels per phase.
        metrics: names of the metrics, with one panel each; defaults to loss, accuracy, ‖p‖, log ‖∇L‖ and
            attention on important tokens. The training and test values of a metric share a panel.
        cells: indices of the cells, one colour each; defaults to at most twelve cells.
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
    records = results.records
    phases = _phases(results, phase, x)
    axes = {name: x or _axis(records, name) for name in phases}
    panels = _panels(records, metrics)
    every = [int(cell["cell"]) for cell in results.manifest["cells"]]
    chosen = evenly_spaced(every, _MAX_CELLS) if cells is None else list(cells)
    labels = [settings_label(results.settings(cell))[:LONGEST_LABEL] or f"cell {cell}" for cell in chosen]
    drawn = [metric for panel in panels.values() for metric in panel]
    wanted = (
        records["phase"].isin(phases)
        & records["metric"].isin([*drawn, *axes.values()])
        & records["cell"].isin(chosen)
    )
    negative = _negative(records[wanted], drawn, scale)
    every_row = aggregate(replace(results, records=records[wanted]))
    table = pd.concat([_against(x, every_row[every_row["phase"] == name], drawn) for name, x in axes.items()])
    if not (table["n"] > 0).any():
        raise InputError(
            f"curves: no finite values of {', '.join(drawn)} "
            f"in {', '.join(phases)}; choose other metrics or phases"
        )
    palette = colours(len(chosen), ordered=_ordered(results))
    with style():
        # Omit panels for metrics that a phase does not record.
        present = {name: _present(panels, table[table["phase"] == name]) for name in phases}
        rows = {name: -(-len(shown) // _columns(len(shown))) for name, shown in present.items()}
        title = 0.25 if len(phases) > 1 else 0.0
        heights = [1.75 * rows[name] + title for name in phases]
        figure = Figure(figsize=(FIGURE_WIDTH, sum(heights)), layout="constrained")
        blocks = figure.subfigures(len(phases), 1, height_ratios=heights, squeeze=False)[:, 0]
        for block, name in zip(blocks, phases, strict=True):
            if len(phases) > 1:
                block.suptitle(f"phase: {literal(name)}", x=0.01, ha="left", color=SOFT)
            own = table[table["phase"] == name]
            colours_of = dict(zip(chosen, palette, strict=True))
            lines = _of_seeds(records[wanted], axes[name], drawn, name) if each_seed else own
            _block(block, lines, present[name], colours_of, results.label, axes[name])
            for ax, level in itertools.product(block.axes[: len(present[name])], levels):
                ax.axhline(level, color=SOFT, linestyle=":", linewidth=0.8)
            _scale_values(block, own, present[name], scale, negative)
        if len(chosen) > 1:
            legend_below(
                figure,
                [Line2D([], [], color=c, label=label) for c, label in zip(palette, labels, strict=True)],
            )
    return RenderedFigure(
        file_name(
            "curves", *([phase] if phase else []), *(metrics or []), *([x] if x and x != "step" else [])
        ),
        "Training curves",
        " ".join(
            [
                _caption(results, table, axes, chosen, each_seed),
                *(["Dotted lines mark known values."] if levels else []),
            ]
        ),
        figure,
    )


def _axis(records: pd.DataFrame, phase: str) -> str:
    return "time" if "time" in set(records.loc[records["phase"] == phase, "metric"]) else "step"


def _caption(
    results: Run, table: pd.DataFrame, axes: Mapping[str, str], chosen: Sequence[int], each_seed: bool
) -> str:
    words_of = {"step": "the step", "time": "the time t"}
    against = {x: words_of.get(x, f"{x} at the same step") for x in axes.values()}
    counts = table.loc[table["n"] > 0, "n"]
    averaged = counts.max() > 1 and not each_seed
    every = len(results.manifest["cells"])
    words = results.cell_words(chosen[0]) if len(chosen) == 1 else f", {len(chosen)} cells"
    return (
        f"{'Means over' if averaged else 'Values of'} {seed_words(counts)} as a function of "
        f"{' or '.join(against.values())} in the "
        f"{'phase' if len(axes) == 1 else 'phases'} {', '.join(axes)}{words}"
        + (f"{geometric_words(table)}. Bands are 95 % intervals." if averaged else ".")
        + (f" {len(chosen)} of {every} cells are shown." if len(chosen) < every else "")
    )


def _phases(results: Run, phase: str | None, x: str | None) -> list[str]:
    phases, records = results.phases, results.records
    if x not in (None, "step"):
        records = records[records["metric"] == x]
        phases = [name for name in phases if name in set(records["phase"])]
        if not phases:
            raise unknown_metric(x, results.records["metric"].unique())
    if phase is not None:
        if phase not in phases:
            which = "the run has only" if x in (None, "step") else f"{x} was recorded only in"
            raise InputError(f"phase {phase!r}: {which} {', '.join(phases)}")
        return [phase]
    steps = records.groupby("phase", observed=True)["step"].nunique()
    # Omit phases with a single step, because one step is not a curve.
    return [name for name in phases if steps[name] > 2] or phases[-1:]


def _against(x: str, table: pd.DataFrame, drawn: Sequence[str]) -> pd.DataFrame:
    shown = table[table["metric"].isin(drawn)]
    if x == "step":
        return shown.assign(x=shown["step"])
    location = [key for key in ("cell", "phase", "seed", "step") if key in table]
    means = table[(table["metric"] == x) & (table["n"] > 0)].set_index(location)["mean"].rename("x")
    return shown.join(means, on=location, how="inner")


def _of_seeds(records: pd.DataFrame, x: str, drawn: Sequence[str], phase: str) -> pd.DataFrame:
    own = records[records["phase"] == phase].assign(n=1)
    mean = own["value"]
    return _against(x, own.assign(mean=mean, mean_low=mean, mean_high=mean), drawn)


def _panels(records: pd.DataFrame, metrics: Sequence[str] | None) -> dict[str, list[str]]:
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


def _present(panels: dict[str, list[str]], table: pd.DataFrame) -> dict[str, list[str]]:
    recorded = set(table.loc[table["n"] > 0, "metric"])
    kept = {panel: [name for name in names if name in recorded] for panel, names in panels.items()}
    return {panel: names for panel, names in kept.items() if names} or panels


def _block(
    block: SubFigure,
    table: pd.DataFrame,
    panels: dict[str, list[str]],
    palette: dict[int, str],
    label: Callable[[str], str],
    x: str,
) -> None:
    columns = _columns(len(panels))
    grid = block.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
    explained = False
    for ax, (panel, names) in zip(grid, panels.items(), strict=False):
        shown = table[table["metric"].isin(names)]
        lines = dict(tuple(shown.groupby(["metric", "cell"], observed=True)))
        for name in names:
            for cell, colour in palette.items():
                test = name.startswith("test_") or len(names) == 1
                if (rows := lines.get((name, cell))) is not None:
                    for _, one in rows.groupby("seed") if "seed" in rows else [(0, rows)]:
                        _line(ax, one, colour, dashed=not test, thin="seed" in rows)
        ax.set_title(textwrap.fill(label(panel if len(names) > 1 else names[0]), _TITLE_WIDTH // columns))
        _scale_steps(ax, shown)
        if len(names) > 1 and not explained:
            explained = True
            tint = next(iter(palette.values())) if len(palette) == 1 else INK
            handles = [
                Line2D([], [], color=tint, label="test"),
                Line2D([], [], color=tint, label="training", linestyle=(0, (3, 1.5)), linewidth=1.0),
            ]
            ax.legend(handles=handles, loc="best", labelcolor=SOFT)
    for ax in grid[len(panels) :]:
        ax.set_axis_off()
    for ax in grid[max(0, len(panels) - columns) : len(panels)]:
        ax.set_xlabel(label(x))


def _columns(panels: int) -> int:
    return 2 if panels == 4 else min(3, panels)


def _line(
    ax: matplotlib.axes.Axes, rows: pd.DataFrame, colour: str, *, dashed: bool, thin: bool = False
) -> None:
    appearance: dict[str, Any] = {"linestyle": (0, (3, 1.5)), "linewidth": 1.0} if dashed else {}
    appearance |= {"linewidth": 0.6} if thin else {}
    ax.plot(rows["x"], rows["mean"], color=colour, **appearance)
    ax.fill_between(rows["x"], rows["mean_low"], rows["mean_high"], color=colour, alpha=0.18, linewidth=0)


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


def _negative(records: pd.DataFrame, drawn: Sequence[str], scale: str | None) -> set[str]:
    found = set(records.loc[records["value"] < 0, "metric"]).intersection(drawn)
    if found and scale == "log":
        raise InputError(
            f'curves: scale = "log" is not possible, because {min(found)} has negative values; use "linear"'
        )
    return found


def _scale_values(
    block: SubFigure,
    table: pd.DataFrame,
    panels: dict[str, list[str]],
    scale: str | None,
    negative: set[str],
) -> None:
    for ax, names in zip(block.axes, panels.values(), strict=False):
        value = table.loc[table["metric"].isin(names), "mean"].dropna()
        spans = len(value) and value.min() > 0 and value.max() > 100 * value.min()
        if scale == "log" or (scale is None and spans and not negative.intersection(names)):
            ax.set_yscale("log")


def _ordered(results: Run) -> bool:
    cells = results.cells
    return len(results.axes) == 1 and pd.api.types.is_numeric_dtype(cells[results.axes[0]])
