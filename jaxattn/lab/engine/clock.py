"""The one clock of a run: what is being done, when to save and to stop, what is left, what was spent."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.base import Goal
from jaxattn.lab.engine.batches import Batch, describe
from jaxattn.lab.engine.progress import Reporter

_PROCESS = Path("/proc/self")
# An entry of metrics.jsonl, and the numbers of single seeds by lane and metric, if it has any.
Write = Callable[[dict[str, Any], dict[str, dict[str, float]]], None]


class Interrupted(Exception):
    """A run was asked to stop, and has saved what it needs to continue."""


class Intervals(NamedTuple):
    """How often a run shows how far it is, and saves.

    Attributes:
        block_s: seconds that a block of steps takes; progress shows and a stop is obeyed between blocks.
        checkpoint_s: least seconds between two checkpoints within a phase.
        checkpoint_share: at most this share of the time goes into them.
    """

    block_s: float = 1.0
    checkpoint_s: float = 60.0
    checkpoint_share: float = 0.03


class Clock:
    """Where a run is in time.

    Attributes:
        write: gets an entry for whatever is begun and measured.
    """

    _batch: Batch
    _probes: Sequence[int]

    def __init__(self, reporter: Reporter, intervals: Intervals = Intervals()) -> None:  # noqa: B008  frozen
        """Start; the peak of memory begins anew, where the system can."""
        self.write: Write = lambda entry, series: None
        self._reporter, self._intervals = reporter, intervals
        self._started, self._start_time = time.monotonic(), time.time()
        self._earlier_s, self._earlier_mib = 0.0, 0.0
        self._stop = threading.Event()
        self._save_at = self._started + intervals.checkpoint_s
        # Seconds that a lane took, by the numbers of its group and phase.
        self._costs: dict[tuple[int, int], float] = {}
        # Lanes that wait for it.
        self._lanes: Counter[tuple[int, int]] = Counter()
        self._per_step: float | None = None
        forget_peak()

    # What was spent.

    def go_on_from(self, *earlier: Mapping[str, Any]) -> None:
        """Add what earlier processes spent; of several accounts the largest, as each covers all before it."""
        self._earlier_s = max(each.get("wall_time_s") or 0.0 for each in earlier)
        self._earlier_mib = max(each.get("peak_memory_mib") or 0.0 for each in earlier)

    def spent(self) -> dict[str, float | None]:
        """Return seconds, and MiB held at once at most, of all processes; None where it is not known."""
        seconds = self._earlier_s + time.monotonic() - self._started
        held = max(self._earlier_mib, peak_mib() or 0.0)
        return {"wall_time_s": round(seconds, 3), "peak_memory_mib": round(held) or None}

    # When to stop, and when to save.

    @property
    def is_stopped(self) -> bool:
        """Whether the run was asked to save and stop."""
        return self._stop.is_set()

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Let the first SIGINT or SIGTERM ask for a stop; a second one does what it does elsewhere."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            self._stop.set()
            restore()
            if not self._reporter.quiet:
                os.write(2, b"stopping as soon as a step is done; once more stops at once\n")

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        try:
            yield
        finally:
            restore()

    @property
    def is_time_to_save(self) -> bool:
        """Whether a checkpoint within a phase is due."""
        return time.monotonic() >= self._save_at

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time a checkpoint, which decides when the next one is due."""
        begin = time.monotonic()
        yield
        took = time.monotonic() - begin
        self._saving_s += took
        wait = max(self._intervals.checkpoint_s, took / self._intervals.checkpoint_share)
        self._save_at = begin + took + wait

    # Where the run is.

    def expect(self, batches: Iterable[Batch]) -> None:
        """Note batches that wait."""
        for batch in batches:
            for phase in range(len(batch.group.setting.phases)):
                self._lanes[batch.group.number, phase] += batch.width

    def begin_batch(self, batch: Batch, number: int, whole: int) -> None:
        """Note which batch begins, and how many of all are behind it; it waits no more."""
        self._batch, self._number, self._whole = batch, number, whole
        for phase in range(len(self._phases)):
            self._lanes[batch.group.number, phase] -= batch.width
        self._phase, self._step, self._probes = 0, 0, [0]
        self._metrics: dict[str, float | None] = {}

    def doing(self, what: str, left: float | None = None) -> None:
        """Show work within which nothing is seen: with a share that is done only if it has a time left."""
        share = None if left is None else self._overall()
        self._reporter.update(f"{describe(self._batch)}{what}", share, left=left)
        nothing: dict[str, Any] = {"left": left, "metrics": {}, "losses": {}, "failures": []}
        self.write(self._entry() | nothing | {"doing": what}, {})

    def begin_phase(self, number: int, probes: Sequence[int], step: int) -> None:
        """Note which phase begins or goes on, at which steps it is measured, and at which one it is."""
        self._phase, self._step, self._probes = number, step, probes
        self._is_whole, self._per_step = step == 0, None
        self._blocks, self._measured, self._measuring_s, self._saving_s = 0, 0, 0.0, 0.0
        self._phase_began = self._since = time.monotonic()
        phase = self._phases[number]
        self.doing(f"{phase.name} {'goes on' if step else phase.beginning}", self.left())

    def block(self, remaining: int) -> int:
        """Choose how many of the remaining steps to take at once."""
        if self._per_step is None or self._goal is not None:
            return 1
        return min(remaining, max(1, int(self._intervals.block_s / self._per_step)))

    @contextmanager
    def stepping(self, steps: int) -> Iterator[None]:
        """Time a block of steps, and show that it was taken."""
        begin = time.perf_counter()
        yield
        self._per_step = (time.perf_counter() - begin) / steps
        self._step, self._blocks = self._step + steps, self._blocks + 1
        self._show()
        self._since = time.monotonic()

    def measured(self, found: dict[str, Any], series: dict[str, dict[str, float]]) -> None:
        """Write down what was measured at this step; see `records.log_entry`."""
        now = time.monotonic()
        self._measuring_s, self._measured = self._measuring_s + now - self._since, self._measured + 1
        self._metrics = found["metrics"]
        self.write(self._entry() | {"left": self.left()} | found, series)
        self._show()
        self._since = time.monotonic()

    def end_phase(self) -> None:
        """Note what a lane of the phase took, which is what those of the same group will take."""
        if self._is_whole:
            seconds = time.monotonic() - self._phase_began - self._saving_s
            self._costs[self._batch.group.number, self._phase] = seconds / self._batch.width

    def left(self) -> float | None:
        """Estimate the seconds that are left; None if anything is left whose pace was not seen yet."""
        here = self._left_of_phase()
        lanes = Counter(self._lanes)
        for phase in range(self._phase + 1, len(self._phases)):
            lanes[self._batch.group.number, phase] += self._batch.width
        wanted = {place: count for place, count in lanes.items() if count}
        if here is None or wanted.keys() - self._costs.keys():
            return None
        return here + sum(self._costs[place] * count for place, count in wanted.items())

    def _left_of_phase(self) -> float | None:
        """Estimate the seconds that the phase takes on, by its own steps or else by earlier lanes."""
        last = self._probes[-1]
        # The first block of a phase holds more than its steps; steps to a goal are not alike.
        alike = self._blocks > 1 and self._goal is None
        if self._per_step is not None and (alike or self._step >= last):
            each = self._measuring_s / self._measured if self._measured else 0.0
            return self._per_step * (last - self._step) + each * sum(x > self._step for x in self._probes)
        cost = self._costs.get((self._batch.group.number, self._phase))
        if cost is None or not self._is_whole:
            return None
        left = cost * self._batch.width - (time.monotonic() - self._phase_began - self._saving_s)
        return left if left > 0 else None  # it takes longer than earlier ones: by how much is not known

    @property
    def _phases(self) -> Sequence[Any]:
        return self._batch.group.setting.phases

    @property
    def _goal(self) -> Goal | None:
        goal = self._phases[self._phase].goal
        return goal if isinstance(goal, Goal) else None  # a user's phase may have a setting of this name

    def _share(self) -> float:
        """Return the share of the batch that is done, its phases taken to be of one length."""
        return (self._phase + self._step / max(self._probes[-1], 1)) / len(self._phases)

    def _overall(self) -> float:
        return (self._number + self._share()) / self._whole

    def _show(self) -> None:
        phase, loss = self._phases[self._phase], self._metrics.get("loss")
        place = f"step {self._step:,} of {self._probes[-1]:,}"
        if (goal := self._goal) and (reached := self._metrics.get(goal.metric)) is not None:
            place = f"{goal.label} = {reached:.3g} of {goal.value:g}"
        state = "" if loss is None else f"loss {loss:.4g}"
        self._reporter.update(
            f"{describe(self._batch)}{phase.name} {place}", self._overall(), state, self.left()
        )

    def _entry(self) -> dict[str, Any]:
        return {
            "time": time.time(),
            "start": self._start_time,
            "batch": self._batch.name,
            "phase": self._phases[self._phase].name,
            "step": self._step,
            "steps": self._probes[-1],
            "share": self._share(),
            "overall": self._overall(),
            **self.spent(),
        }


def forget_peak() -> None:
    """Begin anew, where the system can: from now on, `peak_mib` speaks of what was held since."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def peak_mib() -> float | None:
    """Return the most memory held since the start of the process, or `forget_peak`; None if unknown."""
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)
