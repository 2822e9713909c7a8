"""Running one batch: phase after phase from its checkpoint, if any, to its tables."""

import math
import threading
import time
from collections.abc import Callable, Container
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxattn.base import SharedData
from jaxattn.data.splits import Loaded
from jaxattn.engine import devices, tables
from jaxattn.engine.ahead import Ahead
from jaxattn.engine.batches import Batch
from jaxattn.engine.groups import CompileGroup
from jaxattn.engine.program import Made, Program, made_before, seed_keys
from jaxattn.engine.store import Store
from jaxattn.study.contract import check_data
from jaxattn.study.hyperparameters import Hyperparameters
from jaxattn.study.seed import Carried, merged
from jaxattn.trees import get
from jaxattn.trees import names as _names

Tables = Callable[[], dict[str, pd.DataFrame]]


class Interrupted(Exception):
    """A run was asked to stop, and has saved what it needs to continue."""


class Clock(NamedTuple):
    """When a run reports and saves.

    Attributes:
        block_s: seconds between two looks at the clock; progress shows and a stop is obeyed that often.
        checkpoint_s: least seconds between two checkpoints on the way.
        checkpoint_share: at most this share of the time goes into them.
    """

    block_s: float = 1.0
    checkpoint_s: float = 60.0
    checkpoint_share: float = 0.03


class Callbacks(NamedTuple):
    """Who is told while a batch runs.

    Attributes:
        stop: set when the batch is to save and stop.
        report: told (phase, steps taken in it, share of the batch done, median loss).
        log: told what a probe step measured: medians over the seeds, and the series of single seeds.
    """

    stop: threading.Event
    report: Callable[[str, int, float, float], None]
    log: Callable[[dict[str, Any], dict[str, dict[str, float]]], None]


class CompilationCache:
    """What batches share: the corpora of a text, and programs, which compile once for a setting."""

    def __init__(self, loading: Callable[[str, int, int | None], None]):
        """Begin with nothing; `loading` is told how far the reading of texts is."""
        self._loading = loading
        self._text: tuple[Any, Loaded] | None = None
        self._kept: tuple[CompileGroup, Made] | None = None
        self._ahead = Ahead()

    def compile_ahead(self, group: CompileGroup, lanes: int, without: Container[str] = ()) -> None:
        """Have the programs of a batch compiled while it begins, but those without which it goes on."""
        data = group.setting.data
        loaded = self._load_text(data) if isinstance(data, SharedData) else None
        self._ahead.compile(group, lanes, self._made(group), loaded, without)

    def load(self, group: CompileGroup, keys: jax.Array, numbers: Hyperparameters) -> Loaded:
        """Draw the corpora of a batch's lanes, or keep the text that batches share."""
        data = group.setting.data
        if isinstance(data, SharedData):
            return self._load_text(data)
        loaded = Loaded(self._made(group).draw(group.setting)(keys, numbers), False, data.tokens)
        check_data(loaded)
        return loaded

    def start(self, group: CompileGroup, loaded: Loaded, keys: jax.Array, numbers: Hyperparameters) -> Any:
        """Draw the parameters of a batch's lanes."""
        return self._made(group).start(group.setting, loaded)(keys, numbers)

    def programs(self, group: CompileGroup, loaded: Loaded) -> list[Program]:
        """Make the programs of a batch's phases, or keep those of its group."""
        made, setting = self._made(group), group.setting
        return [made.phase(setting, index, loaded) for index in range(len(setting.phases))]

    def close(self) -> None:
        """Compile nothing any more."""
        self._ahead.close()

    def _load_text(self, data: SharedData) -> Loaded:
        if self._text is None or self._text[0] != data:
            self._text = data, data.load(self._loading)
            check_data(self._text[1])
        return self._text[1]

    def _made(self, group: CompileGroup) -> Made:
        if self._kept is None or self._kept[0] is not group:
            self._kept = group, made_before(group.setting)
        return self._kept[1]


def execute(
    batch: Batch, cache: CompilationCache, folder: Store, callbacks: Callbacks, clock: Clock
) -> list[dict[str, Any]]:
    """Run the phases of a batch, or what is left of them, and write its tables.

    Args:
        batch: what to run.
        cache: what it shares with the batches before.
        folder: where its checkpoints and tables are.
        callbacks: who is told.
        clock: when it reports and saves.

    Returns:
        The lanes that failed: cell, seed, phase, step and reason.

    Raises:
        Interrupted: it was asked to stop, and has saved.
        RunError: the folder cannot be written.
    """
    running = _Running(batch, cache, folder, callbacks, clock)
    for number in range(len(running.programs)):
        if not running.is_done(number) and not running.phase(number):
            # Its checkpoint was damaged and is set aside.
            return execute(batch, cache, folder, callbacks, clock)
    return running.finish()


class _Running:
    """A batch on its way: parameters, tables so far, and where it is."""

    def __init__(
        self, batch: Batch, cache: CompilationCache, folder: Store, callbacks: Callbacks, clock: Clock
    ):
        self.batch, self.folder, self.callbacks, self.clock = batch, folder, callbacks, clock
        setting = batch.group.setting
        self.phases = setting.phases
        lanes = devices.pad_to_devices(batch.lanes, setting.data.shared)
        self.mark, earlier = folder.resume(batch.name)
        cache.compile_ahead(batch.group, len(lanes), self._behind())
        data_keys, self.keys = seed_keys([seed for _, seed in lanes])
        self.numbers = batch.group.hyperparameters([cell for cell, _ in lanes])
        self.loaded = cache.load(batch.group, data_keys, self.numbers)
        self.params = cache.start(batch.group, self.loaded, self.keys, self.numbers)
        self.programs = cache.programs(batch.group, self.loaded)
        # Joined when they are written; joined at every step, tables of many seeds are copied again and again.
        self.records, self.tokens = [earlier["records"]], [earlier["tokens"]]
        self.failures = list(self.mark.failures) if self.mark else []
        # Parameters after the phases before, as far as they moved in them.
        self.kept: dict[str, dict[str, Any]] = {}
        self.due = time.monotonic() + clock.checkpoint_s

    def _behind(self) -> set[str]:
        """Name the programs that a batch which goes on calls no more."""
        if self.mark is None:
            return set()
        names = [phase.name for phase in self.phases[: self.mark.phase + 1]]
        every = ("advance", "measure", "state_metrics", "observe", "tokens")
        return {f"{name}.begin" for name in names} | {f"{n}.{x}" for n in names[:-1] for x in every}

    def is_done(self, number: int) -> bool:
        return self.mark is not None and number < self.mark.phase

    def phase(self, number: int) -> bool:
        """Run a phase, or what is left of it; tell whether its checkpoint could be read."""
        made = self.programs[number]
        resumes = self.mark is not None and number == self.mark.phase
        restored = self._restore(number) if resumes else self._begin(made)
        if restored is None:
            return False
        carried, history, done = restored
        pace, loss = _StepTimer(self.clock.block_s), math.nan
        for step in made.probe_steps:
            if resumes and step <= done:
                continue
            while done < step and not self.callbacks.stop.is_set():
                taken = pace.block(step - done)
                carried = pace.timed(
                    made.advance, carried, self.loaded.splits, self.numbers, jnp.int32(taken)
                )
                done += taken
                self.callbacks.report(made.phase.name, done, self._share(number, done), loss)
                if time.monotonic() >= self.due and done < step:
                    self._save_timed(carried, history, number, done)
            if done == step:
                loss = self._measure(number, carried, history, step)
            if self.callbacks.stop.is_set():
                self._save_so_far(carried, history, number, done)
                raise Interrupted
        self._end(number, carried, history)
        return True

    def finish(self) -> list[dict[str, Any]]:
        """Write the tables and the parameters."""

        def whole() -> dict[str, pd.DataFrame]:
            records = _by_cell(tables.with_best(_joined(self.records)))
            return {"records": records, "tokens": _by_cell(_joined(self.tokens))}

        self._save(self.kept, whole, len(self.phases), 0, finished=True)
        return self.failures

    def _begin(self, made: Program) -> tuple[Carried, dict[str, np.ndarray], int]:
        carried = made.begin(self.params, self.loaded.splits, self.numbers, self.keys)
        return carried, self._histories(made, carried), 0

    def _histories(self, made: Program, carried: Any) -> dict[str, np.ndarray]:
        """Make room for what the probes of the phase look at, (L, probe steps, ...) each."""
        found = {}
        for number, (_, observe) in enumerate(made.observe):
            with jax.enable_x64(True):
                like = observe.shapes(carried)
            found[str(number)] = np.zeros((like.shape[0], len(made.probe_steps), *like.shape[1:]))
        return found

    def _restore(self, number: int) -> tuple[Carried, dict[str, np.ndarray], int] | None:
        made = self.programs[number]
        like = made.begin.shapes(self.params, self.loaded.splits, self.numbers, self.keys)
        names = {phase.name: list(phase.train) for phase in self.phases[:number]}
        kept = _kept_like(self.params, names)
        target = {"carried": like, "kept": kept}
        if self.mark is None:
            return None
        wanted = {"state": target, "history": self._histories(made, like)}
        restored = self.folder.restore(self.batch.name, self.mark, wanted)
        if restored is None:
            return None
        self.kept = restored["state"]["kept"]
        carried = devices.put(restored["state"]["carried"], self.loaded.shared)
        return carried, restored["history"], self.mark.step

    def _measure(self, number: int, carried: Carried, history: dict[str, np.ndarray], step: int) -> float:
        """Measure, record and log; return the median loss."""
        made = self.programs[number]
        every = made.measure(carried, self.loaded.splits, self.numbers)
        found = merged(self.batch.group.setting, every, step) | made.state_metrics(carried)
        for name, (_, observe) in zip(history, made.observe, strict=True):
            history[name][:, made.probe_steps.index(step)] = observe(carried)
        lanes = len(self.batch.lanes)
        measured = {name: np.asarray(x)[:lanes] for name, x in found.items()}
        self.records.append(tables.rows(measured, self.batch, made.phase.name, step))
        losses = measured["loss"]
        finite = losses[np.isfinite(losses)]
        self.failures += self._new_failures(number, carried, losses, step)
        place = {"phase": made.phase.name, "step": step, "steps": made.probe_steps[-1]}
        place |= {"share": self._share(number, step)}
        entry = tables.log_entry(measured, self.batch, place, self.failures)
        self.callbacks.log(entry, tables.seed_series(measured, self.batch))
        return float(np.median(finite)) if finite.size else math.nan

    def _end(self, number: int, carried: Carried, history: dict[str, np.ndarray]) -> None:
        made = self.programs[number]
        self.params = carried.state.params
        moved = made.phase.train if self.kept or number else _names(self.params)
        self.kept[made.phase.name] = {name: get(self.params, name) for name in moved}
        for (probe, _), seen in zip(made.observe, history.values(), strict=True):
            model = self.batch.group.setting.model
            on_the_way, at_the_end = probe.conclude(seen, self.params, model, self.loaded)
            for row, step in enumerate(made.probe_steps):
                values = {name: x[:, row] for name, x in on_the_way.items()}
                self.records.append(tables.rows(values, self.batch, made.phase.name, step))
            self.records.append(tables.rows(at_the_end, self.batch, made.phase.name, made.probe_steps[-1]))
        columns = jax.device_get(made.tokens(self.params, self.loaded.splits, self.numbers))
        self.tokens.append(tables.token_rows(columns, self.batch, made.phase.name, self.loaded))

    def _share(self, number: int, done: int) -> float:
        return (number + done / self.programs[number].probe_steps[-1]) / len(self.phases)

    def _save(self, arrays: Any, tables: Tables, phase: int, step: int, finished: bool = False) -> None:
        self.folder.save(
            self.batch.name,
            arrays,
            tables,
            cells={str(cell.number): cell.config_hash for cell in self.batch.cells},
            phase=phase,
            step=step,
            failures=self.failures,
            finished=finished,
        )

    def _save_so_far(self, carried: Carried, history: Any, number: int, done: int) -> None:
        arrays = {"state": {"carried": carried, "kept": self.kept}, "history": history}
        so_far = {"records": _joined(self.records), "tokens": _joined(self.tokens)}
        self._save(arrays, lambda: so_far, number, done)

    def _save_timed(self, carried: Carried, history: Any, number: int, done: int) -> None:
        begin = time.monotonic()
        self._save_so_far(carried, history, number, done)
        now = time.monotonic()
        self.due = now + max(self.clock.checkpoint_s, (now - begin) / self.clock.checkpoint_share)

    def _new_failures(
        self, number: int, carried: Carried, losses: np.ndarray, step: int
    ) -> list[dict[str, Any]]:
        """List lanes that failed by their own account, or whose loss at a probe step is not finite."""
        phase = self.phases[number]
        before = {(failure["cell"], failure["seed"]) for failure in self.failures}
        lanes = self.batch.lanes
        failed_at = np.asarray(carried.state.failed_at)[: len(lanes)]
        failed_at = np.where((failed_at < 0) & ~np.isfinite(losses), step, failed_at)
        return [
            {
                "cell": cell.number,
                "seed": seed,
                "phase": phase.name,
                "step": int(at),
                "reason": phase.failure,
            }
            for (cell, seed), at in zip(lanes, failed_at, strict=True)
            if at >= 0 and (cell.number, seed) not in before
        ]


class _StepTimer:
    """Cuts long stretches into blocks of about a second, so that progress shows and a stop is obeyed."""

    def __init__(self, block_s: float) -> None:
        self.block_s = block_s
        self.per_step: float | None = None

    def block(self, remaining: int) -> int:
        return min(remaining, max(1, int(self.block_s / self.per_step))) if self.per_step else 1

    def timed(self, advance: Any, carried: Any, splits: Any, numbers: Any, steps: jax.Array) -> Any:
        begin = time.perf_counter()
        carried = jax.block_until_ready(advance(carried, splits, numbers, steps))
        # The first call compiles; it only says that steps are not slower than that.
        self.per_step = (time.perf_counter() - begin) / int(steps)
        return carried


def _kept_like(params: Any, moved: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Shapes of what is kept of the phases before."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    return {
        phase: {name: get(shapes, name) for name in (_names(params) if number == 0 else names)}
        for number, (phase, names) in enumerate(moved.items())
    }


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True)


def _by_cell(table: pd.DataFrame) -> pd.DataFrame:
    in_order = table.empty or table["cell"].is_monotonic_increasing
    return table if in_order else table.sort_values("cell", kind="stable", ignore_index=True)
