"""The steps of a run: plan; for every batch compile, sample, run the phases and save; merge the tables."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from jaxattn.base.probe import concluded
from jaxattn.core import backend
from jaxattn.core.pytrees import get, names
from jaxattn.data.splits import Loaded
from jaxattn.lab.engine import devices, loggers, manifest, memory
from jaxattn.lab.engine.attempts import OnFailure, Queue, unfinished
from jaxattn.lab.engine.batches import Batch, cut_batches, share
from jaxattn.lab.engine.clock import Clock, Interrupted, Intervals
from jaxattn.lab.engine.groups import compile_groups, rehearse_groups
from jaxattn.lab.engine.lift import Program, ProgramCache, seed_keys
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.records import Records, log_entry, seed_series
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage import checkpoints, run_log
from jaxattn.lab.storage.batch_state import BatchState
from jaxattn.lab.storage.manifest import find
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.seed import merged
from jaxattn.lab.study.setting import Hyperparameters

Tables = Callable[[], dict[str, pd.DataFrame]]


class Outcome(NamedTuple):
    """Result of a run.

    Attributes:
        directory: the results folder.
        failures: the failed seeds.
        errors: the batches that failed to run, with the reasons.
        batches: number of batches.
        already_finished: True if all batches were finished before.
        renewed: True if the manifest was rewritten because names or figures have changed.
    """

    directory: Path
    failures: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    batches: int
    already_finished: bool
    renewed: bool = False


def run(
    study: Definition,
    directory: Path,
    *,
    command: str,
    reporter: Reporter,
    shard: tuple[int, int] = (1, 1),
    max_memory: int | None = None,
    on_failure: OnFailure = "continue",
    accept_code: bool = False,
    profile: bool = False,
    log: Sequence[loggers.Kind] = (),
    intervals: Intervals = Intervals(),  # noqa: B008  frozen
) -> Outcome:
    """Run or resume a study; finished batches are not run again.

    Args:
        study: the study.
        directory: the results folder.
        command: the command line, for the manifest.
        reporter: reporter of progress.
        shard: I and N for shard I of N of the batches, in a separate folder.
        max_memory: memory limit in bytes per device; by default that of the device.
        on_failure: reaction to a batch that fails by NaN, by an error of the machine or of custom code:
            `stop`, `continue` with the next one, or `retry` it before continuing.
        accept_code: resume although custom code has changed since the run started.
        profile: write a JAX trace of the run into the folder.
        log: dashboards that get every measurement, in addition to metrics.jsonl.
        intervals: time intervals of progress and checkpoints.

    Returns:
        The outcome; records.parquet, tokens.parquet and manifest.json are in the folder.

    Raises:
        InputError: the data cannot be used, a cell does not fit in memory, or the folder holds results of
            another config.
        RunError: the folder cannot be written, the limit of open files is too low, or a batch failed and
            `on_failure` is `stop`.
        Interrupted: SIGINT or SIGTERM was received; the same command resumes the run.
    """
    clock, cache = Clock(reporter, intervals), ProgramCache(reporter.loading)
    memory.check_address_space(reporter.note)
    if trouble := devices.trouble(backend.platform()):
        reporter.note(trouble)
    checkpoints.check_handles()
    folder = Store(directory, reporter.warn)
    with folder.locked(), backend.precision(study.dtype):
        groups = compile_groups(study.cells)
        raising = rehearse_groups(study, groups, reporter.loading, keep_going=on_failure != "stop")
        described = manifest.describe(study, command, shard)
        manifest.note_unhashed(study, described["code"], reporter.note)
        known = folder.join(described, accept_code)
        folder.set_strays_aside()
        existing = folder.batches()
        widths, every = cut_batches(
            study, groups, existing, known, cache, max_memory, shard[1], raising, reporter.update
        )
        batches = share(every, shard)
        known |= manifest.of_batches(widths, every, batches)
        known |= {} if existing else {"device": devices.here()}
        todo = unfinished(batches, folder, reporter)
        if not todo and known["status"] == "finished" and folder.is_merged(known):
            if renewed := known != find(folder.directory):
                folder.write_manifest(known)
            return Outcome(folder.directory, known["failures"], [], len(batches), True, renewed)
        # A killed process has not updated its manifest; the last line of its log is newer.
        clock.resume_from(known, *run_log.latest(folder.directory)[-1:])
        known |= {"status": "running", "continued_on": manifest.devices_since(known, reporter.note)}
        folder.write_manifest(known)
        errors: list[dict[str, Any]] = []
        try:
            with loggers.opened(folder, study.name, log, profile) as clock.write, clock.stopping():

                def runs(batch: Batch) -> list[dict[str, Any]]:
                    return run_batch(batch, cache, folder, clock)

                files = study.names.files(study.own_kinds)
                queue = Queue(runs, batches, deque(todo), known, folder, clock, reporter, on_failure, files)
                queue.run(errors)
            known |= folder.merge([batch.name for batch in batches if folder.is_finished(batch.name)])
            known["status"] = "failed" if errors else "finished"
        finally:
            folder.write_manifest(known | {"errors": errors} | clock.spent())
    return Outcome(folder.directory, known["failures"], errors, len(batches), False)


def run_batch(batch: Batch, cache: ProgramCache, folder: Store, clock: Clock) -> list[dict[str, Any]]:
    """Run the phases of a batch, or those that are left, and write its tables.

    Args:
        batch: the batch.
        cache: programs of its group.
        folder: folder of its checkpoints and tables.
        clock: clock that decides when to show progress, save and stop.

    Returns:
        Cell, seed, phase, step and reason of every failed seed.

    Raises:
        Interrupted: the run was asked to stop, and has saved a checkpoint.
        RunError: the folder cannot be written.
    """
    group, phases = batch.group, batch.group.setting.phases
    lanes = devices.pad_to_devices(batch.lanes, group.setting.data.shared)
    saved, tables = folder.resume(batch.name)
    first = saved.phase if saved else 0
    records = Records(batch, tables, saved.failures if saved else ())

    clock.doing("compiling")
    programs = cache.of(group)
    programs.compile(group, len(lanes), first, resumed=saved is not None)

    clock.doing("drawing")
    data_keys, keys = seed_keys([seed for _, seed in lanes])
    numbers = group.hyperparameters([cell for cell, _ in lanes])
    loaded = programs.draw(data_keys, numbers)
    params = programs.start(loaded, keys, numbers)

    here = _BatchRun(batch, loaded, numbers, records, folder, clock, {})
    for index in range(first, len(phases)):
        program = programs.phase(index, loaded)
        clock.begin_phase(index, program.probe_steps, saved.step if saved else 0)
        params, saved = here.phase(program, index, params, keys, saved), None
        if params is None:  # the checkpoint was damaged and has been set aside
            return run_batch(batch, cache, folder, clock)
        clock.end_phase()

    clock.doing("writing")
    here.save(here.kept, records.whole, len(phases), 0, finished=True)
    return records.failures


@dataclass
class _State:
    """State of a phase: steps taken, state of the programs, and observations of its phase probes."""

    index: int
    step: int
    carried: Any
    history: dict[str, np.ndarray]


class _BatchRun(NamedTuple):
    """A running batch; `kept` holds the parameters after each earlier phase, as far as it trained them."""

    batch: Batch
    loaded: Loaded
    numbers: Hyperparameters
    records: Records
    folder: Store
    clock: Clock
    kept: dict[str, dict[str, Any]]

    def phase(self, program: Program, index: int, params: Any, keys: Any, saved: BatchState | None) -> Any:
        """Run a phase, or the rest of it; return its final parameters, or None for a damaged checkpoint."""
        start = program, index, params, keys
        state = self.initial_state(*start) if saved is None else self.restored_state(*start, saved)
        if state is None:
            return None
        self.steps(program, state, measured=saved is not None)
        self.conclude(program, state)
        return state.carried.state.params

    def steps(self, program: Program, state: _State, measured: bool) -> None:
        """Take the remaining steps of a phase, with measurements and checkpoints.

        Args:
            program: functions of the phase.
            state: state of the phase; it is changed in place.
            measured: True if the current step has been measured already.
        """
        clock, last_measured = self.clock, state.step if measured else -1
        for step in (step for step in program.probe_steps if step > last_measured):
            while state.step < step and not clock.is_stopped:
                taken = clock.block(step - state.step)
                with clock.stepping(taken):
                    arguments = self.loaded.splits, self.numbers, np.int32(taken)
                    state.carried = jax.block_until_ready(program.advance(state.carried, *arguments))
                state.step += taken
                if clock.is_time_to_save and state.step < step:
                    self.save_so_far(state)
            if state.step == step:
                self.measure(program, state)
            if clock.is_stopped or (clock.is_time_to_save and step < program.probe_steps[-1]):
                self.save_so_far(state)
            if clock.is_stopped:
                raise Interrupted

    def measure(self, program: Program, state: _State) -> None:
        """Measure the current step, and add the result to the records and the log."""
        batch, step, carried = self.batch, state.step, state.carried
        by_probe = program.measure(carried, self.loaded.splits, self.numbers)
        found = merged(batch.group.setting, by_probe, step) | program.state_metrics(carried)
        for values, (_, observe) in zip(state.history.values(), program.observe, strict=True):
            values[:, program.probe_steps.index(step)] = observe(carried)
        measured = {name: np.asarray(x)[: len(batch.lanes)] for name, x in found.items()}
        self.records.add(program.phase.name, step, measured)
        self.records.note_failures(program.phase, step, carried.state.failed_at, measured["loss"])
        entry = log_entry(measured, batch, self.records.failures)
        self.clock.measured(entry, seed_series(measured, batch))

    def conclude(self, program: Program, state: _State) -> None:
        """Compute phase metrics and the token table at the end of a phase; keep its trained parameters."""
        name, steps, params = program.phase.name, program.probe_steps, state.carried.state.params
        model = self.batch.group.setting.model
        for (probe, _), seen in zip(program.observe, state.history.values(), strict=True):
            found = probe.conclude(seen, params, model, self.loaded)
            on_the_way, at_the_end = concluded(probe, found, len(seen), len(steps))
            for row, step in enumerate(steps):
                self.records.add(name, step, {metric: x[:, row] for metric, x in on_the_way.items()})
            self.records.add(name, steps[-1], at_the_end)
        columns = jax.device_get(program.tokens(params, self.loaded.splits, self.numbers))
        self.records.add_tokens(name, columns, self.loaded)
        self.kept[name] = {moved: get(params, moved) for moved in _moved(params, program.phase, state.index)}

    def save_so_far(self, state: _State) -> None:
        """Save a checkpoint of the batch."""
        arrays = {"state": {"carried": state.carried, "kept": self.kept}, "history": state.history}
        with self.clock.saving():
            self.save(arrays, self.records.so_far, state.index, state.step)

    def save(self, arrays: Any, tables: Tables, phase: int, step: int, finished: bool = False) -> None:
        """Save the state of the batch."""
        cells = {str(cell.number): cell.config_hash for cell in self.batch.cells}
        self.folder.save(
            self.batch.name,
            arrays,
            tables,
            cells=cells,
            phase=phase,
            step=step,
            failures=self.records.failures,
            finished=finished,
        )

    def initial_state(self, program: Program, index: int, params: Any, keys: Any) -> _State:
        """Return the state at the start of a phase."""
        carried = program.begin(params, self.loaded.splits, self.numbers, keys)
        return _State(index, 0, carried, program.histories(carried))

    def restored_state(
        self, program: Program, index: int, params: Any, keys: Any, saved: BatchState
    ) -> _State | None:
        """Return the state of a checkpoint; None if it is damaged."""
        like = program.begin.shapes(params, self.loaded.splits, self.numbers, keys)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        kept = {
            phase.name: {name: get(shapes, name) for name in _moved(params, phase, number)}
            for number, phase in enumerate(self.batch.group.setting.phases[:index])
        }
        wanted = {"state": {"carried": like, "kept": kept}, "history": program.histories(like)}
        if (found := self.folder.restore(self.batch.name, saved, wanted)) is None:
            return None
        lanes = jax.tree.leaves(shapes)[0].shape[0]
        found = devices.padded_again(found, len(self.batch.lanes), lanes)
        self.kept.update(found["state"]["kept"])
        carried = devices.put(found["state"]["carried"], self.loaded.shared)
        return _State(index, saved.step, carried, found["history"])


def _moved(params: Any, phase: Any, index: int) -> Sequence[str]:
    """Return the parameters to keep after a phase: all after the first one, else those that it trains."""
    return names(params) if index == 0 else phase.train
