"""Help text for the commands, and one-line errors for invalid command lines."""

import dataclasses
import functools
import inspect
import itertools
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tyro.conf import Positional, arg

from jaxattn.core.errors import InputError, similar
from jaxattn.core.settings import meanings
from jaxattn.lab.cli.console import aligned, filled, text_width

Command = Callable[..., int]
Groups = Mapping[str, Mapping[str, Command]]

# Maximum line width: longer lines are hard to read, even on a wide terminal.
WIDEST = 100
HELP = ("-h", "--help")
_ARG = type(arg())


class Option(NamedTuple):
    """One argument of a command, as shown in the help text.

    Attributes:
        usage: name and value, such as "--seeds N|A:B|A,B".
        default: default value as a string, "required", or "" if there is no default to show.
        meaning: help text.
        group: title of the option group; may be empty.
        positional: True for a positional argument.
    """

    usage: str
    default: str
    meaning: str
    group: str
    positional: bool


class _About(NamedTuple):
    """Parsed docstring of a command: summary line, further paragraphs, and examples."""

    summary: str
    details: tuple[str, ...]
    examples: tuple[str, ...]


def options_of(call: Callable[..., Any], group: str = "") -> Iterator[Option]:
    """Yield the arguments of a command, including the fields of its option dataclasses."""
    meaning = meanings(call)
    hints = typing.get_type_hints(call, include_extras=True)
    for parameter in inspect.signature(call).parameters.values():
        hint, *extras = _unpacked(hints[parameter.name])
        config: Any = next((x for x in extras if isinstance(x, _ARG)), arg())
        name = config.name or parameter.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            yield from options_of(typing.cast(Any, hint), name)
            continue
        positional = parameter.kind is parameter.POSITIONAL_ONLY or Positional in extras
        required = parameter.default is inspect.Parameter.empty
        value = config.metavar or _metavar(hint)
        yield Option(
            value if positional else f"--{name} {value}".rstrip(),
            "required" if required else _default(parameter.default),
            str(config.help or meaning.get(parameter.name, "")),
            group,
            positional,
        )


def about(call: Command) -> _About:
    """Parse the docstring of a command."""
    paragraphs = inspect.cleandoc(call.__doc__ or "").partition("\n\nArgs:")[0].split("\n\n")
    examples = [x.removeprefix("Example: ") for x in paragraphs if x.startswith("Example: ")]
    words = [" ".join(x.split()) for x in paragraphs if not x.startswith("Example: ")]
    return _About(words[0], tuple(words[1:]), tuple(examples))


def help_of(words: Sequence[str], groups: Groups) -> str | None:
    """Return the help text requested by the arguments after `jaxattn`, or None if no help is requested.

    Without arguments, return the overview.
    """
    if not words or words[0] in HELP:
        return overview(groups)
    call = {name: call for group in groups.values() for name, call in group.items()}.get(words[0])
    if call is None or not set(HELP) & set(words):
        return None
    return help_of_command(words[0], call)


def overview(groups: Groups) -> str:
    """Return the help text for `jaxattn` itself, with one line per command."""
    options = {"--version": "print the version", "-h, --help": "print this help"}
    sections = {
        title: {name: about(call).summary.rstrip(".") for name, call in group.items()}
        for title, group in groups.items()
    } | {"Options": options}
    width = 2 + max(len(name) for section in sections.values() for name in section)
    return "\n\n".join(
        [
            "Usage: jaxattn COMMAND [OPTIONS]",
            _prose("Run and read experiments on attention with trained embeddings."),
            *(_section(title, section.items(), width) for title, section in sections.items()),
            _prose("`jaxattn COMMAND --help` describes a command, with an example."),
        ]
    )


def help_of_command(name: str, call: Command) -> str:
    """Return the help text for a command: usage, description, an example, and options by group."""
    described, options = about(call), list(options_of(call))
    needed = [_in_usage(one) for one in options if one.positional or one.default == "required"]
    sections: dict[str, list[tuple[str, str]]] = {}
    for one in options:
        title = "Arguments" if one.positional else f"{one.group} options".strip().capitalize()
        default = f" ({one.default})" if one.default == "required" else f" (default: {one.default})"
        shown = default if one.default and not (one.positional and one.default == "required") else ""
        sections.setdefault(title, []).append((one.usage, one.meaning + shown))
    last = "General options" if any(one.group for one in options) else "Options"
    sections.setdefault(last, []).append(("-h, --help", "Print this help."))
    return "\n\n".join(
        [
            _usage(["Usage: jaxattn", name, *needed, "[OPTIONS]"]),
            *map(_prose, (described.summary, *described.details)),
            # Do not wrap examples, so that they can be copied from the terminal.
            "\n".join(["Example:", *(f"  {example}" for example in described.examples)]),
            *(_section(title, section, 24) for title, section in sections.items()),
        ]
    )


def check_words(words: Sequence[str], commands: Mapping[str, Command]) -> None:
    """Raise InputError for an unknown command or option, suggesting the closest valid one."""
    first = words[0]
    # tyro itself handles its shell completion options.
    if first.startswith("--tyro-"):
        return
    if first.startswith("-"):
        near = _nearest(first, ["--version", "--help"])
        raise InputError(f"{first}: unknown option; {near or '`jaxattn --help` lists commands and options'}")
    if first not in commands:
        raise InputError(
            f"{first}: unknown command; {_nearest(first, commands) or '`jaxattn --help` lists the commands'}"
        )
    known = [one.usage.split()[0] for one in options_of(commands[first]) if not one.positional]
    for word in words[1:]:
        name = word.partition("=")[0]
        if len(name) > 2 and name.startswith("--") and name.replace("_", "-") not in known:
            near = _nearest(name, known) or f"`jaxattn {first} --help` lists its options"
            raise InputError(f"{name}: unknown option for {first}; {near}")


def deferred(call: Command) -> Callable[..., Callable[[], int]]:
    """Wrap a command so that calling it only binds the arguments.

    The wrapper has the signature of the command. It returns a function without arguments that runs the
    command.
    """

    @functools.wraps(call)
    def bound(*arguments: Any, **options: Any) -> Callable[[], int]:
        return functools.partial(call, *arguments, **options)

    return bound


def one_line(printed: str, command: str) -> str:
    """Convert tyro's boxed error message to one line.

    The box borders are blank if stdout is not UTF-8. Lines below the first horizontal rule inside the box are
    dropped.
    """

    def is_rule(line: str) -> bool:
        return re.fullmatch(r"[─╰╯-]+", line) is not None

    _, *lines = [line.strip(" │") for line in printed.splitlines()] or [""]
    lines = list(itertools.dropwhile(is_rule, lines))
    message = " ".join(itertools.takewhile(lambda line: not is_rule(line), lines))
    if missing := re.match(r"Missing from jaxattn \S+: ", message):
        # For each missing option, tyro prints its name, its value and its help text, which ends with
        # "(required)".
        options = message[missing.end() :].split("(required)")
        message = f"missing {', '.join(option.split()[0] for option in options if option.strip())}"
    message = " ".join(message.split()).rstrip(".").replace(". Expected", ", expected")
    message = message or "cannot be parsed"
    return f"{command}: {message[0].lower()}{message[1:]}; see `jaxattn {command} --help`"


def _unpacked(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)


def _default(default: Any) -> str:
    return "" if default is None or default == () or default is False else str(default)


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    return {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}.get(hint, "")


def _in_usage(option: Option) -> str:
    return option.usage if option.default == "required" else f"[{option.usage}]"


def _usage(parts: Iterable[str]) -> str:
    width, lines = _width(), [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return "\n".join(lines)


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> str:
    return "\n".join([f"{title}:", *aligned(rows, width, _width())])


def _prose(text: str) -> str:
    return filled(text, _width())


def _width() -> int:
    return min(text_width() or WIDEST, WIDEST)


def _nearest(given: str, known: Iterable[str]) -> str:
    # Strip leading dashes, because shared dashes would make all options look similar.
    plain = {name.lstrip("-"): name for name in known}
    given = given.lstrip("-").replace("_", "-")
    starting = [name for name in plain if given and name.startswith(given)]
    near = starting[0] if len(starting) == 1 else similar(given, plain)
    return f"did you mean {plain[near]}?" if near else ""
