"""The page of commands and their options, from the signatures and docstrings of the commands."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tyro.conf import Positional, arg

from jaxattn.core.settings import markdown_table, meanings
from jaxattn.lab.cli.commands import commands

_ARG = type(arg())

LINE = """# Command line

`jaxattn` lists the commands, `jaxattn COMMAND --help` prints the section of this page for a command, and
`jaxattn --version` prints the version. `python -m jaxattn` is equivalent to `jaxattn`. The exit status of a
command is 0 for success, 1 if the command fails, 2 if the input is invalid, and 130 if the command is
stopped. An error is one line on standard error with the location and the remedy, except that errors in the
options of a command are printed in a box. Errors of custom code add a traceback."""

COMMON = "Each command lists the common options that it accepts."


def command_line() -> str:
    """Return the page of all commands with their options."""
    known = commands()
    tables = {name: [_option(one) for one in options_of(call)] for name, call in known.items()}
    every = [row for rows in tables.values() for row in rows if row[0].startswith("`--")]
    # An option of several commands is documented once, if it has the same default and meaning in each.
    common = [row for row in {row[0]: row for row in every}.values() if every.count(row) >= 3]
    parts = [LINE, "## Common options", COMMON, _option_table(common)]
    parts += [_command(name, call, tables[name], common) for name, call in known.items()]
    return "\n\n".join(parts) + "\n"


def _command(name: str, call: Callable[..., int], rows: list[list[str]], common: list[list[str]]) -> str:
    said = about(call)
    shown = "\n".join(["```text", *said.examples, "```"])
    parts = [f"## jaxattn {name}", "\n".join([said.summary, *said.details]), shown]
    own = [row for row in rows if row not in common]
    if own:
        parts.append(_option_table(own))
    if shared := [f"{row[0].split()[0].rstrip('`')}`" for row in rows if row in common]:
        parts.append(f"Common options: {', '.join(shared)}.")
    return "\n\n".join(parts)


def _option(one: Any) -> list[str]:
    default = one.default if one.default in ("", "required") else f"`{one.default}`"
    return [f"`{one.usage}`", default, one.meaning]


def _option_table(rows: list[list[str]]) -> str:
    return markdown_table(["option", "default", "meaning"], rows)


class Option(NamedTuple):
    """One argument of a command, as shown on the page.

    Attributes:
        usage: name and value, such as "--seeds N|A:B|A,B".
        default: default value as a string, "required", or "" if there is no default to show.
        meaning: help text.
        positional: True for a positional argument.
    """

    usage: str
    default: str
    meaning: str
    positional: bool


class _About(NamedTuple):
    """Parsed docstring of a command: summary line, further paragraphs, and examples."""

    summary: str
    details: tuple[str, ...]
    examples: tuple[str, ...]


def options_of(call: Callable[..., Any]) -> Iterator[Option]:
    """Yield the arguments of a command, including the fields of its option dataclasses."""
    meaning = meanings(call)
    hints = typing.get_type_hints(call, include_extras=True)
    for parameter in inspect.signature(call).parameters.values():
        hint, *extras = _unpacked(hints[parameter.name])
        config: Any = next((x for x in extras if isinstance(x, _ARG)), arg())
        name = config.name or parameter.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            yield from options_of(typing.cast(Any, hint))
            continue
        positional = parameter.kind is parameter.POSITIONAL_ONLY or Positional in extras
        required = parameter.default is inspect.Parameter.empty
        value = config.metavar or _metavar(hint)
        yield Option(
            value if positional else f"--{name} {value}".rstrip(),
            "required" if required else _default(parameter.default),
            str(config.help or meaning.get(parameter.name, "")),
            positional,
        )


def about(call: Callable[..., int]) -> _About:
    """Parse the docstring of a command."""
    paragraphs = inspect.cleandoc(call.__doc__ or "").partition("\n\nArgs:")[0].split("\n\n")
    examples = [x.removeprefix("Example: ") for x in paragraphs if x.startswith("Example: ")]
    words = [" ".join(x.split()) for x in paragraphs if not x.startswith("Example: ")]
    return _About(words[0], tuple(words[1:]), tuple(examples))


def _unpacked(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)


def _default(default: Any) -> str:
    return "" if default is None or default == () or default is False else str(default)


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    return {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}.get(hint, "")
