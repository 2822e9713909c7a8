"""Named activations of models, which a phase can clamp: hold at given values, or modify, during training."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import Array

from jaxattn.base import Params, Task
from jaxattn.core.errors import InputError, nearest, shown

# (value, data) -> value, the replacement of an activation.
Clamp = Callable[[Array, Any], Array]


@dataclass
class _Trace:
    """Clamps that apply while a model is traced, and the names of the activations that were found."""

    clamps: Mapping[str, Clamp]
    data: Any
    found: list[str] = field(default_factory=list)


# A model is a function of parameters and data, so clamps cannot be passed as arguments through its code. The
# variable is set only while `Clamped.outputs` is traced.
_TRACE: ContextVar[_Trace | None] = ContextVar("trace", default=None)
# JAX caches the traces of functions that a model passes to jax.jit, jax.checkpoint or jax.lax.scan. Each
# trace with clamps has its own value of this context, so it never uses a trace without these clamps.
_CLAMPED = jax.make_user_context(None)


def activation(name: str, value: Array) -> Array:
    """Return an activation of a model, or its replacement if the current phase clamps this name.

        def outputs(self, params, data):
            q = ja.models.activation("attention", jax.nn.softmax(data.X @ params["p"], axis=1))
            return jnp.einsum("nt,ntd,d->n", q, data.X, params["v"])

    The call has no effect except in phases with the setting `clamps`. It may be inside a function that the
    model compiles by `jax.jit`, or passes to `jax.checkpoint` or `jax.lax.scan`.

    Args:
        name: name of the activation.
        value: the activation, of any shape.

    Returns:
        An array with the shape and dtype of `value`.

    Raises:
        InputError: the clamp returns an array of another shape.

    Example:
        >>> ja.models.activation("attention", jnp.array([0.25, 0.75]))
        Array([0.25, 0.75], dtype=float32)
    """
    trace = _TRACE.get()
    if trace is None:
        return value
    trace.found.append(name)
    if name not in trace.clamps:
        return value
    clamped = trace.clamps[name](value, trace.data)
    if clamped.shape != value.shape:
        raise InputError(
            f"clamps.{name}: the function returned {shown(clamped)}; expected the shape {value.shape}"
        )
    return clamped.astype(value.dtype)


@dataclass(frozen=True)
class Clamped:
    """Model with some of its activations replaced; its other attributes are those of the model.

    Attributes:
        model: the model.
        clamps: function (value, data) -> value for each clamped activation, by name.
    """

    model: Any
    clamps: Mapping[str, Clamp]

    def outputs(self, params: Params, data: Any) -> Array:
        """Compute the outputs with the clamped activations.

        Raises:
            InputError: the model has no activation with the name of a clamp.
        """
        with _tracing(_Trace(self.clamps, data)) as trace:
            outputs: Array = self.model.outputs(params, data)
        for name in self.clamps:
            if name not in trace.found:
                known = ", ".join(dict.fromkeys(trace.found)) or "none"
                raise InputError(
                    f"clamps.{name}: the model has no such activation{nearest(name, trace.found)}; its "
                    f"activations: {known}"
                )
        return outputs

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model."""
        return getattr(self.model, name)


def with_clamps(task: Task, clamps: Mapping[str, Clamp]) -> Task:
    """Return a task whose model has clamped activations; the same task if there are no clamps."""
    return task._replace(model=Clamped(task.model, clamps)) if clamps else task  # type: ignore[arg-type]


def check_clamps(clamps: Mapping[str, Any]) -> None:
    """Raise InputError unless each clamp is a function."""
    for name, clamp in clamps.items():
        if not callable(clamp):
            raise InputError(
                f"clamps.{name}: expected a function (value, data) -> value, or its import path such as "
                f"'mine.py:half', got {clamp!r:.60}"
            )


@contextmanager
def _tracing(trace: _Trace) -> Iterator[_Trace]:
    token = _TRACE.set(trace)
    try:
        with _CLAMPED(object()):
            yield trace
    finally:
        _TRACE.reset(token)
