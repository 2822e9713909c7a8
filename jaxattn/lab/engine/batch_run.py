"""Run one batch: compile, sample the data, run the phases with checkpoints, and save the tables."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np
import pandas as pd

from jaxattn.base import Phase
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get, names, selected
from jaxattn.data.splits import Loaded
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.conclusions import conclude
from jaxattn.lab.engine.continuation import reopen
from jaxattn.lab.engine.monitor import RunMonitor, peak_mib
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.programs import Program, seed_keys
from jaxattn.lab.engine.records import Records, log_entry, seed_series
from jaxattn.lab.storage.batch_record import BatchRecord, Failure
from jaxattn.lab.storage.workplace import Workplace
from jaxattn.lab.study.seed import merged_metrics
from jaxattn.lab.study.setting import Hyperparameters

_Tables = Callable[[], dict[str, pd.DataFrame]]


def run_batch(
    batch: Batch,
    cache: ProgramCache,
    place: Workplace,
    monitor: RunMonitor,
    keep_failures: bool = True,
) -> list[dict[str, Any]]:
    """Run the remaining phases of a batch, write its tables, and return the failed seeds.

    Args:
        batch: the batch.
        cache: cache of compiled programs.
        place: the folder in which the batch is computed.
        monitor: receives the progress.
        keep_failures: False to write nothing at the end if a seed failed.

    Returns:
        One dictionary per failed seed: its cell, seed, phase, step and reason.

    Raises:
        Interrupted: the run was asked to stop; a checkpoint has been saved.
        RunError: the folder cannot be written, or an input file has changed since it was hashed.
    """
    group, phases = batch.group, batch.group.setting.phases
    runs = devices.pad_to_devices(batch.runs, group.setting.data.shared)
    saved, tables = place.resume()
    if saved is not None and saved.finished:
        place.publish()
        return msgspec.to_builtins(saved.failures)
    earlier_s = saved.wall_time_s if saved else 0.0
    continued = False
    if saved is None and batch.source is not None:
        continued = True
        saved, tables = reopen(batch, place.tables_of(batch.source.name, batch.source.record))
    first = saved.phase if saved else 0
    records = Records(batch, tables, msgspec.to_builtins(saved.failures) if saved else ())

    monitor.set_status("compiling")
    programs = cache.of(group)
    programs.compile(group, len(runs), first, resumed=saved is not None)

    monitor.set_status("drawing")
    keys = seed_keys([seed for _, seed in runs], group.setting.hold)
    hyperparameters = group.hyperparameters([cell for cell, _ in runs])
    loaded = programs.draw(keys.data, hyperparameters)
    params = programs.start(loaded, keys.start, hyperparameters)
    # All files have been read.
    cache.check_inputs()

    clock = _Clock(earlier_s, time.monotonic())
    here = _BatchRun(batch, loaded, hyperparameters, records, place, monitor, {}, continued, clock)
    state: _State | None = None
    for index in range(first, len(phases)):
        program = programs.phase(index, loaded)
        monitor.begin_phase(index, program.probe_steps, saved.step if saved else 0)
        state, saved = here.phase(program, index, params, keys.batches, saved), None
        if state is None:  # The checkpoint was damaged, and is not used again.
            left = batch._replace(source=None) if continued else batch
            return run_batch(left, cache, place, monitor, keep_failures)
        params = state.carried.state.params
        monitor.end_phase()

    if records.failures and not keep_failures:
        return records.failures
    monitor.set_status("writing")
    resumable = state is not None and not phases[-1].end_key
    arrays = here.arrays(state) if resumable else here.kept
    here.save(arrays, records.whole, len(phases), 0, finished=True, resumable=resumable)
    return records.failures


@dataclass
class _State:
    """State of a running phase: its index, number of steps taken, program state and observations."""

    index: int
    step: int
    carried: Any
    history: dict[str, np.ndarray]


class _Clock(NamedTuple):
    """Seconds that other processes spent on a batch, and the time at which this process started."""

    earlier_s: float
    started: float

    def seconds(self) -> float:
        return round(self.earlier_s + time.monotonic() - self.started, 3)


class _BatchRun(NamedTuple):
    """Batch in progress, with its data, measurements and results folder.

    Attributes:
        kept: parameters saved at the end of each completed phase, keyed by phase name.
        continued: True if the batch starts from the final states of `batch.source`.
    """

    batch: Batch
    loaded: Loaded
    hyperparameters: Hyperparameters
    records: Records
    place: Workplace
    monitor: RunMonitor
    kept: dict[str, dict[str, Any]]
    continued: bool
    clock: _Clock

    def phase(
        self, program: Program, index: int, params: Any, keys: Any, saved: BatchRecord | None
    ) -> _State | None:
        """Run the rest of a phase and return its final state, or None if its checkpoint is damaged."""
        start = program, index, params, keys
        state = self.initial_state(*start) if saved is None else self.restored_state(*start, saved)
        if state is None:
            return None
        self.steps(program, state, measured=saved is not None)
        self.conclude(program, state)
        return state

    def steps(self, program: Program, state: _State, measured: bool) -> None:
        """Run the remaining steps of a phase, with measurements and checkpoints, updating `state` in place.

        `measured` is True if the current step has already been measured.
        """
        monitor, last_measured = self.monitor, state.step if measured else -1
        for step in (step for step in program.probe_steps if step > last_measured):
            while state.step < step and not monitor.stop_requested:
                taken = monitor.block(step - state.step)
                with monitor.stepping(taken):
                    arguments = self.loaded.splits, self.hyperparameters, np.int32(taken)
                    state.carried = jax.block_until_ready(program.advance(state.carried, *arguments))
                state.step += taken
                if monitor.is_time_to_save and state.step < step:
                    self.save_so_far(state)
            if state.step == step:
                self.measure(program, state)
            if monitor.stop_requested or (monitor.is_time_to_save and step < program.probe_steps[-1]):
                self.save_so_far(state)
            if monitor.stop_requested:
                raise monitor.interrupted()

    def measure(self, program: Program, state: _State) -> None:
        batch, step, carried, numbers = self.batch, state.step, state.carried, self.hyperparameters
        by_probe = program.measure(carried, self.loaded.splits, numbers)
        found = merged_metrics(batch.group.setting, by_probe, step) | program.state_metrics(carried, numbers)
        for values, observe in zip(state.history.values(), program.observe, strict=True):
            values[:, program.probe_steps.index(step)] = observe(carried, numbers)
        _check_step(program.phase, step, carried.state.step)
        measured = {name: np.asarray(x)[: len(batch.runs)] for name, x in found.items()}
        self.records.add(program.phase.name, step, measured)
        self.records.note_failures(program.phase, step, carried.state.failed_at, measured["loss"])
        entry = log_entry(measured, batch, self.records.failures)
        self.monitor.record(entry, seed_series(measured, batch))

    def conclude(self, program: Program, state: _State) -> None:
        name, steps, params = program.phase.name, program.probe_steps, state.carried.state.params
        setting, data = self.batch.group.setting, self.loaded
        found = []
        for metrics in conclude(setting, state.index, state.history, params, data, self.hyperparameters):
            found.append(metrics)
            if self.monitor.stop_requested:
                self.save_so_far(state)
                raise self.monitor.interrupted()
        for on_the_way, at_the_end in found:
            for row, step in enumerate(steps):
                self.records.add(name, step, {metric: x[:, row] for metric, x in on_the_way.items()})
            self.records.add(name, steps[-1], at_the_end)
        columns = jax.device_get(program.tokens(params, self.loaded.splits, self.hyperparameters))
        self.records.add_tokens(name, columns, self.loaded)
        self.kept[name] = {
            moved: get(params, moved) for moved in _parameters_to_save(params, program.phase, state.index)
        }

    def save_so_far(self, state: _State) -> None:
        with self.monitor.saving():
            self.save(self.arrays(state), self.records.so_far, state.index, state.step)

    def arrays(self, state: Any) -> dict[str, Any]:
        return {"state": {"carried": state.carried, "kept": self.kept}, "history": state.history}

    def save(
        self,
        arrays: Any,
        tables: _Tables,
        phase: int,
        step: int,
        finished: bool = False,
        resumable: bool = False,
    ) -> None:
        self.place.save(
            arrays,
            tables,
            finished=finished,
            phase=phase,
            step=step,
            failures=msgspec.convert(self.records.failures, tuple[Failure, ...]),
            resumable=resumable,
            wall_time_s=self.clock.seconds(),
            peak_memory_mib=peak_mib(),
        )

    def initial_state(self, program: Program, index: int, params: Any, keys: Any) -> _State:
        carried = program.begin(params, self.loaded.splits, self.hyperparameters, keys)
        return _State(index, 0, carried, program.histories(carried, self.hyperparameters))

    def restored_state(
        self, program: Program, index: int, params: Any, keys: Any, saved: BatchRecord
    ) -> _State | None:
        """Restore the state of a phase from a checkpoint, or return None if the checkpoint is damaged."""
        like = program.begin.shapes(params, self.loaded.splits, self.hyperparameters, keys)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        source = self.batch.source if self.continued else None
        kept = {
            phase.name: {name: get(shapes, name) for name in _parameters_to_save(params, phase, number)}
            for number, phase in enumerate(self.batch.group.setting.phases[: index + (source is not None)])
        }
        history = program.histories(like, self.hyperparameters)
        wanted = {"state": {"carried": like, "kept": kept}, "history": history}
        if (found := self.place.restore(saved, wanted, source and source.name)) is None:
            return None
        runs = jax.tree.leaves(shapes)[0].shape[0]
        lanes = source.lanes if source else range(len(self.batch.runs))
        found = devices.chosen_runs(found, lanes, runs)
        earlier = [phase.name for phase in self.batch.group.setting.phases[:index]]
        self.kept.update({name: found["state"]["kept"][name] for name in earlier})
        carried = devices.put(found["state"]["carried"], self.loaded.shared)
        for name, x in found["history"].items():
            # When a finished phase is extended, the saved history covers only the steps before the extension.
            history[name][:, : x.shape[1]] = x
        return _State(index, saved.step, carried, history)


def _check_step(phase: Phase, step: int, counted: Any) -> None:
    """Raise InputError if the state of a phase counts a different number of steps."""
    if others := np.asarray(counted)[np.asarray(counted) != step].tolist():
        name = phase.kind or type(phase).__name__
        raise InputError(
            f"phases.{phase.name}: state.step is {others[0]} after {step} steps; set it to 0 in {name}.init, "
            f"and add the number of steps in {name}.advance"
        )


def _parameters_to_save(params: Any, phase: Any, index: int) -> Sequence[str]:
    """Return the names of the parameters to save after a phase.

    After the first phase, these are all parameters; after later phases, only the trained parameters.
    """
    return names(params) if index == 0 else tuple(selected(params, phase.train))
