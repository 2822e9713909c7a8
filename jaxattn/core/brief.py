"""Short texts of dataclasses of arrays, for a prompt and a notebook: shapes, and single numbers."""

import dataclasses
import textwrap
from html import escape
from typing import Any

import jax
import numpy as np

WIDTH = 100


class Brief:
    """Base of dataclasses of arrays that are written in a few lines, without the entries of their arrays."""

    def brief(self) -> str:
        """Say what it holds, in words."""
        shown = [field for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        return ", ".join(f"{field.name} {_written(getattr(self, field.name))}" for field in shown)

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self.brief()})"
        return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False))

    def _repr_html_(self) -> str:
        return f"<b>{escape(type(self).__name__)}</b> ({escape(self.brief())})"


def is_concrete(x: Any) -> bool:
    """Tell whether an array holds numbers, and is not traced."""
    return isinstance(x, np.ndarray | np.generic | jax.Array) and not isinstance(x, jax.core.Tracer)


def _written(x: Any) -> str:
    """Write a number, or the shape and dtype of an array; of anything else its type."""
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
