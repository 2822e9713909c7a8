"""Type annotations for settings, and descriptions parsed from docstrings."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec

_T = TypeVar("_T")

# All programs use 32-bit integers for sizes and indices.
MAX_INT = 2**31 - 1
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
HalfFraction = Annotated[float, msgspec.Meta(ge=0, le=0.5)]
Names = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

STATIC = "static"
# A float on which Python control flow depends, so that each value requires a separately compiled program.
# Other floats may be traced; a function that accepts both annotates them as `float | jax.Array`.
Static = Annotated[_T, STATIC]
FILE = "file"
# Path relative to the folder of the sweep file. A suffix after a colon, as in FILE:KEY, is preserved.
FilePath = Annotated[str, FILE]
IMPORT_PATH = "import path"
# A built-in name, or the import path of a function. Import paths are converted to `Named`.
ImportPath = Annotated[Any, IMPORT_PATH]
# Functions by name, each given as in `ImportPath`.
ImportPaths = dict[str, ImportPath]


def has_mark(annotation: Any, mark: str) -> bool:
    """Return whether a type annotation, or any component of it, contains a marker such as `STATIC`."""
    if mark in getattr(annotation, "__metadata__", ()):
        return True
    return any(has_mark(part, mark) for part in get_args(annotation) if not isinstance(part, str))


class Named(NamedTuple):
    """Imported object that a setting refers to, together with its import path.

    Attributes:
        name: the import path, as written in the sweep file.
        target: the imported object.
    """

    name: str
    target: Callable[..., Any]

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Call the imported object."""
        return self.target(*arguments, **settings)


def class_name(label: Any) -> str:
    """Return the default name of a class with one raw label, or with several, which are joined by "+"."""
    return "+".join(map(str, label)) if isinstance(label, list | tuple) else str(label)


def summary_line(target: Any) -> str:
    """Return the first line of the docstring of a class or function."""
    return (inspect.getdoc(target) or "").partition("\n")[0]


def meanings(target: Any) -> dict[str, str]:
    """Return one-line descriptions of the settings, parsed from the docstring of a class or function.

    Descriptions in a class take precedence over those in its base classes.
    """
    from docstring_parser import DocstringStyle, parse  # slow to import, and not needed during runs

    found: dict[str, str] = {}
    for each in reversed(target.__mro__ if isinstance(target, type) else [target]):
        for parameter in parse(each.__doc__ or "", style=DocstringStyle.GOOGLE).params:
            meaning = " ".join((parameter.description or "").split())
            found |= dict.fromkeys(parameter.arg_name.split(", "), meaning)
    return found


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table with the given heading and rows."""
    # An unescaped vertical bar would end the table cell.
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    first, *others = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([first, "|" + "---|" * len(lines[0]), *others])


def written(default: Any) -> str:
    """Format the default value of a setting for display in a table."""
    if default is msgspec.NODEFAULT:
        return "required"
    return "none" if default is None else f"`{msgspec.json.encode(default).decode()}`"
