"""Commands by name, their overview, and the parser of their arguments."""

import functools
import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxattn.core.errors import InputError, similar
from jaxattn.core.settings import summary_line
from jaxattn.lab.cli.console import filled, print_aligned, print_line, print_wrapped

# Options that may be repeated.
_APPENDED = ("--set", "--axis", "--option", "--where")
_USAGE = "usage: jaxattn COMMAND [OPTIONS]"


def command_groups() -> dict[str, dict[str, Callable[..., int]]]:
    """Return the commands by name, grouped under the headings used in the overview.

    A function's arguments become the options of its command, and its docstring becomes the help text.
    """
    from jaxattn.lab.cli import doctor, refutation, results, studies

    return {
        "Run studies": {
            "run": studies.run,
            "plan": studies.plan,
            "launch": studies.launch,
            "data": studies.data,
            "schema": studies.schema,
            "doctor": doctor.doctor,
        },
        "Read results": {
            "status": studies.status,
            "aggregate": results.aggregate,
            "report": results.report,
            "prune": studies.prune,
        },
        "Papers and claims": {
            "reproduce": results.reproduce,
            "refute": refutation.refute,
            "diagnose": results.diagnose,
        },
    }


def commands() -> dict[str, Callable[..., int]]:
    """Return all commands by name."""
    return {name: call for group in command_groups().values() for name, call in group.items()}


def print_overview() -> None:
    """Print the help text of `jaxattn` itself, with one line per command."""
    print_line(_USAGE)
    print_line()
    print_wrapped("Run and read experiments on attention with trained embeddings.")
    for title, group in command_groups().items():
        print_line(f"\n{title}:")
        print_aligned((name, summary_line(call).rstrip(".")) for name, call in group.items())
    print_line("\nOptions:")
    print_aligned([("--version", "print the version"), ("-h, --help", "print this help")])
    print_line()
    print_wrapped("`jaxattn COMMAND --help` describes a command, with an example.")


def parse(words: Sequence[str]) -> Callable[[], int]:
    """Parse the arguments after `jaxattn`; return a function that runs the command.

    That function returns the exit status. tyro prints the help text of a command and errors in its options,
    and exits.

    Raises:
        InputError: the command is unknown, or an option is given twice.
        SystemExit: tyro printed a help text (status 0) or an error (status 2).
    """
    import tyro

    name, *rest = words
    known = commands()
    config = (tyro.conf.FlagCreatePairsOff,)
    if name.startswith("--tyro-"):  # shell completion, which needs all commands
        tyro.extras.subcommand_cli_from_dict(known, prog="jaxattn", args=words, config=config)
    if name.startswith("-"):
        raise InputError(f"{name}: unknown option; {_suggestion(name, ('--version', '--help'))}")
    if name not in known:
        raise InputError(f"{name}: unknown command; {_suggestion(name, known)}")
    check_once(rest)
    call: Callable[[], int] = tyro.cli(
        _deferred(known[name]),
        prog=f"jaxattn {name}",
        description=_description(known[name]),
        args=rest,
        use_underscores=False,
        config=config,
    )
    return call


def _deferred(call: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Wrap a command, so that calling it only binds the arguments.

    Exceptions of the command are then not taken for errors in its arguments.
    """

    @functools.wraps(call)
    def bound(*arguments: Any, **options: Any) -> Callable[[], int]:
        return functools.partial(call, *arguments, **options)

    return bound


def _description(call: Callable[..., int]) -> str:
    """Return the docstring of a command without its arguments, wrapped to the terminal width."""
    text = inspect.cleandoc(call.__doc__ or "").partition("\n\nArgs:")[0]
    summary, *others = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    width = shutil.get_terminal_size().columns - 2
    # Do not wrap examples, so that they can be copied from the terminal.
    wrapped = (x if x.startswith("Example: ") else filled(x, width) for x in others)
    # tyro joins lines that are not indented.
    return "\n".join([summary, *(textwrap.indent(x, "  ") for x in wrapped)])


def check_once(words: Sequence[str]) -> None:
    """Raise InputError if an option is given twice, because only its last value would be used."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and name not in _APPENDED:
            raise InputError(f"{name}: given {names.count(name)} times; use it only once, with all values")


def _suggestion(given: str, known: Iterable[str]) -> str:
    starting = [name for name in known if name.startswith(given)]
    near = starting[0] if len(starting) == 1 else similar(given, known)
    return f"did you mean {near}?" if near else "`jaxattn --help` lists the commands"
