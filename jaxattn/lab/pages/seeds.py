"""Final values of single seeds, as rows of dots on a common scale for each metric."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxattn.lab.pages.definitions import definitions
from jaxattn.lab.results.labels import evenly_spaced, format_number, seed_words, setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import LOG, last_steps, scale

MAX_CELLS, MAX_DOTS = 12, 200


def of_metrics(results: Run, metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the metrics that have finite values, with the final value of each seed.

    At most `MAX_CELLS` evenly spaced cells are shown, and at most `MAX_DOTS` seeds of each.

    Args:
        results: a results folder.
        metrics: names of the metrics.

    Returns:
        For each metric, what report.html shows: `name`, `meaning` (empty if unknown), `axis`, which describes
        the scale, and `rows`, one for each cell and phase. A row has a `name`, `words` with the range of its
        values, and `dots`, the positions of the seeds from 0 to 1.
    """
    ends = last_steps(results.records)
    ends = ends[np.isfinite(ends["value"])]
    cells = evenly_spaced([int(cell["cell"]) for cell in results.manifest["cells"]], MAX_CELLS)
    ends = ends[ends["cell"].isin(cells)]
    for metric, meaning in definitions(metrics, results.declared_labels).items():
        own = ends[ends["metric"] == metric]
        if own.empty:
            continue
        kinds = {scale(metric, results.scales(int(cell))).kind for cell in own["cell"].unique()}
        is_log = kinds == {LOG} and bool((own["value"] > 0).all())
        values = np.log(own["value"]) if is_log else own["value"]
        low, width = values.min(), np.ptp(values)
        own = own.assign(at=(values - low) / width if width else 0.5)
        rows = []
        for (cell, phase), seeds in own.sort_values("at").groupby(["cell", "phase"], sort=False):
            shown = evenly_spaced(seeds["at"].tolist(), MAX_DOTS)
            words = f"{seed_words([len(seeds)])}: {_range(seeds['value'])}"
            rows.append({"name": _name(results, int(cell), str(phase)), "words": words, "dots": shown})
        axis = _range(own["value"]) + ", logarithmic" * is_log
        yield {"name": metric, "meaning": meaning, "axis": axis, "rows": rows}


def _range(values: Any) -> str:
    return " to ".join(dict.fromkeys(format_number(x) for x in (values.min(), values.max())))


def _name(results: Run, cell: int, phase: str) -> str:
    settings = [f"{key} = {x}" for key, value in results.settings(cell).items() if (x := setting(value))]
    return ", ".join([*settings, phase] if len(results.phases) > 1 or not settings else settings)
