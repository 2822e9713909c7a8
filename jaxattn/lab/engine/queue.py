"""Queue of the batches of a run, which this process computes one after another."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxattn.core.errors import RunError, counted
from jaxattn.lab.engine import batches, description
from jaxattn.lab.engine.attempt import RETRIES, Attempt, OnFailure, attempt
from jaxattn.lab.engine.batches import Batch, halve
from jaxattn.lab.engine.missing import Plan
from jaxattn.lab.engine.monitor import Interrupted, RunMonitor
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage.batch_record import BatchRecord
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.storage.workplace import Workplace
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.identity import Identity

# Seconds between looks whether another process has finished a batch, in a folder and in a bucket.
LOOK_S, LOOK_REMOTE_S = 0.5, 5.0


class Try(NamedTuple):
    """A batch to compute, and how often it may be tried again if it fails."""

    batch: Batch
    left: int = 0


class Rules(NamedTuple):
    """What to do after an attempt to compute a batch.

    Attributes:
        on_failure: "stop", "continue" or "retry".
        reporter: reports what is done.
        errors: list of the batches that could not be computed.
    """

    on_failure: OnFailure
    reporter: Reporter
    errors: list[dict[str, Any]]

    def first(self, batch: Batch) -> Try:
        """Return the first try of a batch."""
        return Try(batch, RETRIES if self.on_failure == "retry" else 0)

    def after(self, tried: Try, found: Attempt) -> list[Try]:
        """Return what to compute next: the halves of a batch that does not fit in memory, or it again.

        Raises:
            RunError: the batch failed, and `on_failure` is "stop".
        """
        batch = tried.batch
        if found.is_too_large:
            halves = halve(batch)
            text = " and ".join(half.name for half in halves)
            self.reporter.note(f"{batch.name}: out of memory; running {text} instead")
            return [tried._replace(batch=half) for half in halves]
        if found.failed and tried.left:
            self.reporter.note(f"{batch.name}: failed, running it again")
            return [Try(batch, tried.left - 1)]
        if found.reason:
            if found.trace:
                self.reporter.trace(batch.name, found.reason, found.trace)
            cells = [cell.number for cell in batch.cells]
            self.errors.append({"batch": batch.name, "cells": cells, "reason": found.reason})
        if self.on_failure == "stop" and found.failed:
            reason = found.reason or found.failures[0]["reason"]
            raise RunError(
                f"{batch.name}: {reason}; the run was stopped, and finished batches were kept; use "
                "--on-failure continue to run the remaining batches"
            )
        return []


def place_of(
    batch: Batch,
    folder: Memo,
    identity: Mapping[int, Identity],
    code: Mapping[str, str | None],
    command: str,
) -> Workplace:
    """Return the folder in which this process computes a batch."""
    cells = batches.batch_cells(batch, identity)
    runs = tuple((cell.number, seed) for cell, seed in batch.runs)
    return Workplace(folder, BatchRecord(cells, runs, description.origin(command, code, batch)))


class Queue(NamedTuple):
    """Batches to compute one after another; `places` contains the folder of the current batch."""

    study: Definition
    folder: Memo
    cache: ProgramCache
    rules: Rules
    plan: Plan
    command: str
    places: list[Workplace]

    def log(self, entry: dict[str, Any]) -> None:
        """Write an entry to the log of the current batch."""
        if self.places:
            self.places[-1].log(entry)

    def run(self, monitor: RunMonitor) -> None:
        """Compute all batches.

        A batch that another process computes is left for later. A batch that does not fit in memory is split
        in half, repeatedly if necessary, down to single runs. A batch that fails stops the whole run only if
        `on_failure` is "stop".
        """
        waiting = deque(map(self.rules.first, self.plan.batches))
        total, done, postponed = len(waiting), 0, 0
        monitor.expect(self.plan.batches)
        while waiting:
            tried = waiting.popleft()
            batch = tried.batch
            self.folder.refresh()
            place = place_of(batch, self.folder, self.plan.identity, self.plan.code, self.command)
            if place.is_superseded():
                monitor.drop(batch)
                done, postponed = done + 1, 0
                continue
            if any(one.is_running for one in place.others()):
                waiting.append(tried)
                postponed += 1
                if postponed >= len(waiting):
                    self.rules.reporter.update("waiting for the batches of other processes")
                    monitor.wait(LOOK_S if self.folder.remote is None else LOOK_REMOTE_S)
                    _check_stop(monitor, done, total)
                continue
            postponed = 0
            self.places.append(place)
            monitor.begin_batch(batch, done, total)
            found = attempt(self.study, batch, self.cache, place, monitor, is_last=not tried.left)
            self.places.pop()
            more = self.rules.after(tried, found)
            waiting.extendleft(reversed(more))
            monitor.expect(each.batch for each in more)
            done, total = done + (not more), total + max(0, len(more) - 1)
            _check_stop(monitor, done, total)


def _check_stop(monitor: RunMonitor, done: int, total: int) -> None:
    if monitor.stop_requested:
        raise Interrupted(f"{done:,} of {counted(total, 'batch')} finished")
