"""Running a study: every compile group, seeds together, with checkpoints on the way."""

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from jaxattn import backend
from jaxattn.engine import batches, devices, loggers, manifest, memory, spent
from jaxattn.engine.batches import Batch
from jaxattn.engine.execute import Callbacks, Clock, CompilationCache, Interrupted, execute
from jaxattn.engine.groups import CompileGroup, compile_groups, rehearse_groups
from jaxattn.engine.progress import Reporter
from jaxattn.engine.store import Store
from jaxattn.errors import RunError, in_user_code
from jaxattn.storage import checkpoints
from jaxattn.storage.manifest import find
from jaxattn.storage.marks import spans
from jaxattn.study.definition import Definition

OnFailure = Literal["stop", "continue", "retry"]
RETRIES = 2


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
    clock: Clock = Clock(),  # noqa: B008  frozen
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
        clock: when it reports and saves.

    Returns:
        The outcome; records.parquet, tokens.parquet and manifest.json are in the folder.

    Raises:
        InputError: data that cannot be used, a cell that does not fit, or a folder of another config.
        RunError: a folder that cannot be written, too few file handles, or a failure that is to stop the run.
        Interrupted: SIGINT or SIGTERM came; the same command continues.
    """
    meter = spent.start()
    memory.check_address_space(reporter.note)
    checkpoints.check_handles()
    folder = Store(directory, reporter.warn)
    with folder.locked(), backend.precision(study.dtype):
        groups = compile_groups(study.cells)
        raising = rehearse_groups(study, groups, reporter.loading, keep_going=on_failure != "stop")
        known = folder.join(manifest.describe(study, command, shard), accept_code)
        if not folder.batches():
            known["device"] = devices.here()
        cut = cut_batches(study, groups, folder, known, max_memory, shard[1], raising, reporter.update)
        own, now = _share(*cut, known, shard)
        todo = _unfinished(own, folder, reporter)
        if not todo and now["status"] == "finished" and folder.is_merged(now):
            renewed = now != find(folder.directory)
            if renewed:
                folder.write_manifest(now)
            return Outcome(folder.directory, now["failures"], [], len(own), True, renewed)
        now["continued_on"] = _moved(now, reporter)
        # A process that was killed left its manifest as it began; its last line tells more.
        meter = meter.after(now, *folder.read_log()[-1:])
        now["status"] = "running"
        folder.write_manifest(now)
        errors: list[dict[str, Any]] = []

        def replan(batch: Batch, halves: list[Batch]) -> None:
            place = own.index(batch)
            own[place : place + 1] = halves
            # At once: a run that is stopped here is to know which batches there are.
            now["batches"] = manifest.listed(own)
            folder.write_manifest(now)

        try:
            files = study.names.files(study.own_kinds)
            with _logging(folder, study.name, log, profile) as write, _stopping(reporter.quiet) as stop:
                queue = _Queue(folder, reporter, stop, on_failure, write, clock, files, replan, meter)
                queue.run(todo, len(own), errors)
            now |= folder.merge([batch.name for batch in own if folder.is_marked(batch.name)])
            now["status"] = "failed" if errors else "finished"
        finally:
            folder.write_manifest(now | {"errors": errors} | meter.read())
    return Outcome(folder.directory, now["failures"], errors, len(own), False)


def _moved(known: Mapping[str, Any], reporter: Reporter) -> list[dict[str, Any]]:
    """Say that a run goes on where numbers may have other bits; returns all devices since it was begun."""
    every = [known["device"], *known.get("continued_on", ())]
    if (now := devices.here()) != every[-1]:
        words = (f"{device.get('count')} × {device.get('kind')}" for device in (every[-1], now))
        reporter.note("begun on {}, going on on {}: numbers may differ in their last digits".format(*words))
        every.append(now)
    return every[1:]


def _share(
    widths: list[int], every: list[Batch], known: dict[str, Any], shard: tuple[int, int]
) -> tuple[list[Batch], dict[str, Any]]:
    """Take a shard's batches; returns them, and the manifest that names them and those of other shards."""
    own = batches.share(every, shard)
    elsewhere = {batch.name for batch in every} - {batch.name for batch in own}
    now = known | {"widths": widths, "batches": manifest.listed(own), "elsewhere": sorted(elsewhere)}
    return own, now


@contextmanager
def _logging(
    folder: Store, name: str, log: Sequence[loggers.Kind], profile: bool
) -> Iterator[list[loggers.Write]]:
    """Open what gets every measurement, and the profile if it is asked for."""
    with ExitStack() as stack:
        if profile:
            stack.enter_context(jax.profiler.trace(str(folder.directory / "profile")))
        write: list[loggers.Write] = [lambda entry, series: folder.log(entry)]
        for kind in log:
            function, close = loggers.writer(kind, folder.directory, name)
            write.append(function)
            stack.callback(close)
        yield write


def _unfinished(own: list[Batch], folder: Store, reporter: Reporter) -> list[Batch]:
    """List the batches that are to be run; those that are not have whole tables."""
    begin, todo = time.monotonic(), []
    for number, batch in enumerate(own):
        if time.monotonic() - begin > 2:
            reporter.update(f"comparing {batch.name} with its checksums", number / len(own))
        if not folder.is_finished(batch.name):
            todo.append(batch)
    return todo


def cut_batches(
    study: Definition,
    groups: Sequence[CompileGroup],
    folder: Store,
    known: Mapping[str, Any],
    max_memory: int | None,
    shards: int = 1,
    raising: frozenset[int] = frozenset(),
    progress: Callable[[str, float], None] = lambda description, share: None,
) -> tuple[list[int], list[Batch]]:
    """Cut a study into batches; what a folder was begun with, it keeps, so that the numbers stay the same.

    Args:
        study: what to run.
        groups: its compile groups.
        folder: where it runs.
        known: its manifest, as `Store.join` tells it.
        max_memory: bytes that may be used on a device; what is not begun is cut anew if it is given.
        shards: how many shares there are to be; every one gets something to do.
        raising: groups that fail however many lanes run together.
        progress: told what takes long.

    Returns:
        How many lanes of every group run together, and the batches of all shares.

    Raises:
        InputError: a cell that does not fit in memory, or a folder of another config.
    """
    begun = folder.batches()
    planned = {batch["name"] for batch in known["batches"]} | set(known["elsewhere"])
    kept = known["widths"] if begun and max_memory is None else []
    if begun and not planned:
        # The manifest was lost; the largest batch of a group tells.
        held = batches.cut(groups, (), begun, [1] * len(groups))
        kept = [max((len(b.lanes) for b in held if b.group is group), default=0) for group in groups]
    if len(kept) != len(groups) or not all(kept):
        kept = _widths(study, groups, max_memory or memory.default_budget(), shards, raising, progress)
    asked = set(study.seeds)
    still = {name for name in planned if max_memory is None and asked.issuperset(spans(name)[1])}
    whole = batches.cut(groups, study.seeds, [], kept)
    if {*begun, *still} <= {batch.name for batch in whole}:
        return kept, whole
    return kept, batches.cut(groups, study.seeds, sorted({*begun, *still}), kept)


def _widths(
    study: Definition,
    groups: Sequence[CompileGroup],
    budget: int,
    shards: int,
    raising: frozenset[int],
    progress: Callable[[str, float], None],
) -> list[int]:
    """Choose how many lanes of every group run together."""
    seeds = len(study.seeds)

    def tell(group: CompileGroup) -> None:
        progress(f"memory of compile group {group.number + 1} of {len(groups)}", 0.0)

    fitting = [
        study.chunk
        or (len(group.cells) * seeds if group.number in raising else memory.width(group, seeds, budget, tell))
        for group in groups
    ]
    return [min(width, -(-len(g.cells) * seeds // shards)) for g, width in zip(groups, fitting, strict=True)]


class _Tried(NamedTuple):
    """What came of a batch: the lanes that failed, why it could not be run, and whether memory ran out."""

    failed: list[dict[str, Any]]
    error: str = ""
    out_of_memory: bool = False


class _Queue(NamedTuple):
    """Runs batches one after the other; `replan` is told what takes the place of one that does not fit."""

    folder: Store
    reporter: Reporter
    stop: threading.Event
    on_failure: OnFailure
    write: Sequence[loggers.Write]
    clock: Clock
    files: frozenset[str]
    replan: Callable[[Batch, list[Batch]], None]
    meter: spent.Meter

    def run(self, todo: list[Batch], whole: int, errors: list[dict[str, Any]]) -> None:
        """Run what is to do of `whole` batches; note in `errors` those that could not be run.

        One that runs out of memory goes on in halves, down to single lanes.

        Raises:
            Interrupted: it was asked to stop.
        """
        with closing(CompilationCache(self.reporter.loading)) as cache:
            self._run(cache, deque(todo), whole, errors)

    def _run(
        self, cache: CompilationCache, waiting: deque[Batch], whole: int, errors: list[dict[str, Any]]
    ) -> None:
        started, number = time.time(), whole - len(waiting)
        while waiting:
            batch = waiting.popleft()
            callbacks = self._callbacks(batch, number, number + 1 + len(waiting), started)
            failed, error, out_of_memory = self._attempt(batch, cache, callbacks)
            if out_of_memory and batch.width > 1:
                halves = batches.halved(batch)
                names = " and ".join(half.name for half in halves)
                self.reporter.note(f"{batch.name}: out of memory; going on with {names}")
                self.folder.forget(batch.name)
                self.replan(batch, halves)
                waiting.extendleft(reversed(halves))
                continue
            number += 1
            if error:
                errors.append(
                    {"batch": batch.name, "cells": [c.number for c in batch.cells], "reason": error}
                )
            if self.on_failure == "stop" and (failed or error):
                raise RunError(
                    f"{batch.name}: {error or failed[0]['reason']}; stopped, what is done is kept; "
                    "go on with --on-failure continue"
                )
            if self.stop.is_set():
                raise Interrupted

    def _callbacks(self, batch: Batch, number: int, whole: int, started: float) -> Callbacks:
        def report(phase: str, step: int, share: float, loss: float) -> None:
            known = "" if math.isnan(loss) else f"loss {loss:.4g}"
            place = f"{batches.describe(batch)}{phase} step {step:,}"
            # What compiles once.
            part = f"{batch.group.number} {batch.width} {phase}"
            self.reporter.update(place, (number + share) / whole, known, part)

        def log(measured: dict[str, Any], series: dict[str, dict[str, float]]) -> None:
            overall = (number + measured["share"]) / whole
            entry = {
                "time": time.time(),
                "start": started,
                "batch": batch.name,
                "overall": overall,
                **self.meter.read(),
                **measured,
            }
            for to in self.write:
                to(entry, series)

        return Callbacks(self.stop, report, log)

    def _attempt(self, batch: Batch, cache: CompilationCache, callbacks: Callbacks) -> _Tried:
        """Run a batch, and again if it fails and that is asked for."""
        for attempt in range(1 + RETRIES * (self.on_failure == "retry")):
            if attempt:
                self.reporter.note(f"{batch.name}: failed, trying again")
                self.folder.forget(batch.name)
            tried = self._try(batch, cache, callbacks)
            if not (tried.failed or tried.error) or (tried.out_of_memory and batch.width > 1):
                break
        return tried

    def _try(self, batch: Batch, cache: CompilationCache, callbacks: Callbacks) -> _Tried:
        """Run a batch."""
        try:
            return _Tried(execute(batch, cache, self.folder, callbacks, self.clock))
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            lines = str(error).strip().split("\n")
            if any(file in str(error) for file in self.files):
                # A callback raised; JAX has shown where.
                return _Tried([], f"{lines[-1]} in code that your functions call back")
            reason = lines[0] or type(error).__name__
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in reason:
                return _Tried([], f"{reason}; a single lane needs a smaller problem, or more memory", True)
            return _Tried([], f"{reason}; smaller batches may help: --max-memory or --set chunk=...")
        except Exception as error:
            if not (found := in_user_code(error, self.files, "")):
                raise
            self.reporter.trace(batch.name, found)
            return _Tried([], str(found))


@contextmanager
def _stopping(quiet: bool) -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one stops as it does elsewhere."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        stop.set()
        restore()
        if not quiet:
            os.write(2, b"stopping as soon as a step is done; once more stops at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        yield stop
    finally:
        restore()
