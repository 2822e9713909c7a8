"""Parameters by name, whatever frozen pytree holds them: a dataclass, a NamedTuple or a dict."""

import dataclasses
from typing import Any, TypeVar

from jaxattn.core.errors import InputError

# A field of a pytree: an array, or whatever a tree transformation puts in an array's place. The shapes
# stand in the docstrings of the classes and are checked where functions take the arrays.
Leaf = Any

P = TypeVar("P")


def names(params: Any) -> tuple[str, ...]:
    """List the names of parameters, in their order; static fields of a dataclass are none.

    Raises:
        InputError: something else than a dataclass, a NamedTuple or a dict.
    """
    if isinstance(params, dict):
        return tuple(params)
    if hasattr(params, "_fields"):
        return tuple(params._fields)
    if not dataclasses.is_dataclass(params):
        raise InputError(
            f"parameters: a {type(params).__name__} has no names; make it a dataclass, a NamedTuple or a dict"
        )
    fields = dataclasses.fields(params)
    return tuple(
        x.name for x in fields if x.metadata.get("pytree_node", True) and not x.metadata.get("static", False)
    )


def get(params: Any, name: str) -> Any:
    """Look a parameter up by its name.

    Raises:
        InputError: there is none of this name.
    """
    if name not in (known := names(params)):
        raise InputError(f"{name}: not a parameter of the model; it has {', '.join(known)}")
    return params[name] if isinstance(params, dict) else getattr(params, name)


def replaced(params: P, **changes: Any) -> P:
    """Copy parameters with some of them replaced.

    Raises:
        InputError: there is no parameter of this name.
    """
    for name in changes:
        get(params, name)
    if isinstance(params, dict):
        return {**params, **changes}  # type: ignore[return-value]
    if hasattr(params, "_replace"):
        return params._replace(**changes)
    return dataclasses.replace(params, **changes)  # type: ignore[type-var]
