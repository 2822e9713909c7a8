"""Settings of one thing: what a sweep file may say of it, and what its code says that they mean."""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import msgspec

T = TypeVar("T")

# Sizes and places are 32-bit integers in every program.
MOST = 2**31 - 1
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
HalfShare = Annotated[float, msgspec.Meta(ge=0, le=0.5)]
Names = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

STATIC = "static"
# Marks a float that Python code decides by: cells that differ in it are programs of their own.
Static = Annotated[T, STATIC]


@runtime_checkable
class Places(Protocol):
    """Where names in a sweep file point."""

    def load(self, name: str) -> Any:
        """Import what an import path names."""

    def path(self, text: str) -> Path:
        """Find a file, relative to the sweep file's folder."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings classes: frozen, with the annotated fields as settings.

    Attributes:
        may_be_settings: attributes with a default that a subclass may make a setting.
        takes_further: name of a setting that takes in all unknown ones, such as options of an optimiser.
        made_of: the user's function that it is made of, and
        kind: its import path, as the study names it.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset()
    takes_further: ClassVar[str | None] = None
    made_of: ClassVar[Callable[..., Any] | None] = None
    kind: ClassVar[str] = ""

    def located(self, names: Places) -> Self:
        """Return it with code imported and files found that settings name."""
        return self

    def check(self, *context: Any) -> None:
        """Raise InputError, naming the setting and the remedy, if these settings do not fit together."""


class Named(NamedTuple):
    """Code that a setting names by its import path.

    Attributes:
        name: the path, as in the sweep file.
        target: what it means.
    """

    name: str
    target: Callable[..., Any]

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Call it."""
        return self.target(*arguments, **settings)


def class_name(label: Any) -> str:
    """Return the name of a class that has none of its own: its raw label, or several of them."""
    return "+".join(map(str, label)) if isinstance(label, list | tuple) else str(label)


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
    from docstring_parser import DocstringStyle, parse  # which runs do not need

    found: dict[str, str] = {}
    for each in reversed(target.__mro__ if isinstance(target, type) else [target]):
        for said in parse(each.__doc__ or "", style=DocstringStyle.GOOGLE).params:
            words = " ".join((said.description or "").split())
            found |= dict.fromkeys(said.arg_name.split(", "), words)
    return found


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
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
