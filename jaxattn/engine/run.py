"""Running a study: every group of cells, seeds together, with checkpoints on the way."""

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from jaxattn.errors import RunError
from jaxattn.study import checkpoints, config, corpora, memory, sweepfile, units, writers
from jaxattn.study import manifest as manifest_of
from jaxattn.study.check import placed
from jaxattn.study.execute import Bench, Watch, execute
from jaxattn.study.groups import groups
from jaxattn.study.progress import Reporter
from jaxattn.study.store import Store
from jaxattn.study.units import Unit

OnFailure = Literal["stop", "continue", "retry"]
RETRIES = 2


class Outcome(NamedTuple):
    """What a run left.

    Attributes:
        directory: its folder.
        failures: the lanes whose numbers failed.
        errors: the units that could not be run, and why.
        units: how many units there are.
        already_finished: whether all was there already.
    """

    directory: Path
    failures: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    units: int
    already_finished: bool


def run_sweep(
    sweep: config.Sweep,
    directory: Path,
    *,
    command: str,
    reporter: Reporter,
    shard: tuple[int, int] = (1, 1),
    max_memory: int | None = None,
    on_failure: OnFailure = "continue",
    profile: bool = False,
    log: Sequence[writers.Kind] = (),
) -> Outcome:
    """Run a sweep, or continue it: units that are finished are not run again.

    Args:
        sweep: what to run.
        directory: the results folder.
        command: the command line, for the manifest.
        reporter: where progress goes.
        shard: I and N: run the I-th of N shares of the units, in a folder of its own.
        max_memory: bytes that may be used on a device; chosen for the device by default.
        on_failure: what to do when a unit fails, by NaN or by an error of the machine: `stop` the sweep,
            `continue` with the next one, or `retry` it before continuing.
        profile: write a trace of the run into the folder.
        log: dashboards that get every measurement, as metrics.jsonl does.

    Returns:
        The outcome; records.parquet, tokens.parquet and manifest.json are in the folder.

    Raises:
        InputError: data that cannot be used, a cell that does not fit, or a folder of another config.
        RunError: a folder that cannot be written, or a failure that is to stop the sweep.
        Interrupted: SIGINT or SIGTERM came; the same command continues.
    """
    started = time.monotonic()
    folder = Store(directory, reporter.note)
    with (
        folder.locked(),
        jax.enable_x64(sweep.dtype == "float64"),
        jax.default_matmul_precision("highest"),
        _stopping() as stop,
    ):
        widths = lane_widths(sweep, folder, max_memory, shard[1])
        own = units.share(units.plan(sweep, folder.units(), widths), shard)
        described = _describe(sweep, command) | {"shard": list(shard), "widths": widths}
        manifest = folder.open(sweep, described) | {"widths": widths}
        todo = [unit for unit in own if not folder.is_finished(unit.name)]
        if not todo and manifest["status"] == "finished" and folder.is_merged(manifest):
            return Outcome(folder.directory, manifest["failures"], [], len(own), True)
        folder.write_manifest(manifest | {"status": "running"})
        errors: list[dict[str, Any]] = []
        try:
            with ExitStack() as stack:
                if profile:
                    stack.enter_context(jax.profiler.trace(str(folder.directory / "profile")))
                write: list[writers.Write] = [folder.log]
                for kind in log:
                    function, close = writers.writer(kind, folder.directory, sweep.name)
                    write.append(function)
                    stack.callback(close)
                checkpoints.prepare()
                _run_units(todo, len(own), folder, reporter, stop, on_failure, errors, write)
            manifest |= folder.merge([unit.name for unit in own if folder.is_marked(unit.name)])
            manifest["status"] = "failed" if errors else "finished"
        finally:
            manifest["errors"] = errors
            manifest["wall_time_s"] = round(manifest["wall_time_s"] + time.monotonic() - started, 3)
            folder.write_manifest(manifest)
    return Outcome(folder.directory, manifest["failures"], errors, len(own), False)


def lane_widths(sweep: config.Sweep, folder: Store, max_memory: int | None, shards: int = 1) -> list[int]:
    """Choose how many lanes of every group run together; what a folder was begun with, it keeps.

    Raises:
        InputError: a cell whose sizes do not fit together, or that does not fit in memory.
    """
    seeds = len(sweep.seed_numbers)
    every = groups(sweepfile.cells(sweep))
    for group in every:
        for cell in group.cells:
            with placed(f"cell {cell.number}" if cell.settings else ""):
                corpora.check(cell.config.data)
    if folder.manifest_path.exists() and max_memory is None and folder.units():
        return folder.read_manifest()["widths"]
    budget = max_memory or memory.default_budget()
    fitting = [group.config.chunk or memory.width(group, seeds, budget) for group in every]
    # Every shard gets something to do.
    return [min(width, -(-len(g.cells) * seeds // shards)) for g, width in zip(every, fitting, strict=True)]


def _describe(sweep: config.Sweep, command: str) -> dict[str, Any]:
    listed = [
        {"cell": c.number, "settings": c.settings, "config_hash": sweepfile.config_hash(c.config)}
        for c in sweepfile.cells(sweep)
    ]
    return manifest_of.describe(sweep, listed, sweepfile.config_hash(sweep), command)


def _run_units(
    todo: list[Unit],
    whole: int,
    folder: Store,
    reporter: Reporter,
    stop: threading.Event,
    on_failure: OnFailure,
    errors: list[dict[str, Any]],
    write: Sequence[writers.Write],
) -> None:
    bench = Bench(reporter.loading)
    started = time.time()
    for number, unit in enumerate(todo, start=whole - len(todo)):

        def report(place: str, share: float, loss: float, number=number) -> None:
            known = "" if math.isnan(loss) else f"loss {loss:.4g}"
            reporter.update(place, (number + share) / whole, known)

        def log(measured: dict[str, Any], unit=unit, number=number) -> None:
            overall = (number + measured["share"]) / whole
            entry = {"time": time.time(), "start": started, "unit": unit.name, "overall": overall} | measured
            for to in write:
                to(entry)

        watch = Watch(stop, report, log)
        for attempt in range(1 + RETRIES * (on_failure == "retry")):
            if attempt:
                reporter.note(f"{unit.name}: failed, trying again")
                folder.forget(unit.name)
            failed, error = _try(unit, bench, folder, watch)
            if not (failed or error):
                break
        if error:
            errors.append({"unit": unit.name, "cells": [c.number for c in unit.cells], "reason": error})
        if on_failure == "stop" and (failed or error):
            raise RunError(
                f"{unit.name}: {error or failed[0]['reason']}; stopped, what is done is kept; "
                "go on with --on-failure continue"
            )


def _try(unit: Unit, bench: Bench, folder: Store, watch: Watch) -> tuple[list[dict[str, Any]], str]:
    """Run a unit; return the lanes that failed, and what the machine said if it could not be run."""
    try:
        return execute(unit, bench, folder, watch), ""
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return [], f"{reason}; smaller units may help: --max-memory or --set chunk=..."


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second SIGINT kills as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
