"""Progress of a study, read from its results folder, even while it continues elsewhere."""

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from jaxattn.lab.results.labels import duration
from jaxattn.lab.results.read import status
from jaxattn.lab.storage import memo, run_log, study_file
from jaxattn.lab.storage.batch_record import BatchRecord
from jaxattn.lab.storage.folder import results_folder
from jaxattn.lab.storage.memo import Partial
from jaxattn.lab.storage.run_log import Latest
from jaxattn.lab.storage.study_file import damage_as_input_error

_Wanted = Mapping[tuple[str, int], Sequence[int]]


class _Started(NamedTuple):
    """An unfinished batch with its log and its runs."""

    batch: Partial
    log: Latest
    runs: frozenset[tuple[str, int]]

    @property
    def share(self) -> float:
        return self.log.line.share if self.log.line else 0.0


def run_status(directory: Path) -> tuple[pd.DataFrame, str]:
    """Return the state of each cell in a results folder or bucket, finished or not.

    Returns:
        A table with one row per cell (settings, state, fraction completed, phase and step, median logged loss
        over seeds, number of failed seeds), and a sentence about the whole study, which includes the
        estimated time left while it runs.

    Raises:
        InputError: the folder is not a results folder, or is damaged.
    """
    here = results_folder(directory).fetch("log")
    with damage_as_input_error(here):
        study = study_file.read_study(here)
    wanted = study_file.wanted_runs(study)
    # Read these first, so that a batch that is finished in the meantime is not missed.
    partials = memo.partials(here)
    finished = memo.finished(here, lambda error: None, wanted)
    done = {run for record in finished.values() for run in record.identities}
    started = [
        _Started(one, run_log.latest(one.path, here), frozenset(one.record.identities))
        for one in partials
        if any(run in wanted and run not in done for run in one.record.identities)
    ]
    running = [one for one in started if one.batch.is_running and not one.batch.error]
    runs: dict[int, set[tuple[str, int]]] = {}
    for run, cells in wanted.items():
        for number in cells:
            runs.setdefault(number, set()).add(run)
    rows = [_row(cell, runs[cell["cell"]], done, started, running) for cell in study["cells"]]
    _add_failures(rows, wanted, [*finished.values(), *(one.batch.record for one in started)])
    table = pd.DataFrame(rows)
    share = float(table["done"].mean())
    state = status(bool(set(wanted) - done), bool(running), any(one.batch.error for one in started))
    complete = f"{study['name']}: {100 * share:.0f} % done, {state}{_left(running)}"
    table["done"] = [f"{100 * part:.0f} %" for part in table["done"]]
    return table, complete


def _row(
    cell: Mapping[str, Any],
    own: set[tuple[str, int]],
    done: set[tuple[str, int]],
    started: Sequence[_Started],
    running: Sequence[_Started],
) -> dict[str, Any]:
    left = own - done
    batches = [one for one in started if left & one.runs]
    share = float(len(own & done))
    for run in left:
        share += max((one.share for one in batches if run in one.runs), default=0.0)
    line = batches[-1].log.line if batches else None
    state = "finished" if not left else "waiting"
    if batches:
        state = "failed" if all(one.batch.error for one in batches) else "stopped"
        state = "running" if any(one in running for one in batches) else state
    return {
        "cell": cell["cell"],
        **cell["settings"],
        "state": state,
        "done": share / len(own),
        "phase": (line.doing or line.phase) if line else "",
        "step": f"{line.step:,} of {line.steps:,}" if line else "",
        "loss": _loss(cell["key"], batches),
        "failed seeds": 0,
    }


def _add_failures(rows: list[dict[str, Any]], wanted: _Wanted, records: Sequence[BatchRecord]) -> None:
    failed = {
        (cell, failure.seed)
        for record in records
        for keys in [record.keys]
        for failure in record.failures
        for cell in wanted.get((keys[failure.cell], failure.seed), ())
    }
    counts = Counter(cell for cell, _ in failed)
    for row in rows:
        row["failed seeds"] = counts[row["cell"]]


def _loss(key: str, batches: Sequence[_Started]) -> str:
    """Return the median loss of a cell over the seeds of its unfinished batches at their last common step."""
    found: list[tuple[tuple[str, int], list[float]]] = []
    for one in batches:
        numbers = [cell.cell for cell in one.batch.record.cells if cell.key == key]
        if (line := one.log.measured) and numbers:
            found.append(((line.phase, line.step), line.losses.get(str(numbers[0]), [])))
    last = [x for place, losses in found if place == found[-1][0] for x in losses]
    return f"{statistics.median(last):.4g}" if last else ""


def _left(running: Sequence[_Started]) -> str:
    lines = [one.log.line for one in running if one.log.line and one.log.line.left is not None]
    left = [(line.left or 0.0) - (time.time() - line.time) for line in lines]
    longest = max(left, default=0.0)
    return f", about {duration(longest)} left" if longest > 0 else ""
