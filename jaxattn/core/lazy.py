"""Names of a package that are imported on first use.

Importing JAX and all of the package takes seconds. A package that lists its public names here imports a
module only when one of its names is asked for. Type checkers read the same imports below `if TYPE_CHECKING`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from jaxattn.core.moved import hint


def lazy(
    package: str, names: Mapping[str, str], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    Args:
        package: the full name of the package.
        names: the module that defines each public name.
        modules: the full name of each public module.

    Returns:
        Functions to be assigned to these names in the package's `__init__`.
    """

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(modules[name])
        if name in names:
            return getattr(importlib.import_module(names[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint(package, name)}")

    return find, lambda: sorted([*names, *modules])
