"""Access to parameters by name in any kind of frozen pytree, and short printed forms of dataclasses."""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from jaxattn.core.errors import InputError, shown

# A field of a pytree: an array, or the object that a tree transformation substitutes for an array. Docstrings
# of the classes give the shapes, and functions that take the arrays check them.
Leaf = Any

P = TypeVar("P")


def names(params: Any) -> tuple[str, ...]:
    """Return the names of parameters, in order, without the static fields of a dataclass.

    Raises:
        InputError: the parameters are not a dataclass, a NamedTuple or a dict.
    """
    if isinstance(params, dict):
        return tuple(params)
    if hasattr(params, "_fields"):
        return tuple(params._fields)
    if not dataclasses.is_dataclass(params):
        kind = f"an array {shown(params)}" if hasattr(params, "dtype") else f"a {type(params).__name__}"
        raise InputError(
            f"parameters: {kind} has no names; Model.init must return a dataclass, a NamedTuple or a dict "
            "of arrays"
        )
    fields = dataclasses.fields(params)
    return tuple(
        x.name for x in fields if x.metadata.get("pytree_node", True) and not x.metadata.get("static", False)
    )


def get(params: Any, name: str) -> Any:
    """Return the parameter with a name.

    Raises:
        InputError: no parameter has this name.
    """
    if name not in (known := names(params)):
        raise InputError(f"{name}: not a parameter of the model; it has {', '.join(known)}")
    return params[name] if isinstance(params, dict) else getattr(params, name)


def gradients_by_name(
    function: Callable[[P], Array], params: P, train: Sequence[str]
) -> tuple[Array, dict[str, Array]]:
    """Return the value of a function and its gradients with respect to some of the parameters.

    Args:
        function: params -> ().
        params: a frozen dataclass, NamedTuple or dict of arrays.
        train: names of the parameters to differentiate with respect to.

    Returns:
        The function's value, and its gradient for each of these names.

    Raises:
        InputError: no parameter has one of these names.
    """

    def of_trained(trained: dict[str, Array]) -> Array:
        return function(replaced(params, **trained))

    return jax.value_and_grad(of_trained)({name: get(params, name) for name in train})


def replaced(params: P, **changes: Any) -> P:
    """Return a copy of the parameters with some of them replaced.

    Raises:
        InputError: no parameter has one of these names.
    """
    for name in changes:
        get(params, name)
    if isinstance(params, dict):
        return {**params, **changes}  # type: ignore[return-value]
    if hasattr(params, "_replace"):
        return params._replace(**changes)
    return dataclasses.replace(params, **changes)  # type: ignore[type-var]


WIDTH = 100


class Brief:
    """Base of dataclasses of arrays whose printed form gives shapes and dtypes instead of entries."""

    def brief(self) -> str:
        """Return a one-line description of the fields."""
        shown = [field for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        return ", ".join(f"{field.name} {_written(getattr(self, field.name))}" for field in shown)

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self.brief()})"
        return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False))

    def _repr_html_(self) -> str:
        return f"<b>{escape(type(self).__name__)}</b> ({escape(self.brief())})"


def is_concrete(x: Any) -> bool:
    """Return True if an array holds numbers and is not traced."""
    return isinstance(x, np.ndarray | np.generic | jax.Array) and not isinstance(x, jax.core.Tracer)


def _written(x: Any) -> str:
    """Return a number, the shape and dtype of an array, or the type name of any other object."""
    if is_concrete(x) and x.shape == () and not jax.numpy.issubdtype(x.dtype, jax.dtypes.extended):
        x = x.item()
    if isinstance(x, float):
        return f"{x:.4g}"
    if x is None or isinstance(x, bool | int):
        return "none" if x is None else str(x)
    if isinstance(x, str):
        return repr(x) if len(x) <= WIDTH // 2 else repr(x[: WIDTH // 2] + "…")
    if isinstance(x, np.ndarray | jax.Array | jax.ShapeDtypeStruct):
        return f"({', '.join(map(str, x.shape))}{',' * (len(x.shape) == 1)}) {x.dtype}"
    if isinstance(x, Brief):
        return f"{type(x).__name__}({x.brief()})"
    if isinstance(x, tuple | list):
        return f"{len(x)} of {type(x[0]).__name__}" if x else "()"
    return type(x).__name__
