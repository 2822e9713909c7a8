"""What settings mean, from the docstrings of the classes and functions that have them."""

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec
from docstring_parser import DocstringStyle, parse


def first_line(target: Any) -> str:
    """Return the first line of what a class or function says of itself."""
    return (inspect.getdoc(target) or "").partition("\n")[0]


def meanings(target: Any) -> dict[str, str]:
    """Say what each setting of a class or function means.

    Args:
        target: a class, of whose bases the settings are too, or a function.

    Returns:
        The words of its docstrings by name, in one line each; those of a class before those of its bases.
    """
    found: dict[str, str] = {}
    for each in reversed(target.__mro__ if isinstance(target, type) else [target]):
        for said in parse(each.__doc__ or "", style=DocstringStyle.GOOGLE).params:
            words = " ".join((said.description or "").split())
            found |= dict.fromkeys(said.arg_name.split(", "), words)
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table in Markdown."""
    # A bar would end the cell.
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    first, *others = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([first, "|" + "---|" * len(lines[0]), *others])


def written(default: Any) -> str:
    """Write the default of a setting for a table."""
    if default is msgspec.NODEFAULT:
        return "required"
    return "none" if default is None else f"`{msgspec.json.encode(default).decode()}`"
