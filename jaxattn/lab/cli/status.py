"""Progress of a run, read from its results folder, even while the run continues elsewhere."""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.lab.engine.progress import duration
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage import run_log
from jaxattn.lab.storage.folder import results_folder
from jaxattn.lab.storage.lock import is_locked
from jaxattn.lab.storage.manifest import damage_as_input_error, read_manifest


def run_status(
    directory: Path, progress: Callable[[str, float], None] = lambda what, share: None
) -> tuple[pd.DataFrame, str]:
    """Return the state of each cell in a results folder or bucket, finished or not.

    Returns:
        A table with one row per cell (settings, state, fraction completed, phase and step, median logged loss
        over seeds, number of failed seeds), and a sentence about the whole run, which includes the estimated
        time left while the run continues.

    Raises:
        InputError: the folder is not a results folder, or is damaged.
    """
    here = results_folder(directory).fetch("log")
    manifest = read_manifest(here)
    with damage_as_input_error(here):
        return _status(Store(here), manifest, is_locked(directory), progress)


def _status(
    folder: Store, manifest: dict[str, Any], running: bool, progress: Callable[[str, float], None]
) -> tuple[pd.DataFrame, str]:
    lines = run_log.latest(folder.directory)
    latest = {line["batch"]: line for line in lines}
    measured = {line["batch"]: line for line in lines if line["losses"]}
    failed = {(entry["cell"], entry["seed"]) for line in lines for entry in line["failures"]}
    failed |= {(entry["cell"], entry["seed"]) for entry in manifest["failures"]}
    failures = Counter(cell for cell, _ in failed)
    rows: list[dict[str, Any]] = []
    shares: list[float] = []
    broken = {number for entry in manifest["errors"] for number in entry["cells"]}
    settings = {entry["cell"]: entry["settings"] for entry in manifest["cells"]}
    known = _by_cell(manifest["batches"])
    for number, own in sorted((known or {cell: [""] for cell in settings}).items()):
        progress(f"cell {number}", len(rows) / len(settings))
        done = [folder.is_finished(name) if name else manifest["status"] == "finished" for name in own]
        started = [latest[name] for name in own if name in latest]
        now = started[-1] if started else None
        parts = [
            1.0 if complete else latest.get(name, {}).get("share", 0.0)
            for name, complete in zip(own, done, strict=True)
        ]
        shares += parts
        rows.append(
            {
                "cell": number,
                **settings[number],
                "state": "failed" if number in broken else _state(all(done), bool(started), running),
                "done": f"{100 * sum(parts) / len(parts):.0f} %",
                "phase": ((not all(done) and now["doing"]) or now["phase"]) if now else "",
                "step": f"{now['step']:,} of {now['steps']:,}" if now else "",
                "loss": _loss(number, [measured[name] for name in own if name in measured]),
                "failed seeds": failures[number],
            }
        )
    share = sum(shares) / len(shares)
    complete = f"{manifest['name']}: {100 * share:.0f} % done, " + (
        "finished" if share == 1 else f"running{_left(lines[-1]) if lines else ''}" if running else "stopped"
    )
    return pd.DataFrame(rows), complete


def _by_cell(batches: list[dict[str, Any]]) -> dict[int, list[str]]:
    cells: dict[int, list[str]] = {}
    for batch in batches:
        for cell in batch["cells"]:
            cells.setdefault(cell, []).append(batch["name"])
    return cells


def _loss(cell: int, lines: list[dict[str, Any]]) -> str:
    positions = [(line["phase"], line["step"]) for line in lines]
    found = [
        loss
        for line, location in zip(lines, positions, strict=True)
        if location == positions[-1]
        for loss in line["losses"].get(str(cell), [])
    ]
    return f"{statistics.median(found):.4g}" if found else ""


def _state(finished: bool, started: bool, running: bool) -> str:
    if finished:
        return "finished"
    return ("running" if running else "stopped") if started else "waiting"


def _left(latest: dict[str, Any]) -> str:
    left = None if latest["left"] is None else latest["left"] - (time.time() - latest["time"])
    return f", about {duration(left)} left" if left is not None and left > 0 else ""
