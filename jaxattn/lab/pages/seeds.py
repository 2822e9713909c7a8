"""Final values of single seeds, as rows of dots on a common scale for each metric."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from jaxattn.lab.pages.definitions import definitions
from jaxattn.lab.results.labels import evenly_spaced, format_number, seed_words, setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import LOG, last_steps, scale

MAX_CELLS, MAX_DOTS = 12, 200
# Size of a row of dots, and margin at both of its ends, in CSS pixels.
_WIDTH, _HEIGHT, _MARGIN = 320, 14, 4


class Row(NamedTuple):
    """Final values of the seeds of one cell in one phase.

    Attributes:
        name: the settings of the cell and the phase.
        dots: SVG image.
    """

    name: str
    dots: Markup


class MetricOfSeeds(NamedTuple):
    """A metric with its definition, and the final values of its seeds.

    Attributes:
        name: name of the metric.
        meaning: its definition; empty if unknown.
        axis: description of the scale of the dots.
        rows: one row for each cell and phase.
    """

    name: str
    meaning: str
    axis: str
    rows: list[Row]


def of_metrics(results: Run, metrics: Sequence[str]) -> Iterator[MetricOfSeeds]:
    """Yield the metrics that have finite values, with the final value of each seed.

    At most `MAX_CELLS` evenly spaced cells are shown, and at most `MAX_DOTS` seeds of each.

    Args:
        results: a results folder.
        metrics: names of the metrics.
    """
    ends = last_steps(results.records)
    ends = ends[np.isfinite(ends["value"])]
    cells = evenly_spaced([int(cell["cell"]) for cell in results.manifest["cells"]], MAX_CELLS)
    ends = ends[ends["cell"].isin(cells)]
    meanings = definitions(metrics, results.declared_labels)
    for metric, meaning in meanings.items():
        own = ends[ends["metric"] == metric]
        if own.empty:
            continue
        logarithmic = all(
            scale(metric, results.scales(int(cell))).kind == LOG for cell in own["cell"].unique()
        ) and bool((own["value"] > 0).all())
        values = np.log(own["value"]) if logarithmic else own["value"]
        low, high = values.min(), values.max()
        groups = own.assign(at=_positions(values, low, high)).groupby(["cell", "phase"], sort=False)
        rows = [Row(_name(results, int(cell), str(phase)), _dots(rows)) for (cell, phase), rows in groups]
        ends_of = f"{format_number(own['value'].min())} to {format_number(own['value'].max())}"
        yield MetricOfSeeds(metric, meaning, ends_of + ", logarithmic" * logarithmic, rows)


def _positions(values: pd.Series, low: float, high: float) -> Any:
    width = _WIDTH - 2 * _MARGIN
    return _MARGIN + width * ((values - low) / (high - low) if high > low else 0.5)


def _dots(rows: pd.DataFrame) -> Markup:
    rows = rows.sort_values("at")
    shown = rows.iloc[evenly_spaced(range(len(rows)), MAX_DOTS)]
    circles = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="3"/>').format(f"{x:.1f}", _HEIGHT // 2) for x in shown["at"]
    )
    least, most = (format_number(x) for x in (rows["value"].min(), rows["value"].max()))
    words = f"{seed_words([len(rows)])}: {least}" + (f" to {most}" if most != least else "")
    return Markup('<svg role="img" viewBox="0 0 {} {}"><title>{}</title>{}</svg>').format(
        _WIDTH, _HEIGHT, words, circles
    )


def _name(results: Run, cell: int, phase: str) -> str:
    settings = [f"{key} = {x}" for key, value in results.settings(cell).items() if (x := setting(value))]
    return ", ".join([*settings, phase] if len(results.phases) > 1 or not settings else settings)
