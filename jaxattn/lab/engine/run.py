"""What a run does, from top to bottom: plan; for every batch compile, draw, run its phases, save; merge."""

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
    """What a run left.

    Attributes:
        directory: its folder.
        failures: the lanes whose numbers failed.
        errors: the batches that could not be run, and why.
        batches: how many batches there are.
        already_finished: whether all was there already.
        renewed: whether it is described otherwise by now: other names, or figures.
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
    """Run a study, or continue it: batches that are finished are not run again.

    Args:
        study: what to run.
        directory: the results folder.
        command: the command line, for the manifest.
        reporter: where progress goes.
        shard: I and N: run the I-th of N shares of the batches, in a folder of its own.
        max_memory: bytes that may be used on a device; chosen for the device by default.
        on_failure: what to do when a batch fails, by NaN, by an error of the machine or of the user's code:
            `stop`, `continue` with the next one, or `retry` it before continuing.
        accept_code: continue although code of the user's has changed since the run began.
        profile: write a trace of the run into the folder.
        log: dashboards that get every measurement, as metrics.jsonl does.
        intervals: how often it shows how far it is, and saves.

    Returns:
        The outcome; records.parquet, tokens.parquet and manifest.json are in the folder.

    Raises:
        InputError: data that cannot be used, a cell that does not fit, or a folder of another config.
        RunError: a folder that cannot be written, too few file handles, or a failure that is to stop the run.
        Interrupted: SIGINT or SIGTERM came; the same command continues.
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
        begun = folder.batches()
        widths, every = cut_batches(
            study, groups, begun, known, cache, max_memory, shard[1], raising, reporter.update
        )
        batches = share(every, shard)
        known |= manifest.of_batches(widths, every, batches) | ({} if begun else {"device": devices.here()})
        todo = unfinished(batches, folder, reporter)
        if not todo and known["status"] == "finished" and folder.is_merged(known):
            if renewed := known != find(folder.directory):
                folder.write_manifest(known)
            return Outcome(folder.directory, known["failures"], [], len(batches), True, renewed)
        # A process that was killed left its manifest as it began; its last line knows more.
        clock.go_on_from(known, *run_log.latest(folder.directory)[-1:])
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
    """Run the phases of a batch, or what is left of them, and write its tables.

    Args:
        batch: what to run.
        cache: the programs of its group.
        folder: where its checkpoints and tables are.
        clock: when to show, save and stop.

    Returns:
        The lanes that failed: cell, seed, phase, step and reason.

    Raises:
        Interrupted: it was asked to stop, and has saved.
        RunError: the folder cannot be written.
    """
    group, phases = batch.group, batch.group.setting.phases
    lanes = devices.pad_to_devices(batch.lanes, group.setting.data.shared)
    saved, tables = folder.resume(batch.name)
    first = saved.phase if saved else 0
    records = Records(batch, tables, saved.failures if saved else ())

    clock.doing("compiling")
    programs = cache.of(group)
    programs.compile(group, len(lanes), first, begun=saved is not None)

    clock.doing("drawing")
    data_keys, keys = seed_keys([seed for _, seed in lanes])
    numbers = group.hyperparameters([cell for cell, _ in lanes])
    loaded = programs.draw(data_keys, numbers)
    params = programs.start(loaded, keys, numbers)

    here = _Underway(batch, loaded, numbers, records, folder, clock, {})
    for index in range(first, len(phases)):
        program = programs.phase(index, loaded)
        clock.begin_phase(index, program.probe_steps, saved.step if saved else 0)
        params, saved = here.phase(program, index, params, keys, saved), None
        if params is None:  # the checkpoint was damaged, and is set aside
            return run_batch(batch, cache, folder, clock)
        clock.end_phase()

    clock.doing("writing")
    here.save(here.kept, records.whole, len(phases), 0, finished=True)
    return records.failures


@dataclass
class _State:
    """Where a phase is: steps taken, what it carries, and what its probes of the whole phase observed."""

    index: int
    step: int
    carried: Any
    history: dict[str, np.ndarray]


class _Underway(NamedTuple):
    """A batch on its way; `kept` are parameters after the phases before, as far as they moved in them."""

    batch: Batch
    loaded: Loaded
    numbers: Hyperparameters
    records: Records
    folder: Store
    clock: Clock
    kept: dict[str, dict[str, Any]]

    def phase(self, program: Program, index: int, params: Any, keys: Any, saved: BatchState | None) -> Any:
        """Run a phase, or what is left of it; return the parameters at its end, None for damage."""
        start = program, index, params, keys
        state = self.begun(*start) if saved is None else self.restored(*start, saved)
        if state is None:
            return None
        self.steps(program, state, measured=saved is not None)
        self.conclude(program, state)
        return state.carried.state.params

    def steps(self, program: Program, state: _State, measured: bool) -> None:
        """Take the steps of a phase that are left, measure, and save on the way.

        Args:
            program: the phase.
            state: where it is; it is changed.
            measured: whether the step that it is at was measured already.
        """
        clock, begun_at = self.clock, state.step if measured else -1
        for step in (step for step in program.probe_steps if step > begun_at):
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
        """Measure at a step, record it and log it."""
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
        """Measure a phase as a whole, and its tokens, at its end; keep the parameters that it moved."""
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
        """Save what the batch continues from."""
        arrays = {"state": {"carried": state.carried, "kept": self.kept}, "history": state.history}
        with self.clock.saving():
            self.save(arrays, self.records.so_far, state.index, state.step)

    def save(self, arrays: Any, tables: Tables, phase: int, step: int, finished: bool = False) -> None:
        """Save how far the batch is."""
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

    def begun(self, program: Program, index: int, params: Any, keys: Any) -> _State:
        """Begin a phase."""
        carried = program.begin(params, self.loaded.splits, self.numbers, keys)
        return _State(index, 0, carried, program.histories(carried))

    def restored(
        self, program: Program, index: int, params: Any, keys: Any, saved: BatchState
    ) -> _State | None:
        """Go on from a checkpoint; None if it is damaged."""
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
        found = devices.padded_anew(found, len(self.batch.lanes), lanes)
        self.kept.update(found["state"]["kept"])
        carried = devices.put(found["state"]["carried"], self.loaded.shared)
        return _State(index, saved.step, carried, found["history"])


def _moved(params: Any, phase: Any, index: int) -> Sequence[str]:
    """Name the parameters that are kept after a phase: all after the first, then those that it moves."""
    return names(params) if index == 0 else phase.train
