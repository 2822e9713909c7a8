"""Command-line interface: parse the arguments, run the command and report errors."""

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
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
    from jaxattn.lab.cli.console import print_error, print_line

    code = 0
    try:
        # These imports raise InputError on systems that are not POSIX.
        from jaxattn.lab.cli import usage
        from jaxattn.lab.cli.options import check_once
        from jaxattn.lab.storage.copies import naming

        if (text := usage.help_of(words, command_groups())) is not None:
            print_line(text)
        else:
            usage.check_words(words, commands())
            check_once(words)
            with naming():
                code = parse_command(words)()
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


def command_groups() -> dict[str, dict[str, Callable[..., int]]]:
    """Return the commands by name, grouped under the headings used in the help text.

    A function's arguments become the options of its command, and its docstring becomes the help text.
    """
    from jaxattn.lab.cli import machine, refutation, results, studies

    return {
        "Run studies": {
            "run": studies.run,
            "plan": studies.plan,
            "launch": studies.launch,
            "data": studies.data,
            "schema": studies.schema,
            "doctor": machine.doctor,
        },
        "Read results": {
            "status": studies.status,
            "aggregate": results.aggregate,
            "report": results.report,
            "prune": studies.prune,
        },
        "Papers and claims": {
            "reproduce": results.reproduce,
            "claims": results.claims,
            "refute": refutation.refute,
            "diagnose": results.diagnose,
            "heads": results.heads,
        },
    }


def commands() -> dict[str, Callable[..., int]]:
    """Return all commands by name."""
    return {name: call for group in command_groups().values() for name, call in group.items()}


def parse_command(words: Sequence[str]) -> Callable[[], int]:
    """Parse the arguments after `jaxattn`; return a function that runs the command.

    That function returns the exit status.

    Raises:
        InputError: an argument is missing, unknown, or has an invalid value.
    """
    import tyro

    from jaxattn.core.errors import InputError
    from jaxattn.lab.cli import usage

    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            called: Callable[[], int] = tyro.extras.subcommand_cli_from_dict(
                {name: usage.deferred(call) for name, call in commands().items()},
                prog="jaxattn",
                args=words,
                use_underscores=False,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        raise InputError(usage.one_line(printed.getvalue(), words[0])) from None
    # Forward any warnings that tyro printed.
    sys.stderr.write(printed.getvalue())
    return called


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
