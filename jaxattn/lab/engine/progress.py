"""Progress display for a run: a bar on a terminal, a line in a notebook, plain lines in a pipe."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from jaxattn.core.errors import plain
from jaxattn.lab.results.labels import duration


class Reporter:
    """Progress reporter that prints to stderr, because stdout is reserved for results."""

    def __init__(self, quiet: bool = False) -> None:
        """Create a reporter. If `quiet` is True, the reporter prints only warnings and errors."""
        self.quiet = quiet
        self.console: Console = _Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar: bars.Progress | None = None
        self._task: Any = None
        self._line = None if quiet else _notebook_line()
        self._last_line = 0.0
        self._loading = "", 0.0

    def __enter__(self) -> "Reporter":
        """Start the progress bar if stderr is a terminal."""
        if self.console.is_terminal and not self.quiet and sys.stderr.isatty():
            self._bar = bars.Progress(
                bars.TextColumn("{task.description}", markup=False),
                bars.BarColumn(bar_width=30),
                bars.TaskProgressColumn("{task.percentage:5.1f} %"),
                bars.TextColumn("{task.fields[state]}", markup=False),
                bars.TimeElapsedColumn(),
                _Left(),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None, state="", end=None)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the progress bar, or the progress line in a notebook."""
        self._show("")
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(
        self, description: str, fraction: float | None = None, state: str = "", remaining: float | None = None
    ) -> None:
        """Show progress.

        Args:
            description: current operation.
            fraction: fraction of the work completed; None if unknown.
            state: additional information, such as the loss.
            remaining: time left in seconds; None if unknown.
        """
        description, state = plain(description), plain(state)
        if self._bar is not None:
            end = None if remaining is None else time.monotonic() + remaining
            # If the total is unknown, show an indeterminate bar.
            self._bar.tasks[0].total = None if fraction is None else 1.0
            known: dict[str, Any] = {"description": description, "state": state, "end": end}
            self._bar.update(self._task, completed=fraction or 0.0, **known)
        elif (now := time.monotonic()) - self._last_line > (0.5 if self._line else 10):
            self._last_line = now
            percent = "" if fraction is None else f"{100 * fraction:5.1f} %"
            eta = "" if remaining is None else f"{duration(remaining)} left"
            line = f"{percent:7}  {description}  {', '.join(filter(None, (state, eta)))}".rstrip()
            if not self._show(line):
                self.note(line)

    def loading(self, description: str, done: int, total: int | None) -> None:
        """Show the progress of loading data.

        On a terminal, update the bar. Otherwise, print one line at the end if loading took over a second.
        `total` is None if it is unknown; if it is 0, `description` is printed as a note.
        """
        if total == 0:
            self.note(description)
            return
        amount, now = f"{done:,}" + (f" of {total:,}" if total else ""), time.monotonic()
        if done == 0 or description != self._loading[0]:
            self._loading = description, now
        if self._bar is not None:
            self.update(f"{description} {amount}")
        elif total is not None and done >= total and now - self._loading[1] > 1:
            self.note(f"{description}: {amount}")

    def note(self, line: str) -> None:
        """Print a line, unless the reporter is quiet."""
        if not self.quiet:
            self.warn(line)

    def warn(self, line: str) -> None:
        """Print a line, even if the reporter is quiet. Errors when writing to stderr are ignored."""
        with suppress(OSError, ValueError):
            self.console.print(plain(line), markup=False)

    def _show(self, line: str) -> bool:
        if self._line is not None:
            self._line.update({"text/plain": line}, raw=True)
        return self._line is not None

    def trace(self, location: str, error: str, trace: str) -> None:
        """Print an error in user code with its traceback, even if the reporter is quiet."""
        self.warn(f"jaxattn: {location}: {error}")
        for line in trace.splitlines():
            self.warn(line.expandtabs())


def delayed(progress: Callable[[str, float], None], seconds: float = 2.0) -> Callable[[str, float], None]:
    """Wrap a progress callback so that calls during the first `seconds` seconds are ignored."""
    begin = time.monotonic()

    def report(what: str, fraction: float) -> None:
        if time.monotonic() - begin > seconds:
            progress(what, fraction)

    return report


class _Console(Console):
    """Rich console that raises BrokenPipeError instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise


class _Left(bars.ProgressColumn):
    def render(self, task: bars.Task) -> Text:
        end = task.fields["end"]
        remaining = 0.0 if end is None else end - time.monotonic()
        return Text(f"{duration(remaining)} left" if remaining > 0 else "")


def _notebook_line() -> Any:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)
