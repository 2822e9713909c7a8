"""Running a study: every cell, seeds together, phase after phase, with checkpoints on the way."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxattn.study import config, corpora, sweepfile
from jaxattn.study import manifest as manifest_of
from jaxattn.study.limit import LIMIT_METRICS, against_limit
from jaxattn.study.program import Program, init_params, program
from jaxattn.study.progress import Reporter
from jaxattn.study.rows import log_entry, rows, token_rows, with_best
from jaxattn.study.store import Position, Store
from jaxattn.study.units import Unit, plan, share

CHECKPOINT_EVERY_S = 30.0
BLOCK_S = 1.0


class Interrupted(Exception):
    """A run was asked to stop, and has saved what it needs to continue."""


class Outcome(NamedTuple):
    """What a run left: its folder, the seeds that failed, and whether all was there already."""

    directory: Path
    failures: list[dict[str, Any]]
    already_finished: bool


def run_sweep(
    sweep: config.Sweep,
    directory: Path,
    *,
    command: str,
    reporter: Reporter,
    shard: tuple[int, int] = (1, 1),
) -> Outcome:
    """Run a sweep, or continue it: units that are finished are not run again.

    Args:
        sweep: what to run.
        directory: the results folder.
        command: the command line, for the manifest.
        reporter: where progress goes.
        shard: I and N: run the I-th of N shares of the units, in a folder of its own.

    Returns:
        The outcome; records.parquet, tokens.parquet and manifest.json are in the folder.

    Raises:
        InputError: data that cannot be used, or a folder of another config.
        RunError: a folder that cannot be written.
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
        units = share(plan(sweep, folder.units()), shard)
        manifest = folder.open(sweep, _describe(sweep, units, command) | {"shard": list(shard)})
        todo = [unit for unit in units if not folder.is_finished(unit.name)]
        if not todo and manifest["status"] == "finished" and folder.is_merged(manifest):
            return Outcome(folder.directory, manifest["failures"], True)
        folder.write_manifest(manifest | {"status": "running"})
        try:
            _run_units(todo, len(units), folder, reporter, stop)
            manifest |= folder.merge([unit.name for unit in units])
            manifest["status"] = "finished"
        finally:
            manifest["wall_time_s"] = round(manifest["wall_time_s"] + time.monotonic() - started, 3)
            folder.write_manifest(manifest)
    return Outcome(folder.directory, manifest["failures"], False)


def _describe(sweep: config.Sweep, units: list[Unit], command: str) -> dict[str, Any]:
    cells = sweepfile.cells(sweep)
    listed = [
        {"cell": c.number, "settings": c.settings, "config_hash": sweepfile.config_hash(c.config)}
        for c in cells
    ]
    width = max(len(unit.seeds) for unit in units)
    return manifest_of.describe(sweep, listed, sweepfile.config_hash(sweep), command) | {"chunk_width": width}


def _run_units(
    units: list[Unit], whole: int, folder: Store, reporter: Reporter, stop: threading.Event
) -> None:
    loaded: corpora.Loaded | None = None
    of_data: config.Data | None = None
    started = time.time()
    for number, unit in enumerate(units, start=whole - len(units)):
        data_keys, model_keys = corpora.seed_keys(unit.seeds)
        if loaded is None or not loaded.shared or unit.cell.config.data != of_data:
            loaded = corpora.load(unit.cell.config.data, data_keys, reporter.loading)
            of_data = unit.cell.config.data

        def report(phase: str, step: int, share: float, loss: float, unit=unit, number=number) -> None:
            place = f"{describe_cell(unit.cell)}{phase} step {step:,}"
            reporter.update(place, (number + share) / whole, f"loss {loss:.4g}")

        def log(measured: dict[str, Any], unit=unit, number=number) -> None:
            overall = (number + measured["share"]) / whole
            entry = {"time": time.time(), "start": started, "unit": unit.name, "overall": overall}
            folder.log(entry | measured)

        _run_unit(unit, loaded, model_keys, folder, report, log, stop)


def _run_unit(
    unit: Unit,
    loaded: corpora.Loaded,
    keys: jax.Array,
    folder: Store,
    report: Callable[..., None],
    log: Callable[[dict[str, Any]], None],
    stop: threading.Event,
) -> None:
    """Run the phases of a unit from its checkpoint, if any, and write its tables."""
    settings = unit.cell.config
    params = init_params(settings, loaded.corpora.train, keys)
    position, records, tokens = folder.resume(unit.name)
    if position:
        records, tokens = (_until(table, position, settings.phases) for table in (records, tokens))
    failures = list(position.failures) if position else []
    saved = time.monotonic()
    for number, phase in enumerate(settings.phases):
        if position and number < position.phase:
            continue
        made = program(settings, phase, loaded)
        follows = settings.probes.max_margin and tuple(phase.train) == ("p",)
        shape = (len(unit.seeds), len(made.probe_steps), settings.model.dim)
        trail = np.zeros(shape) if follows else None
        if position and number == position.phase:
            like = jax.eval_shape(made.init, params, loaded.corpora)
            restored = folder.restore(unit.name, like, trail)
            if restored is None:
                _run_unit(unit, loaded, keys, folder, report, log, stop)
                return
            state, trail = restored
            done, upcoming = position.step, [step for step in made.probe_steps if step > position.step]
        else:
            state, done, upcoming = made.init(params, loaded.corpora), 0, made.probe_steps
        pace, loss = _Pace(), math.nan
        for step in upcoming:
            before = _copy(state.params) if made.law else None
            while done < step and not stop.is_set():
                taken = pace.block(step - done)
                state = pace.timed(made.advance, state, loaded.corpora, jnp.int32(taken))
                done += taken
                report(phase.name, done, (number + done / made.steps) / len(settings.phases), loss)
                if time.monotonic() - saved > CHECKPOINT_EVERY_S and done < step:
                    folder.save(unit.name, state, trail, Position(number, done, failures), records, tokens)
                    saved = time.monotonic()
            if done == step:
                measured = dict(made.measure(state, loaded.corpora))
                if made.law and step:
                    measured["one_step_error"] = made.law((before, state.params), loaded.corpora)
                if trail is not None:
                    trail[:, made.probe_steps.index(step)] = made.query(state)
                measured = jax.device_get(measured)
                records = pd.concat([records, rows(measured, unit, phase.name, step)], ignore_index=True)
                finite = measured["loss"][np.isfinite(measured["loss"])]
                loss = float(np.median(finite)) if finite.size else math.nan
                portion = (number + step / made.steps) / len(settings.phases)
                report(phase.name, step, portion, loss)
                failed = failures + _new_failures(state, unit, phase.name, made.failure, failures)
                log(log_entry(measured, phase.name, step, made.steps, portion, failed))
            if stop.is_set():
                folder.save(unit.name, state, trail, Position(number, done, failures), records, tokens)
                raise Interrupted
        failures += _new_failures(state, unit, phase.name, made.failure, failures)
        params = state.params
        if trail is not None:
            records = pd.concat([records, *_limit_rows(trail, params.E, loaded, unit, made, phase.name)])
        columns = jax.device_get(made.tokens(params, loaded.corpora))
        tokens = pd.concat([tokens, token_rows(columns, unit, phase.name, loaded)], ignore_index=True)
    last = Position(len(settings.phases), 0, failures)
    if position != last:
        folder.save(unit.name, params, None, last, records, tokens)
    folder.finish_unit(unit.name, with_best(records), tokens, failures)


class _Pace:
    """Cuts long stretches into blocks of about a second, so that progress shows and a stop is obeyed."""

    def __init__(self) -> None:
        self.per_step: float | None = None

    def block(self, remaining: int) -> int:
        return min(remaining, max(1, int(BLOCK_S / self.per_step))) if self.per_step else 1

    def timed(self, advance: Any, state: Any, corpora: Any, steps: jax.Array) -> Any:
        begin = time.perf_counter()
        state = jax.block_until_ready(advance(state, corpora, steps))
        elapsed = (time.perf_counter() - begin) / int(steps)
        # The first call compiles; it only says that steps are not slower than that.
        self.per_step = elapsed
        return state


def _until(table: pd.DataFrame, position: Position, phases: tuple[config.Phase, ...]) -> pd.DataFrame:
    """Keep what lies before a checkpoint: a stop between tables and checkpoint leaves newer rows."""
    if table.empty:
        return table
    earlier = [phase.name for phase in phases[: position.phase]]
    kept = table["phase"].isin(earlier)
    if "step" in table and position.phase < len(phases):
        current = (table["phase"] == phases[position.phase].name) & (table["step"] <= position.step)
        # What is known only at the end of a phase will be found again.
        kept |= current & ~table["metric"].isin(LIMIT_METRICS)
    return table[kept]


def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _new_failures(
    state: Any, unit: Unit, phase: str, reason: str, known: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    failed_at = np.asarray(state.failed_at)
    return [
        {
            "cell": unit.cell.number,
            "seed": seed,
            "phase": phase,
            "step": int(step),
            "reason": reason,
        }
        for seed, step in zip(unit.seeds, failed_at, strict=True)
        if step >= 0 and all(failure["seed"] != seed for failure in known)
    ]


def _limit_rows(
    trail: np.ndarray, E: Any, loaded: corpora.Loaded, unit: Unit, made: Program, phase: str
) -> Iterator[pd.DataFrame]:
    """Lay out what a phase's probes are worth once its limit is known."""
    probes, facts = against_limit(trail, E, loaded)
    for row, step in enumerate(made.probe_steps):
        yield rows({name: x[:, row] for name, x in probes.items()}, unit, phase, step)
    yield rows(facts, unit, phase, made.steps)


def describe_cell(cell: sweepfile.Cell) -> str:
    """Name a cell by its settings, nothing for the only cell of a sweep without axes."""
    return " ".join(f"{key}={value}" for key, value in cell.settings.items()) + " " * bool(cell.settings)


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
