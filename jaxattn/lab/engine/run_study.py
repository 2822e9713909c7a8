"""Run a study: find the runs that the results folder lacks, and compute them batch by batch."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jaxattn.core import backend
from jaxattn.lab.engine import devices, loggers, memory
from jaxattn.lab.engine.attempt import OnFailure
from jaxattn.lab.engine.executor import Executor, Workers, check_executor
from jaxattn.lab.engine.missing import Plan, plan_run
from jaxattn.lab.engine.monitor import Intervals, RunMonitor, forget_peak
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.queue import Queue, Rules
from jaxattn.lab.storage import checkpoints, memo, study_file
from jaxattn.lab.storage.batch_record import BatchRecord
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.study.definition import Definition


class Outcome(NamedTuple):
    """Result of a run.

    Attributes:
        directory: the results folder.
        failures: the failed seeds of all wanted runs.
        errors: the batches that raised an error, with the reasons.
        batches: number of batches that this process had to compute.
        renewed: True if study.json has changed.
    """

    directory: Path
    failures: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    batches: int
    renewed: bool = False

    @property
    def already_finished(self) -> bool:
        """True if all runs were present."""
        return not self.batches


def run_study(
    study: Definition,
    directory: Path,
    *,
    command: str,
    reporter: Reporter,
    shard: tuple[int, int] = (1, 1),
    max_memory: int | None = None,
    on_failure: OnFailure = "continue",
    reuse_code: bool = False,
    profile: bool = False,
    log: Sequence[loggers.LoggerKind] = (),
    intervals: Intervals = Intervals(),  # noqa: B008  frozen
    check: Callable[[], None] = lambda: None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> Outcome:
    """Compute the runs of a study that a results folder lacks. Finished runs are never computed again.

    Args:
        study: the study.
        directory: the results folder; see `storage.memo`.
        command: the command line, which is stored with the results.
        reporter: displays the progress.
        shard: (I, N) to compute only every N-th batch, starting from batch I.
        max_memory: memory limit in bytes per device; defaults to the device memory.
        on_failure: what to do if a batch ends in NaN or raises an error: "stop", "continue", or "retry" the
            batch before continuing.
        reuse_code: use finished runs with the same settings and files, but older code.
        profile: write a JAX trace of the run to the folder.
        log: dashboards that receive every measurement, in addition to metrics.jsonl.
        intervals: time intervals for progress updates and checkpoints.
        check: function that is called before anything is computed; it may raise InputError.
        executor: compute the batches in its workers, which must be processes, instead of in this process.
        workers: number of workers, which get a batch of each compile group if there are enough runs; by
            default, the number that the executor states, else 1.

    Raises:
        InputError: the data are unusable, a run does not fit in memory, or the folder contains other files.
        RunError: the folder cannot be written, the limit on open files is too low, or a batch failed and
            `on_failure` is "stop".
        Interrupted: SIGINT or SIGTERM was received; the same command resumes the run.
    """
    started = time.monotonic()
    forget_peak()
    memory.check_address_space(reporter.note)
    checkpoints.check_handles()
    if executor is not None:
        check_executor(executor, bool(log or profile))
    elif known_bug := devices.known_bug(backend.platform()):
        reporter.note(known_bug)
    folder, cache = Memo(directory, reporter.warn), ProgramCache(reporter.loading)
    pool = None if executor is None else Workers(executor, workers, study, str(directory), command)
    with backend.precision(study.dtype):
        plan = plan_run(
            study,
            folder,
            cache,
            reporter,
            command=command,
            shard=shard,
            max_memory=max_memory,
            keep_going=on_failure != "stop",
            reuse_code=reuse_code,
            check=check,
            widths=None if pool is None else partial(pool.widths, max_memory),
        )
        renewed = _update(folder, plan)
        rules = Rules(on_failure, reporter, [])
        queue = Queue(study, folder, cache, rules, plan, command, [])
        if plan.batches:
            logs = folder.directory, queue.log, study.name, log, profile
            with loggers.open_loggers(*logs) as write:
                monitor = RunMonitor(reporter, write, intervals, started=started)
                with monitor.stopping():
                    if pool is None:
                        queue.run(monitor)
                    else:
                        pool.run(folder, rules, plan, monitor, intervals)
    return _outcome(folder, plan, rules, renewed)


def _update(folder: Memo, plan: Plan) -> bool:
    """Delete what no run needs, and return True if study.json was written because it asks for other runs."""
    folder.set_aside_damaged()
    folder.delete_abandoned(plan.present)
    if study_file.is_written(folder.directory, plan.content):
        return False
    folder.write_study(plan.content)
    return True


def _outcome(folder: Memo, plan: Plan, rules: Rules, renewed: bool) -> Outcome:
    folder.refresh()
    wanted = study_file.wanted_runs(plan.content)
    present = memo.finished(folder.directory, lambda error: None, wanted)
    failures = wanted_failures(present, wanted)
    return Outcome(folder.directory, failures, rules.errors, len(plan.batches), renewed)


def wanted_failures(
    records: Mapping[str, BatchRecord], wanted: Mapping[tuple[str, int], Sequence[int]]
) -> list[dict[str, Any]]:
    """Return the failures of the wanted runs, with the cell indices of the study.

    `wanted` maps each run to the cells to which it belongs; see `study_file.wanted_runs`.
    """
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for record in records.values():
        keys = record.keys
        for failure in record.failures:
            for cell in wanted.get((keys[failure.cell], failure.seed), ()):
                entry = msgspec.to_builtins(failure) | {"cell": cell}
                found.setdefault((cell, failure.seed), entry)
    return [found[run] for run in sorted(found)]
