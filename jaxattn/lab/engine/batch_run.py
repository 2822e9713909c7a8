"""Run one batch: compile, sample the data, run the phases with checkpoints, and save the tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from jaxattn.base.probe import concluded
from jaxattn.core.pytrees import get, names, selected
from jaxattn.data.splits import Loaded
from jaxattn.lab.engine import devices, extension
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.monitor import Interrupted, RunMonitor
from jaxattn.lab.engine.programs import Program, ProgramCache, seed_keys
from jaxattn.lab.engine.records import Records, log_entry, seed_series
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage.batch_state import BatchState
from jaxattn.lab.study.seed import merged_metrics
from jaxattn.lab.study.setting import Hyperparameters

_Tables = Callable[[], dict[str, pd.DataFrame]]


def run_batch(batch: Batch, cache: ProgramCache, folder: Store, monitor: RunMonitor) -> list[dict[str, Any]]:
    """Run the remaining phases of a batch, write its tables, and return the failed seeds.

    Returns:
        One dictionary per failed seed: its cell, seed, phase, step and reason.

    Raises:
        Interrupted: the run was asked to stop; a checkpoint has been saved.
        RunError: the folder cannot be written.
    """
    group, phases = batch.group, batch.group.setting.phases
    runs = devices.pad_to_devices(batch.runs, group.setting.data.shared)
    saved, tables = folder.resume(batch.name)
    if saved and saved.finished:
        saved, tables = extension.reopened(batch, saved, tables)
    first = saved.phase if saved else 0
    records = Records(batch, tables, saved.failures if saved else ())

    monitor.set_status("compiling")
    programs = cache.of(group)
    programs.compile(group, len(runs), first, resumed=saved is not None)

    monitor.set_status("drawing")
    keys = seed_keys([seed for _, seed in runs], group.setting.hold)
    hyperparameters = group.hyperparameters([cell for cell, _ in runs])
    loaded = programs.draw(keys.data, hyperparameters)
    params = programs.start(loaded, keys.start, hyperparameters)

    here = _BatchRun(batch, loaded, hyperparameters, records, folder, monitor, {}, saved and saved.before)
    state: _State | None = None
    for index in range(first, len(phases)):
        program = programs.phase(index, loaded)
        monitor.begin_phase(index, program.probe_steps, saved.step if saved else 0)
        state, saved = here.phase(program, index, params, keys.batches, saved), None
        if state is None:  # The checkpoint was damaged and has been moved aside.
            return run_batch(batch, cache, folder, monitor)
        params = state.carried.state.params
        monitor.end_phase()

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


class _BatchRun(NamedTuple):
    """Batch in progress, with its data, measurements and results folder.

    Attributes:
        kept: parameters saved at the end of each completed phase, keyed by phase name.
        before: commit record of the finished batch that this batch extends, or None.
    """

    batch: Batch
    loaded: Loaded
    hyperparameters: Hyperparameters
    records: Records
    folder: Store
    monitor: RunMonitor
    kept: dict[str, dict[str, Any]]
    before: BatchState | None

    def phase(
        self, program: Program, index: int, params: Any, keys: Any, saved: BatchState | None
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
                raise Interrupted

    def measure(self, program: Program, state: _State) -> None:
        batch, step, carried = self.batch, state.step, state.carried
        by_probe = program.measure(carried, self.loaded.splits, self.hyperparameters)
        found = merged_metrics(batch.group.setting, by_probe, step) | program.state_metrics(carried)
        for values, (_, observe) in zip(state.history.values(), program.observe, strict=True):
            values[:, program.probe_steps.index(step)] = observe(carried)
        measured = {name: np.asarray(x)[: len(batch.runs)] for name, x in found.items()}
        self.records.add(program.phase.name, step, measured)
        self.records.note_failures(program.phase, step, carried.state.failed_at, measured["loss"])
        entry = log_entry(measured, batch, self.records.failures)
        self.monitor.record(entry, seed_series(measured, batch))

    def conclude(self, program: Program, state: _State) -> None:
        name, steps, params = program.phase.name, program.probe_steps, state.carried.state.params
        model = self.batch.group.setting.model
        for (probe, _), seen in zip(program.observe, state.history.values(), strict=True):
            found = probe.conclude(seen, params, model, self.loaded)
            on_the_way, at_the_end = concluded(probe, found, len(seen), len(steps))
            for row, step in enumerate(steps):
                self.records.add(name, step, {metric: x[:, row] for metric, x in on_the_way.items()})
            self.records.add(name, steps[-1], at_the_end)
        columns = jax.device_get(program.tokens(params, self.loaded.splits, self.hyperparameters))
        self.records.add_tokens(name, columns, self.loaded)
        self.kept[name] = {moved: get(params, moved) for moved in _moved(params, program.phase, state.index)}

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
        # If seeds failed, the batch may have to be run again, starting from the finished batch that it
        # extends.
        needs_before = not finished or self.records.failures
        self.folder.save(
            self.batch.name,
            arrays,
            tables,
            cells=self.batch.configs,
            phase=phase,
            step=step,
            failures=self.records.failures,
            finished=finished,
            resumable=resumable,
            before=self.before if needs_before else None,
        )

    def initial_state(self, program: Program, index: int, params: Any, keys: Any) -> _State:
        carried = program.begin(params, self.loaded.splits, self.hyperparameters, keys)
        return _State(index, 0, carried, program.histories(carried))

    def restored_state(
        self, program: Program, index: int, params: Any, keys: Any, saved: BatchState
    ) -> _State | None:
        """Restore the state of a phase from a checkpoint, or return None if the checkpoint is damaged."""
        like = program.begin.shapes(params, self.loaded.splits, self.hyperparameters, keys)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        kept = {
            phase.name: {name: get(shapes, name) for name in _moved(params, phase, number)}
            for number, phase in enumerate(self.batch.group.setting.phases[: index + saved.resumable])
        }
        history = program.histories(like)
        wanted = {"state": {"carried": like, "kept": kept}, "history": history}
        if (found := self.folder.restore(self.batch.name, saved, wanted)) is None:
            return None
        runs = jax.tree.leaves(shapes)[0].shape[0]
        found = devices.adjust_padding(found, len(self.batch.runs), runs)
        earlier = [phase.name for phase in self.batch.group.setting.phases[:index]]
        self.kept.update({name: found["state"]["kept"][name] for name in earlier})
        carried = devices.put(found["state"]["carried"], self.loaded.shared)
        for name, x in found["history"].items():
            # When a finished phase is extended, the saved history covers only the steps before the extension.
            history[name][:, : x.shape[1]] = x
        return _State(index, saved.step, carried, history)


def _moved(params: Any, phase: Any, index: int) -> Sequence[str]:
    """Return the names of the parameters to save after a phase.

    After the first phase, these are all parameters; after later phases, only the trained parameters.
    """
    return names(params) if index == 0 else tuple(selected(params, phase.train))
