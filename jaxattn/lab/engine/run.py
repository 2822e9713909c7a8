"""Run a study: plan the batches, run them one after another, and merge their tables."""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from jaxattn.core import backend
from jaxattn.core.errors import RunError, in_user_code
from jaxattn.lab.engine import devices, extension, loggers, manifest, memory
from jaxattn.lab.engine.batch_run import run_batch
from jaxattn.lab.engine.batches import Batch, cut_batches, halved, select_shard
from jaxattn.lab.engine.monitor import Interrupted, Intervals, RunMonitor, forget_peak
from jaxattn.lab.engine.programs import ProgramCache
from jaxattn.lab.engine.progress import Reporter, delayed
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage import checkpoints, run_log
from jaxattn.lab.storage.manifest import find_manifest
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import compile_groups, rehearse_groups

_OnFailure = Literal["stop", "continue", "retry"]
RETRIES = 2


class Outcome(NamedTuple):
    """Result of a run.

    Attributes:
        directory: the results folder.
        failures: the failed seeds.
        errors: the batches that raised an error, with the reasons.
        batches: number of batches.
        already_finished: True if every batch was finished before this run.
        renewed: True if the manifest was rewritten because labels or figures have changed.
    """

    directory: Path
    failures: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    batches: int
    already_finished: bool
    renewed: bool = False


def run_study(
    study: Definition,
    directory: Path,
    *,
    command: str,
    reporter: Reporter,
    shard: tuple[int, int] = (1, 1),
    max_memory: int | None = None,
    on_failure: _OnFailure = "continue",
    accept_code: bool = False,
    profile: bool = False,
    log: Sequence[loggers.LoggerKind] = (),
    intervals: Intervals = Intervals(),  # noqa: B008  frozen
) -> Outcome:
    """Run or resume a study. Finished batches are not run again.

    Args:
        study: the study.
        directory: the results folder, to which records.parquet, tokens.parquet and manifest.json are written.
        command: the command line, which is stored in the manifest.
        reporter: displays the progress.
        shard: (I, N) to run only shard I of N, in a separate folder.
        max_memory: memory limit in bytes per device; defaults to the device memory.
        on_failure: what to do if a batch ends in NaN or raises an error: "stop", "continue", or "retry" the
            batch before continuing.
        accept_code: resume even if custom code has changed since the run started.
        profile: write a JAX trace of the run to the folder.
        log: dashboards that receive every measurement, in addition to metrics.jsonl.
        intervals: time intervals for progress updates and checkpoints.

    Raises:
        InputError: the data are unusable, a cell does not fit in memory, or the folder contains results of a
            different config.
        RunError: the folder cannot be written, the limit on open files is too low, or a batch failed and
            `on_failure` is "stop".
        Interrupted: SIGINT or SIGTERM was received; the same command resumes the run.
    """
    started = time.monotonic()
    _check_machine(reporter)
    folder = Store(directory, reporter.warn)
    with folder.locked(), backend.precision(study.dtype):
        cache, batches, known = _plan(
            study, folder, reporter, command, shard, max_memory, on_failure, accept_code
        )
        todo = _unfinished(batches, folder, reporter)
        if not todo and known["status"] == "finished" and folder.is_merged(known):
            if renewed := known != find_manifest(folder.directory):
                folder.write_manifest(known)
            return Outcome(folder.directory, known["failures"], [], len(batches), True, renewed)
        with loggers.open_loggers(folder, study.name, log, profile) as write:
            # If a process was killed, its log is more recent than the manifest.
            earlier = known, *run_log.latest(folder.directory)[-1:]
            monitor = RunMonitor(reporter, write, intervals, earlier=earlier, started=started)
            queue = _Queue(study, folder, cache, reporter, monitor, on_failure, batches, known, [])
            queue.run_and_merge(deque(todo))
    return Outcome(folder.directory, known["failures"], queue.errors, len(batches), False)


def _check_machine(reporter: Reporter) -> None:
    forget_peak()
    memory.check_address_space(reporter.note)
    if known_bug := devices.known_bug(backend.platform()):
        reporter.note(known_bug)
    checkpoints.check_handles()


def _plan(
    study: Definition,
    folder: Store,
    reporter: Reporter,
    command: str,
    shard: tuple[int, int],
    max_memory: int | None,
    on_failure: _OnFailure,
    accept_code: bool,
) -> tuple[ProgramCache, list[Batch], dict[str, Any]]:
    cache = ProgramCache(reporter.loading)
    groups = compile_groups(study.cells)
    raising = rehearse_groups(study, groups, reporter.loading, keep_going=on_failure != "stop")
    described = manifest.new_manifest(study, command, shard)
    manifest.note_unhashed(study, described["code"], reporter.note)
    described["cells"], extended = extension.extended_cells(study, folder, described, cache)
    known = folder.join(described, accept_code, extended)
    folder.set_strays_aside()
    existing = folder.batches()
    widths, every = cut_batches(
        study, groups, existing, known, cache, max_memory, shard[1], raising, reporter.update
    )
    batches = select_shard(every, shard)
    known |= manifest.of_batches(widths, every, batches)
    known |= {} if existing else {"device": devices.describe_devices()}
    return cache, batches, known


def _unfinished(batches: list[Batch], folder: Store, reporter: Reporter) -> list[Batch]:
    progress, todo = delayed(reporter.update), []
    for number, batch in enumerate(batches):
        progress(f"comparing {batch.name} with its checksums", number / len(batches))
        if not folder.is_complete(batch.name) or folder.shorter(batch.name, batch.configs):
            todo.append(batch)
    return todo


class _Queue(NamedTuple):
    """Queue of batches to run in sequence. `known` is the manifest; `errors` lists the failed batches."""

    study: Definition
    folder: Store
    cache: ProgramCache
    reporter: Reporter
    monitor: RunMonitor
    on_failure: _OnFailure
    batches: list[Batch]
    known: dict[str, Any]
    errors: list[dict[str, Any]]

    def run_and_merge(self, waiting: deque[Batch]) -> None:
        folder, known = self.folder, self.known
        known |= {"status": "running", "continued_on": manifest.devices_since(known, self.reporter.note)}
        folder.write_manifest(known)
        try:
            with self.monitor.stopping():
                self.run(waiting)
            known |= folder.merge([batch.name for batch in self.batches if folder.is_finished(batch.name)])
            known["status"] = "failed" if self.errors else "finished"
        finally:
            folder.write_manifest(known | {"errors": self.errors} | self.monitor.resource_usage())

    def run(self, waiting: deque[Batch]) -> None:
        """Run the waiting batches.

        A batch that does not fit in memory is split in half, repeatedly if necessary, down to single runs. A
        batch that fails is run again if `on_failure` is "retry"; it stops the whole run only if `on_failure`
        is "stop".
        """
        self.monitor.expect(waiting)
        while waiting:
            batch = waiting.popleft()
            number = len(self.batches) - len(waiting) - 1
            self.monitor.begin_batch(batch, number, len(self.batches))
            for retries in reversed(range(1 + RETRIES * (self.on_failure == "retry"))):
                failed, reason = [], ""
                try:
                    failed = run_batch(batch, self.cache, self.folder, self.monitor)
                except Exception as error:
                    extends = self.folder.shorter(batch.name, batch.configs) is not None
                    if _is_out_of_memory(error) and batch.width > 1 and not extends:
                        waiting.extendleft(reversed(self.replace_by_halves(batch)))
                        break
                    if not (reason := self.reason(batch, error)):
                        raise
                if not (failed or reason) or not retries:
                    break
                self.reporter.note(f"{batch.name}: failed, running it again")
                self.folder.forget(batch.name, batch.configs)
            if reason:
                cells = [cell.number for cell in batch.cells]
                self.errors.append({"batch": batch.name, "cells": cells, "reason": reason})
            if self.on_failure == "stop" and (failed or reason):
                raise RunError(
                    f"{batch.name}: {reason or failed[0]['reason']}; the run was stopped, and finished "
                    "batches were kept; use --on-failure continue to run the remaining batches"
                )
            if self.monitor.stop_requested:
                raise Interrupted

    def reason(self, batch: Batch, error: Exception) -> str:
        """Return the reason why a batch failed, as one line, or "" if the error must stop the run."""
        files = self.study.names.files(self.study.custom_kinds)
        if isinstance(error, jax.errors.JaxRuntimeError | MemoryError):
            lines = str(error).strip().split("\n")
            if any(file in str(error) for file in files):
                # A user's callback raised an exception, and JAX has printed the traceback.
                return f"{lines[-1]} in a callback of your functions"
            remedy = "smaller batches may help: --max-memory or --set chunk=..."
            if _is_out_of_memory(error):
                remedy = "a single seed does not fit; make the problem smaller, or use more memory"
            return f"{lines[0] or type(error).__name__}; {remedy}"
        if found := in_user_code(error, files, ""):
            self.reporter.trace(batch.name, found)
        return str(found or "")

    def replace_by_halves(self, batch: Batch) -> list[Batch]:
        halves = halved(batch)
        text = " and ".join(half.name for half in halves)
        self.reporter.note(f"{batch.name}: out of memory; running {text} instead")
        self.folder.forget(batch.name, batch.configs)
        index = self.batches.index(batch)
        self.batches[index : index + 1] = halves
        # Write the manifest now: if the run stops here, it must find the new batches when it resumes.
        self.known["batches"] = manifest.batch_entries(self.batches)
        self.folder.write_manifest(self.known)
        self.monitor.expect(halves)
        return halves


def _is_out_of_memory(error: Exception) -> bool:
    first = str(error).strip().partition("\n")[0]
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in first
    )
