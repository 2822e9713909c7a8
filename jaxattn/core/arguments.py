"""Arguments of public functions, which are checked against their annotations like settings."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxattn.core.errors import InputError
from jaxattn.core.spec import checked_value, is_array_type, without_arrays

_F = TypeVar("_F", bound=Callable[..., Any])


def checked(function: _F) -> _F:
    """Return a function that checks its keyword-only arguments and its PRNG key.

    The returned function raises InputError, with the place, for a value that does not match its annotation,
    or for a first argument `key` that is not a key. NumPy numbers become Python numbers. Arrays, functions
    and traced values are passed on as they are.
    """
    module = function.__module__.rpartition(".")[2]
    name = f"{module}.init" if function.__name__ == "init" else function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        first, known = _signature(function)
        if first == "key" and (arguments or "key" in settings):
            _check_key(name, settings.get("key", *arguments[:1]))
        for key in settings.keys() & known.keys():
            settings[key] = checked_value(settings[key], known[key], name, key)
        return function(*arguments, **settings)

    return call  # type: ignore[return-value]


@functools.cache
def _signature(function: Callable[..., Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the first argument, and the annotations of the keyword-only arguments."""
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    own = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name in hints]
    found = {name: without_arrays(hints[name]) for name in own}
    kept = {name: hint for name, hint in found.items() if hint is not Any and not is_array_type(hint)}
    return next(iter(parameters), ""), kept


def _check_key(name: str, key: Any) -> None:
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or (key.dtype == jnp.uint32 and key.shape[-1:] == (2,))
    )
    if not is_key:
        raise InputError(f"{name}: key: expected a PRNG key, such as jax.random.key(0), got {key!r:.60}")
