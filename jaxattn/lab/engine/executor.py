"""Compute the batches of a run in the workers of an executor, such as a process pool, submitit or dask."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from jaxattn.core import backend
from jaxattn.core.errors import InputError, RunError, counted, first_line
from jaxattn.lab.engine import batches, worker
from jaxattn.lab.engine.attempt import Attempt
from jaxattn.lab.engine.missing import Plan
from jaxattn.lab.engine.monitor import Interrupted, Intervals, RunMonitor
from jaxattn.lab.engine.queue import Rules, Try
from jaxattn.lab.storage import batch_record, memo, run_log
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.storage.objects import is_address
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.identity import Identity

# Seconds between looks at the workers, and seconds that workers have for saving when the run is stopped.
LOOK_S, STOP_S = 0.2, 10.0


class Executor(Protocol):
    """What a run needs of an executor: that of `concurrent.futures`, submitit, and dask have it.

    The result of `submit` has the methods `done`, `result` and `cancel`.
    """

    def submit(self, function: Callable[[], Any], /) -> Any:
        """Call a function, which can be pickled, in a process."""
        ...


def workers_of(executor: Executor) -> int:
    """Return the number of workers, as far as the executor tells it, else 1."""
    found = getattr(executor, "_max_workers", None)
    return found if isinstance(found, int) and found > 0 else 1


def pool_of(executor: Executor) -> worker.LocalPool | None:
    """Return the description of a process pool, for its workers; None for other executors."""
    if not hasattr(executor, "_processes"):
        return None
    return worker.LocalPool(workers_of(executor), f"{os.getuid()}-{os.getpid()}-{id(executor):x}")


def check_executor(executor: Executor, has_logs: bool) -> None:
    """Raise InputError if an executor cannot be used: it forks this process, or needs a GPU that it holds."""
    if not hasattr(executor, "submit"):
        raise InputError(
            f"executor: {type(executor).__name__} has no method `submit`; use a ProcessPoolExecutor, or an "
            "object whose `submit(function)` calls the function in another process"
        )
    if has_logs:
        raise InputError("log, profile: these are of one process; leave them out with an executor")
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise InputError(
            "executor: it forks this process, in which JAX has threads; use "
            "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))"
        )
    if pool_of(executor) and backend.platform() == "gpu":
        raise InputError(
            "executor: this process holds the GPU that its workers need; call "
            "jax.config.update('jax_platforms', 'cpu') first, below `if __name__ == \"__main__\":`"
        )


class Workers(NamedTuple):
    """The workers of an executor, which compute the batches of a study.

    Attributes:
        executor: the executor.
        number: number of workers; None for the number that the executor states.
        study: the study.
        directory: path or bucket URL of the results folder.
        command: the command, which is stored with the results.
    """

    executor: Executor
    number: int | None
    study: Definition
    directory: str
    command: str

    def origin(self, code: Mapping[str, str | None]) -> worker.Origin:
        """Return the origin of jobs, with the hashes of code and files."""
        directory = self.directory if is_address(self.directory) else os.path.abspath(self.directory)
        return worker.origin_of(self.study, directory, self.command, code, pool_of(self.executor))

    def widths(
        self,
        max_memory: int | None,
        runs: Mapping[int, Sequence[Any]],
        code: Mapping[str, str | None],
        raising: frozenset[int],
    ) -> dict[int, int]:
        """Compute in a worker how many runs fit in its memory, unless `chunk` is set; see `worker.widths`."""
        counts = {number: len(own) for number, own in runs.items()}
        shards = self.number or workers_of(self.executor)
        if self.study.chunk:
            each = {number: math.ceil(count / shards) for number, count in counts.items()}
            return {number: min(self.study.chunk, width) for number, width in each.items()}
        given = counts, max_memory, shards, raising
        future = _submit(self.executor, worker.job(worker.widths, self.origin(code), *given))
        found: dict[int, int] = _result(future, "the plan", dict)
        return found

    def run(self, folder: Memo, rules: Rules, plan: Plan, monitor: RunMonitor, intervals: Intervals) -> None:
        """Compute the batches of a plan; see `Pool.run` for the exceptions."""
        origin = self.origin(plan.code)
        Pool(self.executor, folder, rules, origin, plan.identity, intervals).run(monitor, plan.batches)


class Pool(NamedTuple):
    """Batches to compute in the workers of an executor.

    Attributes:
        executor: the executor.
        folder: the results folder.
        rules: what to do after each attempt.
        origin: origin of the jobs.
        identity: identity of each cell.
        intervals: time intervals for checkpoints.
    """

    executor: Executor
    folder: Memo
    rules: Rules
    origin: worker.Origin
    identity: Mapping[int, Identity]
    intervals: Intervals

    def run(self, monitor: RunMonitor, wanted: Sequence[batches.Batch]) -> None:
        """Compute batches.

        Raises:
            Interrupted: the run was asked to stop; workers that cannot be stopped finish their batches.
            RunError, InputError: a worker has raised such an error, or has ended without a result.
        """
        running = {self.submit(tried): tried for tried in map(self.rules.first, wanted)}
        done, total, began = 0, len(running), time.monotonic()
        known = {""}
        try:
            while running:
                ended = [future for future in running if future.done()]
                for future in ended:
                    tried = running.pop(future)
                    result: Attempt = _result(future, tried.batch.name, Attempt)
                    if result.where not in known:
                        known.add(result.where)
                        self.rules.reporter.note(result.where)
                    more = self.rules.after(tried, result)
                    running |= {self.submit(each): each for each in more}
                    done, total = done + (not more), total + max(0, len(more) - 1)
                self.show(done, list(running.values()), time.monotonic() - began)
                if monitor.stop_requested:
                    raise Interrupted("")
                if not ended:
                    monitor.wait(LOOK_S)
        except BaseException as error:
            left = self.stop(list(running))
            if not isinstance(error, Interrupted):
                raise
            finished = f"{done:,} of {counted(total, 'batch')} finished"
            raise Interrupted(finished + f", and {left:,} left to the workers" * bool(left)) from None

    def submit(self, tried: Try) -> Any:
        """Submit a batch."""
        batch = tried.batch
        runs = tuple((cell.number, seed) for cell, seed in batch.runs)
        cells = batches.batch_cells(batch, self.identity)
        task = worker.Task(cells, runs, batch.source, not tried.left, self.intervals)
        return _submit(self.executor, worker.job(worker.compute, self.origin, task))

    def show(self, done: int, running: Sequence[Try], elapsed: float) -> None:
        """Show the progress of all workers, as far as their logs tell it."""
        shares = list(self.shares({self.key(tried) for tried in running})) if running else []
        total = done + len(running)
        fraction = (done + sum(shares)) / max(total, 1)
        left = elapsed * (1 - fraction) / fraction if fraction > 0 else None
        text = f"{done:,} of {counted(total, 'batch')} finished, {len(shares):,} at work"
        self.rules.reporter.update(text, fraction, remaining=left)

    def shares(self, keys: set[str]) -> Iterator[float]:
        """Yield the completed fraction of each batch that workers compute."""
        for one in memo.partials(self.folder.directory):
            if one.record.key in keys:
                line = run_log.latest(one.path, self.folder.directory).line
                yield line.share if line else 0.0

    def key(self, tried: Try) -> str:
        """Return the hash of the runs of a batch."""
        runs = [(self.identity[cell.number].key, seed) for cell, seed in tried.batch.runs]
        return batch_record.runs_key(runs)

    def stop(self, futures: Sequence[Any]) -> int:
        """Cancel batches, and ask the processes of a pool to save and stop; return how many keep running."""
        for future in futures:
            future.cancel()
        for number in list(getattr(self.executor, "_processes", None) or ()):
            with suppress(OSError):
                os.kill(number, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and not all(future.done() for future in futures):
            time.sleep(LOOK_S)
        return sum(not future.done() for future in futures)


def _submit(executor: Executor, job: worker.Job) -> Any:
    try:
        return executor.submit(job)
    except Exception as error:
        raise RunError(
            f"executor: a batch cannot be submitted ({type(error).__name__}: {first_line(error)})"
        ) from None


def _result(future: Any, name: str, kind: type) -> Any:
    try:
        found = future.result()
    except (InputError, RunError):
        raise
    except Interrupted:
        raise Interrupted(f"the worker of {name} was asked to stop") from None
    except Exception as error:
        raise RunError(
            f"{name}: its worker ended without a result ({type(error).__name__}: {first_line(error)}); "
            "finished batches and saved states are kept, and the same command resumes the run"
        ) from None
    if not isinstance(found, kind):
        raise RunError(
            f"{name}: its executor returned {found!r:.60} in place of what the function returned; `result()` "
            "must return that"
        )
    return found
