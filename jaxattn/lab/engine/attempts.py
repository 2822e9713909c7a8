"""Batches one after the other: one that fails is named in one line, and takes no other with it."""

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
    """What came of a batch: the lanes that failed, why it could not be run, and whether memory ran out."""

    failed: list[dict[str, Any]]
    error: str = ""
    out_of_memory: bool = False


class Queue(NamedTuple):
    """Batches that are run one after the other.

    What fails takes no other batch with it; what does not fit in memory goes on in halves, down to a lane.

    Attributes:
        runs: runs a batch and returns the lanes that failed.
        batches: all of the run.
        waiting: those that are to be run.
        known: the manifest.
        folder: the results folder.
        clock: told where the run is, and knows whether it is to stop.
        reporter: told what fails.
        on_failure: what to do then.
        files: files of the user's code, whose errors are the user's.
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
        """Run what waits; note in `errors` what could not be run.

        Raises:
            RunError: a failure that is to stop the run.
            Interrupted: it was asked to stop.
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
                    f"{batch.name}: {tried.error or tried.failed[0]['reason']}; stopped, what is done is "
                    "kept; go on with --on-failure continue"
                )
            if self.clock.is_stopped:
                raise Interrupted

    def _attempt(self, batch: Batch) -> Tried:
        """Run a batch, and again if it fails and that is asked for."""
        for number in range(1 + RETRIES * (self.on_failure == "retry")):
            if number:
                self.reporter.note(f"{batch.name}: failed, trying again")
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
                # A callback raised; JAX has shown where.
                return Tried([], f"{lines[-1]} in code that your functions call back")
            reason = lines[0] or type(error).__name__
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in reason:
                return Tried([], f"{reason}; a single lane needs a smaller problem, or more memory", True)
            return Tried([], f"{reason}; smaller batches may help: --max-memory or --set chunk=...")
        except Exception as error:
            if not (found := in_user_code(error, self.files, "")):
                raise
            self.reporter.trace(batch.name, found)
            return Tried([], str(found))

    def _halve(self, batch: Batch) -> None:
        halves = halved(batch)
        text = " and ".join(half.name for half in halves)
        self.reporter.note(f"{batch.name}: out of memory; going on with {text}")
        self.folder.forget(batch.name)
        place = self.batches.index(batch)
        self.batches[place : place + 1] = halves
        # At once: a run that is stopped here is to know which batches there are.
        self.known["batches"] = manifest.listed(self.batches)
        self.folder.write_manifest(self.known)
        self.waiting.extendleft(reversed(halves))
        self.clock.expect(halves)


def unfinished(batches: list[Batch], folder: Store, reporter: Reporter) -> list[Batch]:
    """List the batches that are to be run; those that are not have whole tables."""
    progress, todo = patient(reporter.update), []
    for number, batch in enumerate(batches):
        progress(f"comparing {batch.name} with its checksums", number / len(batches))
        if not folder.is_whole(batch.name):
            todo.append(batch)
    return todo
