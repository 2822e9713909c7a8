"""The command line: parse, call, print."""

import gc
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any

# Tracing makes many small objects that live on: to look through all of them for circles, as often as Python
# does by default, takes a fifth of the time of tracing.
RARELY = 50_000, 20, 20


def main() -> None:
    """Run the command line and exit with its status: 0 done, 1 failed while running, 2 wrong input.

    SIGINT is status 130 and one line, from the first import on.
    """
    gc.set_threshold(*RARELY)
    _open_streams()
    # Figures are saved and never shown, so a window toolkit that is missing cannot stop them.
    os.environ["MPLBACKEND"] = "agg"
    with suppress(ValueError):  # not the main thread
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _stop)
    if sys.argv[1:] == ["--version"]:
        from jaxattn.lab.storage import provenance

        print(f"jaxattn {provenance.version('jaxattn')}")
        return
    import tyro

    from jaxattn.core.errors import InputError, RunError
    from jaxattn.lab.cli.console import complain

    code: int
    try:
        # They raise where the system has no file locks.
        from jaxattn.lab.cli.options import check_moved, check_once
        from jaxattn.lab.storage.bucket import naming

        check_moved(sys.argv[1:])
        check_once(sys.argv[1:])
        with naming():
            code = tyro.extras.subcommand_cli_from_dict(
                commands(),
                prog="jaxattn",
                description="Experiments on attention with trained embeddings. --version says which one "
                "this is.",
                use_underscores=False,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
        sys.stdout.flush()
    except InputError as error:
        code = complain(error, 2)
    except RunError as error:
        code = complain(error, 1)
    except OSError as error:
        # What is left of the output must not be written once more when Python ends.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = f"{error.filename or 'standard output'}: {error.strerror or error}; mend this and repeat"
        code = 1 if isinstance(error, BrokenPipeError) else complain(RunError(reason), 1)
    sys.exit(code)


def commands() -> dict[str, Any]:
    """List the commands by name, each a function whose arguments are its options."""
    from jaxattn.lab.cli import machine, results, studies

    return {
        "run": studies.run,
        "plan": studies.plan,
        "launch": studies.launch,
        "claims": results.claims,
        "reproduce": results.reproduce,
        "data": studies.data,
        "diagnose": results.diagnose,
        "aggregate": results.aggregate,
        "report": results.report,
        "status": studies.status,
        "schema": studies.schema,
        "doctor": machine.doctor,
    }


def _open_streams() -> None:
    """Let printing succeed on any console: a finished run must not fail because its results cannot be shown.

    Characters that the encoding lacks are replaced. Without stdout or stderr, what is printed is dropped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It takes this number, the lowest that is free; else a file of the results would.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  for the whole process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _stop(number: int, frame: Any) -> None:
    """End at once: what counts on disk is whole at any moment, and imports take no exception well."""
    with suppress(Exception):
        sys.stdout.flush()
    shown = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
    os.write(2, f"{shown}stopped; nothing is lost, continue with the same command\n".encode())
    os._exit(130)
