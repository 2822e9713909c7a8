"""Arguments of public functions, which are checked against their annotations like settings."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxattn.core.errors import InputError
from jaxattn.core.spec import checked_value, is_array_type, without_arrays

_F = TypeVar("_F", bound=Callable[..., Any])


def checked(function: _F) -> _F:
    """Return a function that checks its arguments.

    The returned function raises InputError, with the name of the argument, when a keyword-only argument does
    not match its annotation, when a first argument `key` is not a key, when a list is passed for an array,
    and when an object is not of the annotated class of this package. NumPy numbers become Python numbers.
    Arrays, functions and traced values are passed on unchanged.
    """
    module = function.__module__.rpartition(".")[2]
    name = f"{module}.init" if function.__name__ == "init" else function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        first, known, positional = _signature(function)
        if first == "key" and (arguments or "key" in settings):
            _check_key(name, settings.get("key", *arguments[:1]))
        given = dict(zip(positional, arguments, strict=False)) | settings
        for key, hint in positional.items():
            if key in given:
                _check_positional(f"{name}.{key}", given[key], hint)
        for key in settings.keys() & known.keys():
            settings[key] = checked_value(settings[key], known[key], name, key)
        return function(*arguments, **settings)

    return call  # type: ignore[return-value]


@functools.cache
def _signature(function: Callable[..., Any]) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Return the first argument's name, and the annotations of keyword-only and of positional arguments."""
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    own = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name in hints]
    found = {name: without_arrays(hints[name]) for name in own}
    kept = {name: hint for name, hint in found.items() if hint is not Any and not is_array_type(hint)}
    positional = {
        name: hints.get(name, Any) for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD
    }
    return next(iter(parameters), ""), kept, positional


def _check_positional(place: str, value: Any, hint: Any) -> None:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    arms = typing.get_args(hint) if union else (hint,)
    if isinstance(value, list | tuple) and all(is_array_type(arm) for arm in arms):
        raise InputError(f"{place}: expected an array, got a {type(value).__name__}; pass np.asarray(...)")
    own = isinstance(hint, type) and hint.__module__.startswith("jaxattn.")
    if own and typing.Protocol not in hint.__bases__ and not isinstance(value, hint):
        raise InputError(f"{place}: expected '{hint.__name__}', got '{type(value).__name__}'")


def _check_key(name: str, key: Any) -> None:
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or (key.dtype == jnp.uint32 and key.shape[-1:] == (2,))
    )
    if not is_key:
        raise InputError(f"{name}: key: expected a PRNG key, such as jax.random.key(0), got {key!r:.60}")
