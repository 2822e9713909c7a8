"""Figure: one metric against another along a phase, for example 1 - cos against ‖p‖ or against work."""

from dataclasses import dataclass
from typing import Any

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from jaxattn.core.errors import InputError
from jaxattn.results.drawn import Drawn
from jaxattn.results.fits import PowerLaw, power_law
from jaxattn.results.labels import file_name, minus, seed_words, settings_label, unknown_metric
from jaxattn.results.run import Run
from jaxattn.results.scaling import GUIDE, fitted, sentence
from jaxattn.results.style import INK, SOFT, WIDTH, colours, legend_below, style


@dataclass(frozen=True)
class Course:
    """One cell's seeds along a phase.

    Attributes:
        settings: the cell's settings.
        x: (m, seeds); NaN where x or y is not positive, and where a path repeats its last point.
        y: (m, seeds); NaN there too.
        law: the power law fitted to the chosen range of x.
    """

    settings: dict[str, Any]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    law: PowerLaw


def convergence(
    results: Run,
    *,
    x: str = "p_norm",
    y: str = "one_minus_cosine",
    phase: str | None = None,
    fit_from: float | None = None,
    fit_until: float | None = None,
    expected: float | None = None,
    tolerance: float | None = None,
) -> Drawn:
    """Draw a metric against another along a phase, both logarithmic: every seed, and their median.

    Args:
        results: a results folder.
        x: the metric on the x-axis.
        y: the metric on the y-axis; "margin_shortfall" stands for 1 - margin_ratio.
        phase: which phase; by default the last one that recorded both.
        fit_from: fit the power law from this x on; no fit if neither end is given and nothing is expected.
        fit_until: up to this x.
        expected: the power to compare with.
        tolerance: how far from it the power may be, judged as in `scaling`.

    Returns:
        The figure.

    Raises:
        InputError: metrics or a phase that were not recorded, nothing positive to draw.
    """
    fits = any(option is not None for option in (fit_from, fit_until, expected))
    window = (fit_from or 0.0, fit_until or np.inf) if fits else None
    phase, courses = collect(results, x=x, y=y, phase=phase, window=window)
    palette = colours(len(courses), ordered=False)
    with style():
        figure = Figure(figsize=(0.8 * WIDTH, 3.5), layout="constrained")
        ax = figure.subplots()
        handles = [_draw(ax, course, c, fits) for course, c in zip(courses, palette, strict=True)]
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(results.label(x))
        ax.set_ylabel(results.label(y))
        if expected is not None:
            handles.append(_guide(ax, courses, expected))
        if len(courses) > 1:
            legend_below(figure, handles)
        elif handles[1:]:
            ax.legend(handles=handles[1:], loc="best", labelcolor=SOFT)
    verdicts = [sentence(c.settings, c.law, expected, tolerance) for c in courses] if fits else []
    seeds = [int(np.isfinite(course.y).any(axis=0).sum()) for course in courses]
    return Drawn(
        file_name("convergence", y, x, *([] if phase == results.phases[-1] else [phase])),
        f"{y} against {x}",
        f"{y} against {x} along phase {phase}, logarithmic axes ({seed_words(seeds)}). Thin lines: single "
        f"seeds; thick line: median over seeds. {' '.join(verdicts)}".strip(),
        figure,
    )


def collect(
    results: Run, *, x: str, y: str, phase: str | None, window: tuple[float, float] | None
) -> tuple[str, list[Course]]:
    """Gather two metrics of every cell along a phase.

    Args:
        results: a results folder.
        x: one metric.
        y: the other.
        phase: which phase; by default the last one that recorded both.
        window: the range of x that the power law is fitted to, if any.

    Returns:
        The phase, and one course for each cell that recorded both.

    Raises:
        InputError: as `convergence`.
    """
    records = results.records
    source = "margin_ratio" if y == "margin_shortfall" else y
    for metric in (x, source):
        if not (records["metric"] == metric).any():
            raise unknown_metric(metric, records["metric"])
    both = [set(records.loc[records["metric"] == metric, "phase"].unique()) for metric in (x, source)]
    phases = [name for name in results.phases if name in both[0] & both[1]]
    if not phases or phase not in (None, *phases):
        raise InputError(f"phase {phase!r}: {x} and {y} were recorded in {', '.join(phases) or 'none'}")
    phase = phases[-1] if phase is None else phase
    records = records[(records["phase"] == phase) & records["metric"].isin([x, source])]
    courses = []
    for cell, rows in records.groupby("cell"):
        wide = rows.pivot(index=["metric", "step"], columns="seed", values="value")
        if not {x, source} <= set(wide.index.get_level_values("metric")):
            continue
        courses.append(_course(results.settings(int(cell)), wide.loc[x], wide.loc[source], y, window))
    if not any(np.isfinite(course.y).any() for course in courses):
        raise InputError(f"convergence: {x} and {y} have no positive values in phase {phase!r}")
    return phase, courses


def _course(
    settings: dict[str, Any],
    x: pd.DataFrame,
    y: pd.DataFrame,
    name: str,
    window: tuple[float, float] | None,
) -> Course:
    along, up = (frame.to_numpy(float) for frame in x.align(y, join="inner"))
    up = 1 - up if name == "margin_shortfall" else up
    repeated = np.zeros(along.shape, bool)
    repeated[1:] = along[1:] == along[:-1]
    with np.errstate(invalid="ignore"):
        shown = (along > 0) & (up > 0) & np.isfinite(up) & ~repeated
    along, up = np.where(shown, along, np.nan), np.where(shown, up, np.nan)
    low, high = window or (np.inf, 0.0)
    with np.errstate(invalid="ignore"):
        inside = (along >= low) & (along <= high)
    return Course(settings, along, up, power_law(np.where(inside, along, np.nan), up))


def _draw(ax: matplotlib.axes.Axes, course: Course, colour: str, fits: bool) -> Line2D:
    ax.plot(course.x, course.y, color=colour, linewidth=0.5, alpha=max(0.06, 0.5 / course.x.shape[1] ** 0.5))
    filled = np.isfinite(course.y).any(axis=1)
    middle = (np.nanmedian(z[filled], axis=1) for z in (course.x, course.y))
    ax.plot(*middle, color=colour, linewidth=1.6, zorder=4)
    name = settings_label(course.settings)
    return Line2D([], [], color=colour, label=": ".join([*([name] if name else []), *_slope(course, fits)]))


def _slope(course: Course, fits: bool) -> list[str]:
    return [minus(fitted(course.law))] if fits else []


def _guide(ax: matplotlib.axes.Axes, courses: list[Course], expected: float) -> Line2D:
    """A dashed line of the expected power beside the first course that has a fit."""
    look: Any = {"color": INK, **GUIDE}
    for course in courses:
        if np.isfinite(course.law.slope):
            ends = np.array([np.nanmin(course.x), np.nanmax(course.x)])
            ends[0] = max(ends[0], ends[1] * 1e-4)
            middle = np.sqrt(ends.prod())
            height = 3 * np.exp(course.law.intercept) * middle**course.law.slope
            ax.plot(ends, height * (ends / middle) ** expected, **look)
            break
    return Line2D([], [], label=minus(f"expected power {expected:g}"), **look)
