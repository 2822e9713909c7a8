"""Progress of a run on the host: a bar on a terminal, a line in a notebook, plain lines when piped."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jaxattn.errors import UserCodeError


class Pace:
    """Tells how long the rest of some work takes, from how long its steps took so far.

    The first step of a part is left out: it holds what is done once, such as compiling.
    """

    def __init__(self) -> None:
        """Begin with nothing timed."""
        self._begun: set[str] = set()
        self._seconds = self._timed = self._at = self._fraction = 0.0

    def left(self, part: str, fraction: float, now: float) -> float | None:
        """Take note of a step.

        Args:
            part: what it belongs to.
            fraction: share of the work done after it; less than before is another work.
            now: when that is, in seconds.

        Returns:
            Seconds, time / share timed * share left; None before a step was timed.
        """
        if fraction < self._fraction:
            self._begun, self._seconds, self._timed = set(), 0.0, 0.0
        elif fraction > self._fraction and part in self._begun:
            self._seconds += now - self._at
            self._timed += fraction - self._fraction
        self._begun.add(part)
        self._at, self._fraction = now, fraction
        return self._seconds / self._timed * (1 - fraction) if self._timed else None


class Reporter:
    """Tells how far a run is. Everything goes to stderr, so that stdout holds results only."""

    def __init__(self, quiet: bool = False):
        """Report to stderr; nothing but errors and damage if quiet."""
        self.quiet = quiet
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar: Progress | None = None
        self._task: Any = None
        self._line = None if quiet else _notebook_line()
        self._last_line = 0.0
        self._pace = Pace()

    def __enter__(self) -> "Reporter":
        """Open the bar on a terminal."""
        if self.console.is_terminal and not self.quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TextColumn("{task.percentage:5.1f} %"),
                TextColumn("{task.fields[state]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("{task.fields[eta]}"),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0, state="", eta="")
        return self

    def __exit__(self, *_: object) -> None:
        """Close the bar; a notebook keeps no line of it."""
        self._show("")
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, description: str, fraction: float, state: str = "", part: str = "") -> None:
        """Show how far the work is.

        Args:
            description: what is being done.
            fraction: share of the work that is done.
            state: of the work (the loss).
            part: what is being done, as `Pace` wants it.
        """
        now = time.monotonic()
        left = self._pace.left(part, fraction, now)
        eta = f"ETA {left:.0f} s" if left else ""
        if self._bar is not None:
            self._bar.update(self._task, description=description, completed=fraction, state=state, eta=eta)
        elif now - self._last_line > (0.5 if self._line else 10):
            self._last_line = now
            known = ", ".join(filter(None, (state, eta)))
            line = f"{100 * fraction:5.1f} %  {description}  {known}".rstrip()
            if not self._show(line):
                self.note(line)

    def loading(self, description: str, done: int, total: int | None) -> None:
        """Show how far the reading of data is."""
        if total == 0:
            self.note(description)
            return
        amount = f"{done:,}" + (f" of {total:,}" if total else "")
        if self._bar is not None:
            self.update(f"{description} {amount}", 0.0)
        elif total is not None and done >= total:
            self.note(f"{description}: {amount}")

    def note(self, line: str) -> None:
        """Print one line, nothing if quiet."""
        if not self.quiet:
            self.warn(line)

    def warn(self, line: str) -> None:
        """Print one line, also if quiet."""
        self.console.print(line, markup=False)

    def _show(self, line: str) -> bool:
        """Overwrite the line of a notebook; tell whether there is one."""
        if self._line is not None:
            self._line.update({"text/plain": line}, raw=True)
        return self._line is not None

    def trace(self, place: str, error: UserCodeError) -> None:
        """Print where code of the user's failed, and its own traceback, also if quiet."""
        print(f"jaxattn: {place}: {error}\n{error.trace}", file=sys.stderr)


def _notebook_line() -> Any:
    """Make a line that can be overwritten, None outside of notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)
