"""Run batches one after the other; a failed batch is reported in one line and does not stop the others."""

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from jaxattn.core.errors import RunError, in_user_code
from jaxattn.lab.engine import manifest
from jaxattn.lab.engine.batches import Batch, halved
from jaxattn.lab.engine.clock import Clock, Interrupted
from jaxattn.lab.engine.progress import Reporter, patient
from jaxattn.lab.engine.store import Store

OnFailure = Literal["stop", "continue", "retry"]
RETRIES = 2


class Tried(NamedTuple):
    """Result of a batch: failed seeds, the error that prevented it from running, and lack of memory."""

    failed: list[dict[str, Any]]
    error: str = ""
    out_of_memory: bool = False


class Queue(NamedTuple):
    """Batches that run one after the other.

    A failed batch does not stop the others. A batch that does not fit in memory is cut into halves, down to a
    single seed.

    Attributes:
        runs: function that runs a batch and returns its failed seeds.
        batches: all batches of the run.
        waiting: batches that are still to be run.
        known: the manifest.
        folder: the results folder.
        clock: clock of the run, which records progress and requests to stop.
        reporter: reporter of failures.
        on_failure: reaction to a failed batch.
        files: source files of the user's code, whose errors are reported as such.
    """

    runs: Callable[[Batch], list[dict[str, Any]]]
    batches: list[Batch]
    waiting: deque[Batch]
    known: dict[str, Any]
    folder: Store
    clock: Clock
    reporter: Reporter
    on_failure: OnFailure
    files: frozenset[str]

    def run(self, errors: list[dict[str, Any]]) -> None:
        """Run the waiting batches; append the batches that failed to run to `errors`.

        Raises:
            RunError: a batch failed and `on_failure` is "stop".
            Interrupted: the run was asked to stop.
        """
        self.clock.expect(self.waiting)
        while self.waiting:
            number = len(self.batches) - len(self.waiting)
            batch = self.waiting.popleft()
            self.clock.begin_batch(batch, number, len(self.batches))
            tried = self._attempt(batch)
            if tried.out_of_memory and batch.width > 1:
                self._halve(batch)
                continue
            if tried.error:
                cells = [cell.number for cell in batch.cells]
                errors.append({"batch": batch.name, "cells": cells, "reason": tried.error})
            if self.on_failure == "stop" and (tried.failed or tried.error):
                raise RunError(
                    f"{batch.name}: {tried.error or tried.failed[0]['reason']}; stopped, finished batches "
                    "are kept; use --on-failure continue to run the other batches"
                )
            if self.clock.is_stopped:
                raise Interrupted

    def _attempt(self, batch: Batch) -> Tried:
        """Run a batch, and repeat it if it fails and `on_failure` is "retry"."""
        for number in range(1 + RETRIES * (self.on_failure == "retry")):
            if number:
                self.reporter.note(f"{batch.name}: failed, running it again")
                self.folder.forget(batch.name)
            tried = self._try(batch)
            if not (tried.failed or tried.error) or (tried.out_of_memory and batch.width > 1):
                break
        return tried

    def _try(self, batch: Batch) -> Tried:
        try:
            return Tried(self.runs(batch))
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            lines = str(error).strip().split("\n")
            if any(file in str(error) for file in self.files):
                # A callback raised; JAX has printed its traceback.
                return Tried([], f"{lines[-1]} in a callback of your functions")
            reason = lines[0] or type(error).__name__
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in reason:
                return Tried([], f"{reason}; a single seed needs a smaller problem, or more memory", True)
            return Tried([], f"{reason}; smaller batches may help: --max-memory or --set chunk=...")
        except Exception as error:
            if not (found := in_user_code(error, self.files, "")):
                raise
            self.reporter.trace(batch.name, found)
            return Tried([], str(found))

    def _halve(self, batch: Batch) -> None:
        halves = halved(batch)
        text = " and ".join(half.name for half in halves)
        self.reporter.note(f"{batch.name}: out of memory; running {text} instead")
        self.folder.forget(batch.name)
        place = self.batches.index(batch)
        self.batches[place : place + 1] = halves
        # Written at once, because a run that stops here must find the new batches when it resumes.
        self.known["batches"] = manifest.listed(self.batches)
        self.folder.write_manifest(self.known)
        self.waiting.extendleft(reversed(halves))
        self.clock.expect(halves)


def unfinished(batches: list[Batch], folder: Store, reporter: Reporter) -> list[Batch]:
    """Return the batches that are still to be run; all others are finished and intact."""
    progress, todo = patient(reporter.update), []
    for number, batch in enumerate(batches):
        progress(f"comparing {batch.name} with its checksums", number / len(batches))
        if not folder.is_whole(batch.name):
            todo.append(batch)
    return todo
