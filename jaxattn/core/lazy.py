"""Lazy imports of a package's public names, because importing JAX and the whole package takes seconds.

Type checkers read the same imports from the `if TYPE_CHECKING` block.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    package: str, names: Mapping[str, str], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` for a package.

    Args:
        package: full name of the package.
        names: for each public name, the module that defines it.
        modules: for each public module, its full name.
    """

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(modules[name])
        if name in names:
            return getattr(importlib.import_module(names[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted([*names, *modules])
