"""Find uses of this package's private names in custom code."""

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from jaxattn.core.errors import InputError

# Public modules that are not listed in any package's `__all__`.
_FURTHER = (
    "jaxattn.lab.diagnosis",
    "jaxattn.lab.heads",
    "jaxattn.lab.books",
    "jaxattn.lab.refute",
    "jaxattn.lab.results",
    "jaxattn.models.starts",
)
# Non-public modules that measures may use, with descriptions of their contents.
FOR_MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "jaxattn.lab.books.metrics": "names of cells, for a measure that adds a row to a built-in measure",
        "jaxattn.lab.results.fits": "exponents of power laws, seed by seed",
        "jaxattn.lab.results.intervals": "the interval of a share",
        "jaxattn.lab.results.judge": "estimates with intervals, which a `Finding` holds",
        "jaxattn.lab.results.statistics": "the last step of every run",
        "jaxattn.lab.results.style": "the style and colours of the package's figures",
    }
)


@cache
def public_modules() -> tuple[str, ...]:
    """Return the names of this package's public modules."""
    top = [x.__name__ for x in public_names("jaxattn").values() if inspect.ismodule(x)]
    packages = ["jaxattn", *top, *_FURTHER]
    below = [x.__name__ for name in packages for x in public_names(name).values() if inspect.ismodule(x)]
    return tuple(dict.fromkeys([*packages, *below]))


def public_names(module: str) -> dict[str, Any]:
    """Return the public objects in a module, keyed by name."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, x in vars(found).items()
        if (inspect.isclass(x) or inspect.isroutine(x)) and x.__module__ == module
    ]
    return {name: getattr(found, name) for name in names if not name.startswith("_")}


def used_names(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, attributes) for each use of this package in a Python file."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: {error.msg}") from None
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "jaxattn":
            yield from ((node.module or "", [alias.name]) for alias in node.names)
        elif isinstance(node, ast.Import):
            own = [alias for alias in node.names if alias.name.partition(".")[0] == "jaxattn"]
            roots |= {alias.asname or "jaxattn" for alias in own}
            yield from (("jaxattn", alias.name.split(".")[1:]) for alias in own)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *names = ast.unparse(node).split(".")
            if root in roots:
                yield "jaxattn", names


def private_module(module: str, names: Sequence[str]) -> str | None:
    """Return the first private module along an attribute path, or None if all modules are public."""
    for name in names:
        whole = f"{module}.{name}"
        # Attribute access through a parent package of a public module, such as jaxattn.lab, is also allowed.
        if any(f"{public}.".startswith(f"{whole}.") for public in public_modules()):
            module = whole
            continue
        if module not in public_modules() or name not in public_names(module):
            return whole if whole in FOR_MEASURES else module
        found = getattr(importlib.import_module(module), name)
        if not isinstance(found, ModuleType):
            return None
        module = found.__name__
    return None


def private_uses(path: Path) -> list[str]:
    """Return the private names of this package that a Python file uses.

    A name is public if it is in the `__all__` of a public module. The modules in `FOR_MEASURES` are also
    allowed.
    """
    found = []
    for module, names in used_names(path):
        where = private_module(module, names)
        if where in FOR_MEASURES and not any(name.startswith("_") for name in names):
            continue
        if where is not None:
            found.append(".".join([module, *names]))
    return list(dict.fromkeys(found))
