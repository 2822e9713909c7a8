"""Command-line interface: parse the arguments, run the command and report errors."""

import gc
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any

# Tracing allocates many small, long-lived objects. With Python's default thresholds, garbage collection would
# take a fifth of the tracing time.
RARELY = 50_000, 20, 20


def main() -> None:
    """Run the command in `sys.argv` and exit.

    The exit status is 0 for success, 1 for a failed run, and 2 for invalid input. On SIGINT, one line is
    printed and the exit status is 130, even during imports.
    """
    gc.set_threshold(*RARELY)
    _open_streams()
    # Figures are saved but never displayed, so no GUI toolkit is needed.
    os.environ["MPLBACKEND"] = "agg"
    with suppress(ValueError):  # not called from the main thread
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _stop)
    words = sys.argv[1:]
    if words[:1] == ["--version"]:
        from jaxattn.lab.storage import provenance

        print(f"jaxattn {provenance.version('jaxattn')}")
        return
    from jaxattn.core.errors import InputError, RunError
    from jaxattn.lab.cli.console import print_error

    code = 0
    try:
        # These imports raise InputError on systems that are not POSIX.
        from jaxattn.lab.cli.commands import parse, print_overview
        from jaxattn.lab.storage.copies import naming

        if words[:1] in ([], ["-h"], ["--help"]):
            print_overview()
        else:
            with naming():
                code = parse(words)()
        sys.stdout.flush()
    except InputError as error:
        code = print_error(error, 2)
    except RunError as error:
        code = print_error(error, 1)
    except OSError as error:
        # Prevent Python from trying to flush the output buffer again at exit.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = f"{error.filename or 'standard output'}: {error.strerror or error}; fix this and try again"
        code = 1 if isinstance(error, BrokenPipeError) else print_error(RunError(reason), 1)
    sys.exit(code)


def _open_streams() -> None:
    """Prepare stdout and stderr so that a printing error cannot cause a finished run to fail."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # This file descriptor is closed. Point it at the null device; otherwise the next file opened,
            # such as a results file, would reuse it.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  for the whole process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _stop(number: int, frame: Any) -> None:
    """Exit immediately when a signal arrives.

    This is safe because files on disk are always complete. Raising an exception instead would not be safe
    during an import.
    """
    with suppress(Exception):
        sys.stdout.flush()
    shown = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
    kept = "finished batches and saved states are kept; the same command resumes the run"
    os.write(2, f"{shown}stopped at once; {kept}\n".encode())
    os._exit(130)
