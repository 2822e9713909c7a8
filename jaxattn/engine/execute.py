"""Running one unit: phase after phase from its checkpoint, if any, to its tables."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxattn.study import config, corpora, devices
from jaxattn.study.checkpoints import Position
from jaxattn.study.grid import Cell
from jaxattn.study.groups import Group
from jaxattn.study.limit import LIMIT_METRICS, against_limit
from jaxattn.study.program import Program, init_params, program
from jaxattn.study.rows import log_entry, rows, token_rows, with_best
from jaxattn.study.store import Store
from jaxattn.study.units import Unit

CHECKPOINT_EVERY_S = 60.0
# At most this share of the time goes into checkpoints on the way.
CHECKPOINT_SHARE = 0.03
BLOCK_S = 1.0


class Interrupted(Exception):
    """A run was asked to stop, and has saved what it needs to continue."""


class Watch(NamedTuple):
    """Who looks on while a unit runs.

    Attributes:
        stop: set when the unit is to save and stop.
        report: told (place, share of the unit done, median loss).
        log: told what a probe measured.
    """

    stop: threading.Event
    report: Callable[[str, float, float], None]
    log: Callable[[dict[str, Any]], None]


class Bench:
    """What the units of a group share: the corpora of a text, and programs that compile once."""

    def __init__(self, loading: Callable[[str, int, int | None], None]):
        """Begin with nothing; `loading` is told how far the reading of texts is."""
        self._loading = loading
        self._shared: corpora.Loaded | None = None
        self._data: config.Data | None = None
        self._group: Group | None = None
        self._programs: list[Program] = []

    def load(self, unit: Unit, keys: jax.Array, numbers: Any) -> corpora.Loaded:
        """Draw the corpora of a unit's lanes, or keep the text that units share."""
        data = unit.group.config.data
        if self._shared is None or self._data != data:
            loaded = corpora.load(data, keys, self._loading, numbers)
            self._shared, self._data = (loaded, data) if loaded.shared else (None, None)
            return loaded
        return self._shared

    def programs(self, unit: Unit, loaded: corpora.Loaded) -> list[Program]:
        """Make the programs of a unit's phases, or keep those of its group."""
        if self._group is not unit.group:
            phases = range(len(unit.group.config.phases))
            self._programs = [program(unit.group.config, index, loaded) for index in phases]
            self._group = unit.group
        return self._programs


def execute(unit: Unit, bench: Bench, folder: Store, watch: Watch) -> list[dict[str, Any]]:
    """Run the phases of a unit, or what is left of them, and write its tables.

    Args:
        unit: what to run.
        bench: what it shares with the units before.
        folder: where its checkpoints and tables are.
        watch: who looks on.

    Returns:
        The lanes that failed: cell, seed, phase, step and reason.

    Raises:
        Interrupted: it was asked to stop, and has saved.
        RunError: the folder cannot be written.
    """
    settings = unit.group.config
    shared = corpora.is_text(settings.data)
    lanes = devices.fill(unit.lanes, shared)
    data_keys, model_keys = corpora.seed_keys([seed for _, seed in lanes])
    numbers = unit.group.numbers([cell for cell, _ in lanes])
    loaded = bench.load(unit, data_keys, numbers)
    params = init_params(settings, loaded, model_keys, numbers)
    position, *earlier = folder.resume(unit.name)
    # Joined when they are written; joined at every probe, tables of many seeds are copied again and again.
    records, tokens = ([_until(table, position, settings.phases)] for table in earlier)
    failures = list(position.failures) if position else []
    due = time.monotonic() + CHECKPOINT_EVERY_S

    def save(state: Any, trail: Any, position: Position) -> None:
        folder.save(unit.name, state, trail, position, _joined(records), _joined(tokens))

    for number, (phase, made) in enumerate(zip(settings.phases, bench.programs(unit, loaded), strict=True)):
        if position and number < position.phase:
            continue
        follows = settings.probes.max_margin and tuple(phase.train) == ("p",)
        trail = np.zeros((len(lanes), len(made.probe_steps), settings.model.dim)) if follows else None
        if position and number == position.phase:
            like = jax.eval_shape(made.init, params, loaded.corpora, numbers, model_keys)
            restored = folder.restore(unit.name, like, trail)
            if restored is None:
                return execute(unit, bench, folder, watch)
            state, trail = devices.place(restored[0], shared), restored[1]
            done, upcoming = position.step, [step for step in made.probe_steps if step > position.step]
        else:
            state = made.init(params, loaded.corpora, numbers, model_keys)
            done, upcoming = 0, made.probe_steps
        pace, loss = _Pace(), math.nan
        for step in upcoming:
            before = made.values(state.params) if made.values else None
            while done < step and not watch.stop.is_set():
                taken = pace.block(step - done)
                state = pace.timed(made.advance, state, loaded.corpora, numbers, jnp.int32(taken))
                done += taken
                place = f"{describe_cell(unit.cells[0])}{phase.name} step {done:,}"
                watch.report(place, (number + done / made.steps) / len(settings.phases), loss)
                if time.monotonic() >= due and done < step:
                    begin = time.monotonic()
                    save(state, trail, Position(number, done, failures))
                    now = time.monotonic()
                    due = now + max(CHECKPOINT_EVERY_S, (now - begin) / CHECKPOINT_SHARE)
            if done == step:
                found = made.measure(state, loaded.corpora)
                if made.law and step:
                    found = found | {
                        "one_step_error": made.law(before, state.params, loaded.corpora, numbers)
                    }
                if trail is not None:
                    trail[:, made.probe_steps.index(step)] = made.query(state)
                measured = {name: np.asarray(x)[: len(unit.lanes)] for name, x in found.items()}
                records.append(rows(measured, unit, phase.name, step))
                finite = measured["loss"][np.isfinite(measured["loss"])]
                loss = float(np.median(finite)) if finite.size else math.nan
                portion = (number + step / made.steps) / len(settings.phases)
                failed = failures + _new_failures(state, unit, phase.name, made.failure, failures)
                watch.log(log_entry(measured, phase.name, step, made.steps, portion, failed))
            if watch.stop.is_set():
                save(state, trail, Position(number, done, failures))
                raise Interrupted
        failures += _new_failures(state, unit, phase.name, made.failure, failures)
        params = state.params
        if trail is not None:
            records.extend(_limit_rows(trail, params.E, loaded, unit, made, phase.name))
        columns = jax.device_get(made.tokens(params, loaded.corpora))
        tokens.append(token_rows(columns, unit, phase.name, loaded))

    def both() -> tuple[pd.DataFrame, pd.DataFrame]:
        return _by_cell(with_best(_joined(records))), _by_cell(_joined(tokens))

    folder.finish_unit(unit.name, params, both, failures)
    return failures


class _Pace:
    """Cuts long stretches into blocks of about a second, so that progress shows and a stop is obeyed."""

    def __init__(self) -> None:
        self.per_step: float | None = None

    def block(self, remaining: int) -> int:
        return min(remaining, max(1, int(BLOCK_S / self.per_step))) if self.per_step else 1

    def timed(self, advance: Any, state: Any, corpora: Any, numbers: Any, steps: jax.Array) -> Any:
        begin = time.perf_counter()
        state = jax.block_until_ready(advance(state, corpora, numbers, steps))
        # The first call compiles; it only says that steps are not slower than that.
        self.per_step = (time.perf_counter() - begin) / int(steps)
        return state


def _until(table: pd.DataFrame, position: Position | None, phases: tuple[config.Phase, ...]) -> pd.DataFrame:
    """Keep what lies before a checkpoint: a stop between tables and checkpoint leaves newer rows."""
    if position is None or table.empty:
        return table
    earlier = [phase.name for phase in phases[: position.phase]]
    kept = table["phase"].isin(earlier)
    if "step" in table and position.phase < len(phases):
        current = (table["phase"] == phases[position.phase].name) & (table["step"] <= position.step)
        # What is known only at the end of a phase will be found again.
        kept |= current & ~table["metric"].isin(LIMIT_METRICS)
    return table[kept]


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)


def _by_cell(table: pd.DataFrame) -> pd.DataFrame:
    in_order = table["cell"].is_monotonic_increasing
    return table if in_order else table.sort_values("cell", kind="stable", ignore_index=True)


def _new_failures(
    state: Any, unit: Unit, phase: str, reason: str, known: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    before = {(failure["cell"], failure["seed"]) for failure in known}
    failed_at = np.asarray(state.failed_at)[: len(unit.lanes)]
    return [
        {"cell": cell.number, "seed": seed, "phase": phase, "step": int(step), "reason": reason}
        for (cell, seed), step in zip(unit.lanes, failed_at, strict=True)
        if step >= 0 and (cell.number, seed) not in before
    ]


def _limit_rows(
    trail: np.ndarray, E: Any, loaded: corpora.Loaded, unit: Unit, made: Program, phase: str
) -> Iterator[pd.DataFrame]:
    """Lay out what a phase's probes are worth once its limit is known."""
    probes, facts = against_limit(trail, E, loaded)
    for row, step in enumerate(made.probe_steps):
        yield rows({name: x[:, row] for name, x in probes.items()}, unit, phase, step)
    yield rows(facts, unit, phase, made.steps)


def describe_cell(cell: Cell) -> str:
    """Name a cell by its settings, nothing for the only cell of a sweep without axes."""
    return " ".join(f"{key}={value}" for key, value in cell.settings.items()) + " " * bool(cell.settings)
