"""Run monitor: status, requests to save and stop, estimated time left, and resources used."""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.base import Goal
from jaxattn.core.errors import counted
from jaxattn.lab.engine.batches import Batch, describe_batch
from jaxattn.lab.engine.progress import Reporter

_PROCESS = Path("/proc/self")
# Callback that receives an entry of metrics.jsonl and, if available, the metrics of individual seeds.
Write = Callable[[dict[str, Any], dict[str, dict[str, float]]], None]


# Most seconds of work that a killed process loses, except for a longer step.
LOSS_S = 90.0


class Interrupted(Exception):
    """Raised when a run stops on request, after saving a checkpoint. The message says what is kept.

    Attributes:
        signal: number of the signal that requested it; 0 if another process received the signal.
    """

    signal = 0


@contextmanager
def ending_as_asked() -> Iterator[None]:
    """In the `with` block, end Python as the signal that stopped a run asks for.

    Raises:
        KeyboardInterrupt: the run was stopped by SIGINT.
        SystemExit: the run was stopped by SIGTERM; the status is 143, as for a process that the signal ends.
    """
    try:
        yield
    except Interrupted as stopped:
        words = f"stopped; {stopped}; repeat the call to resume"
        if stopped.signal != signal.SIGTERM:
            raise KeyboardInterrupt(words) from None
        print(words, file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM) from None


class Intervals(NamedTuple):
    """Time intervals for progress updates and checkpoints.

    Attributes:
        block_s: duration of a block of steps in seconds. Between blocks, the progress is shown and requests
            to stop are handled.
        checkpoint_s: minimum time in seconds between two checkpoints within a phase.
        checkpoint_share: maximum fraction of the running time to spend on checkpoints, unless more than
            `LOSS_S` seconds of work could be lost.
    """

    block_s: float = 1.0
    checkpoint_s: float = 60.0
    checkpoint_share: float = 0.03


class RunMonitor:
    """Progress of a run, with an estimate of the remaining time that excludes compilation and checkpoints."""

    _batch: Batch
    _probes: Sequence[int]

    def __init__(
        self,
        reporter: Reporter,
        write: Write,
        intervals: Intervals = Intervals(),  # noqa: B008  frozen
        *,
        started: float | None = None,
    ) -> None:
        """Start the monitor.

        Args:
            reporter: displays the progress.
            write: callback that receives a log entry for each status and each measurement.
            intervals: time intervals for progress updates and checkpoints.
            started: `time.monotonic()` at the start of this process; defaults to now.
        """
        self._reporter, self._write, self._intervals = reporter, write, intervals
        self._started = time.monotonic() if started is None else started
        self._stop = threading.Event()
        self._save_at = self._started + intervals.checkpoint_s
        # Keyed by (group, phase): seconds per vmapped run, and the number of runs that have not started.
        self._costs: dict[tuple[int, int], float] = {}
        self._waiting: Counter[tuple[int, int]] = Counter()
        self._per_step: float | None = None

    # Stop requests and checkpoint times.

    @property
    def stop_requested(self) -> bool:
        """Return True if the run has been asked to save and stop."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, at most until the run is asked to stop."""
        self._stop.wait(seconds)

    def interrupted(self) -> Interrupted:
        """Return the exception to raise after a state of the current batch was saved."""
        finished = f"{self._number:,} of {counted(self._whole, 'batch')} finished"
        phase = self._phases[self._phase].name
        return Interrupted(f"{finished}, {self._batch.name} saved at step {self._step:,} of {phase}")

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Turn the first SIGINT or SIGTERM into a request to stop; a second signal has its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        received = 0

        def request_stop(number: int, frame: Any) -> None:
            nonlocal received
            received = number
            self._stop.set()
            restore()
            if not self._reporter.quiet:
                os.write(2, b"stopping after the current block of steps; interrupt again to stop at once\n")

        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        try:
            yield
        except Interrupted as stopped:
            stopped.signal = received
            raise
        finally:
            restore()

    @property
    def is_time_to_save(self) -> bool:
        """Return True if a checkpoint within a phase is due."""
        return time.monotonic() >= self._save_at

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure the time for saving a checkpoint, and set the time at which the next checkpoint is due."""
        begin = time.monotonic()
        yield
        took = time.monotonic() - begin
        self._saving_s += took
        wait = max(self._intervals.checkpoint_s, took / self._intervals.checkpoint_share)
        self._save_at = begin + took + min(wait, max(LOSS_S - took, took))

    # Progress by batch, phase and step.

    def expect(self, batches: Iterable[Batch]) -> None:
        """Include the given batches, none of which has started, when estimating the time left."""
        for batch in batches:
            self._waiting.update(_runs(batch))

    def drop(self, batch: Batch) -> None:
        """Leave out a batch that another process has computed."""
        self._waiting.subtract(_runs(batch))

    def begin_batch(self, batch: Batch, number: int, whole: int) -> None:
        """Record the start of a batch, its number, and the total number of batches."""
        self._batch, self._number, self._whole = batch, number, whole
        self._phases = batch.group.setting.phases
        self._waiting.subtract(_runs(batch))
        self._phase, self._step, self._probes = 0, 0, [0]
        self._metrics: dict[str, float | None] = {}
        self._metrics_at = 0

    def set_status(self, status: str, remaining: float | None = None) -> None:
        """Show the status of an operation that has no steps.

        If `remaining`, the time left in seconds, is given, the fraction completed is also shown.
        """
        fraction = None if remaining is None else self._overall()
        self._reporter.update(f"{describe_batch(self._batch)}{status}", fraction, remaining=remaining)
        nothing: dict[str, Any] = {"metrics": {}, "losses": {}, "failures": []}
        self._write(self._entry(remaining) | nothing | {"doing": status}, {})

    def begin_phase(self, number: int, probes: Sequence[int], step: int) -> None:
        """Record that a phase starts or resumes at `step`, and the steps at which it is measured."""
        self._phase, self._step, self._probes = number, step, probes
        self._metrics = {}
        self._is_whole, self._per_step = step == 0, None
        self._blocks, self._measured, self._measuring_s, self._saving_s = 0, 0, 0.0, 0.0
        self._phase_began = self._since = time.monotonic()
        begins = f"runs until {goal.label} = {goal.value:g}" if (goal := self._goal) else "begins"
        self.set_status(f"{self._phases[number].name} {'resumes' if step else begins}", self.remaining())

    def block(self, remaining: int) -> int:
        """Return the number of steps to take in the next block, at most `remaining`."""
        if self._per_step is None or self._goal is not None:
            return 1
        return min(remaining, max(1, int(self._intervals.block_s / self._per_step)))

    @contextmanager
    def stepping(self, steps: int) -> Iterator[None]:
        """Measure the time for a block of steps, then show the progress."""
        begin = time.perf_counter()
        yield
        self._per_step = (time.perf_counter() - begin) / steps
        self._step, self._blocks = self._step + steps, self._blocks + 1
        self._show()

    def record(self, measured: dict[str, Any], series: dict[str, dict[str, float]]) -> None:
        """Write the measurements taken at a step; see `records.log_entry`."""
        self._measuring_s += time.monotonic() - self._since
        self._measured += 1
        self._metrics, self._metrics_at = measured["metrics"], self._step
        self._write(self._entry(self.remaining()) | measured, series)
        self._show()

    def end_phase(self) -> None:
        """Record the phase's time per vmapped run, to estimate the time that other batches will take."""
        if self._is_whole:
            self._costs[self._batch.group.number, self._phase] = self._in_phase() / self._batch.width

    def remaining(self) -> float | None:
        """Estimate the time left in seconds, or return None if it is unknown.

        It is unknown, for example, until every phase has been timed.
        """
        later = _runs(self._batch, self._phase + 1)
        wanted = self._waiting + Counter(later)  # also drops zero counts
        here = self._left_of_phase()
        if here is None or wanted.keys() - self._costs.keys():
            return None
        return here + sum(self._costs[location] * runs for location, runs in wanted.items())

    def _left_of_phase(self) -> float | None:
        last = self._probes[-1]
        # The first block of a phase includes compilation. In a phase with a goal, the time per step varies.
        equal = self._blocks > 1 and self._goal is None
        if self._per_step is not None and (equal or self._step >= last):
            each = self._measuring_s / self._measured if self._measured else 0.0
            return self._per_step * (last - self._step) + each * sum(x > self._step for x in self._probes)
        cost = self._costs.get((self._batch.group.number, self._phase))
        if cost is None or not self._is_whole:
            return None
        remaining = cost * self._batch.width - self._in_phase()
        # If the phase has already taken longer than in earlier batches, the time left is unknown.
        return remaining if remaining > 0 else None

    def _in_phase(self) -> float:
        return time.monotonic() - self._phase_began - self._saving_s

    @property
    def _goal(self) -> Goal | None:
        goal = self._phases[self._phase].goal
        return goal if isinstance(goal, Goal) else None  # a custom phase may use this name differently

    def _batch_fraction(self) -> float:
        steps = [max(phase.steps, 1) for phase in self._phases]
        here = steps[self._phase] * self._step / max(self._probes[-1], 1)
        return (sum(steps[: self._phase]) + here) / sum(steps)

    def _overall(self) -> float:
        return (self._number + self._batch_fraction()) / self._whole

    def _show(self) -> None:
        phase, loss = self._phases[self._phase], self._metrics.get("loss")
        location = f"step {self._step:,} of {self._probes[-1]:,}"
        if (goal := self._goal) and (reached := self._metrics.get(goal.metric)) is not None:
            location = f"{goal.label} = {reached:.3g} of {goal.value:g}"
        state = "" if loss is None else f"loss {loss:.4g}"
        if state and self._metrics_at < self._step:
            state += f" at step {self._metrics_at:,}"
        text = f"{describe_batch(self._batch)}{phase.name} {location}"
        self._reporter.update(text, self._overall(), state, self.remaining())
        self._since = time.monotonic()

    def _entry(self, remaining: float | None) -> dict[str, Any]:
        return {
            "time": time.time(),
            "batch": self._batch.name,
            "phase": self._phases[self._phase].name,
            "step": self._step,
            "steps": self._probes[-1],
            "share": self._batch_fraction(),
            "overall": self._overall(),
            "left": remaining,
        }


def _runs(batch: Batch, first: int = 0) -> dict[tuple[int, int], int]:
    phases = range(first, len(batch.group.setting.phases))
    return {(batch.group.number, phase): batch.width for phase in phases}


def forget_peak() -> None:
    """Restart the measurement of peak memory for `peak_mib`, if the operating system supports it."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def peak_mib() -> float | None:
    """Return the peak memory in MiB since the process started or since `forget_peak`, or None if unknown."""
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)
