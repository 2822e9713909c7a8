"""Access to the parameters in any pytree by name, and short reprs for dataclasses of arrays."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from html import escape
from types import SimpleNamespace
from typing import Any, TypeVar, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.core.errors import InputError, nearest, shown

# An array of a result: a NumPy array, or a JAX array while a function is traced.
AnyArray = jax.Array | np.ndarray
# An entry or a row of such an array, which is a scalar type of NumPy if it has no axes.
PathArray = AnyArray | np.number | np.bool_

_P = TypeVar("_P")


def leaves(params: Any) -> dict[str, Any]:
    """Return the arrays of a pytree by name. The name is the path, such as `attention.kernel`.

    Raises:
        InputError: the parameters are a single array or not a pytree, two arrays have the same path, or a
            leaf is not an array.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        is_array = hasattr(leaf, "dtype") or type(leaf) in (int, float, complex)
        kind = f"an array {shown(leaf)}" if is_array else f"a {type(leaf).__name__}"
        if not name:
            raise InputError(
                f"parameters: got {kind}, which has no parameter names; return a dataclass, NamedTuple or "
                "dict of arrays, possibly nested, from Model.init"
            )
        if name in found:
            raise InputError(f"parameters: two arrays have the path {name}; rename one of them")
        if not is_array:
            raise InputError(
                f"parameters: {name} is {kind}, not an array; make it a static field, or use an adapter such "
                "as ja.models.from_equinox"
            )
        found[name] = leaf
    return found


def attributes(params: Any) -> Any:
    """Return parameters whose arrays are attributes: a plain dict becomes a namespace."""
    return SimpleNamespace(**params) if isinstance(params, Mapping) else params


def names(params: Any) -> tuple[str, ...]:
    """Return the names of the parameters, as in `leaves`."""
    return tuple(leaves(params))


def get(params: Any, name: str) -> Any:
    """Return a parameter by name.

    Raises:
        InputError: no parameter has this name.
    """
    known = leaves(params)
    if name not in known:
        raise InputError(f"{name}: not a parameter of the model{nearest(name, known)}")
    return known[name]


def selected(params: Any, patterns: Iterable[str]) -> dict[str, Any]:
    """Return the float parameters that match any of the patterns, by name, in the order of the patterns.

    Args:
        params: a pytree of arrays.
        patterns: names; `fnmatch` patterns, such as `attention.*`; or common prefixes of several paths, such
            as `attention`. A pattern after `!` excludes its matches, as in `["*", "!attention"]`. No patterns
            select no parameter.

    Raises:
        InputError: a pattern matches no parameter or no float parameter, or all parameters are excluded.
    """
    known, patterns = leaves(params), list(patterns)
    found: dict[str, Any] = {}
    for pattern in patterns:
        if not pattern.startswith("!"):
            matches = {name: known[name] for name in _matches(known, pattern)}
            floats = {name: x for name, x in matches.items() if _is_float(x)}
            if not floats:
                name, x = next(iter(matches.items()))
                raise InputError(f"{name!r} is {shown(x)}; only float parameters can be trained")
            found |= floats
    excluded = {x for pattern in patterns if pattern.startswith("!") for x in _matches(known, pattern[1:])}
    if patterns and not found.keys() - excluded:
        what = "selects no parameter" if not found else "excludes all parameters"
        raise InputError(f"{', '.join(patterns)}: {what}; add the parameters to train, such as '*'")
    return {name: x for name, x in found.items() if name not in excluded}


def _matches(known: Iterable[str], pattern: str) -> list[str]:
    matches = [x for x in known if fnmatchcase(x, pattern) or x.startswith(f"{pattern}.")]
    if not matches:
        raise InputError(f"{pattern}: not a parameter of the model{nearest(pattern, known)}")
    return matches


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(getattr(x, "dtype", type(x)), jnp.floating))


def gradients_by_name(
    function: Callable[[_P], Array], params: _P, train: Sequence[str]
) -> tuple[Array, dict[str, Array]]:
    """Return the value of a function and its gradients with respect to the named parameters.

    Args:
        function: params -> ().
        params: a pytree of arrays.
        train: names or patterns of the parameters for which to compute gradients; see `selected`.

    Raises:
        InputError: as in `selected`.
    """

    def of_trained(trained: dict[str, Array]) -> Array:
        return function(replace(params, **trained))

    return jax.value_and_grad(of_trained)(selected(params, train))


def replace(params: _P, **changes: object) -> _P:
    """Return a copy of the parameters with some arrays replaced.

    This is the same for parameters of any kind: NamedTuples, dataclasses, dicts, and the pytrees of Flax or
    Equinox.

    Args:
        params: a pytree of arrays.
        changes: new arrays by name. The name of a nested array is its path: pass
            `**{"attention.kernel": x}`.

    Raises:
        InputError: a name matches no parameter.

    Example:
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=2)
        >>> ja.replace(params, p=jnp.ones(2)).p.tolist()
        [1.0, 1.0]
    """
    known = leaves(params)
    for name in changes:
        if name not in known:
            raise InputError(f"{name}: not a parameter of the model{nearest(name, known)}")
    made: _P = jax.tree.unflatten(jax.tree.structure(params), list((known | changes).values()))
    return made


_LINE = 100


@no_type_check
class Brief:
    """Base class for dataclasses of arrays whose repr shows shapes and dtypes instead of entries.

    The tests do not compare fields with their annotations (`no_type_check`), because tree transformations
    substitute other objects for arrays, such as shapes.
    """

    def brief(self) -> str:
        """Return a one-line description of the fields."""
        shown = [field for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]
        return ", ".join(f"{field.name} {_written(getattr(self, field.name))}" for field in shown)

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({self.brief()})"
        return "\n".join(textwrap.wrap(text, _LINE, subsequent_indent="  ", break_long_words=False))

    def _repr_html_(self) -> str:
        return f"<b>{escape(type(self).__name__)}</b> ({escape(self.brief())})"


def is_concrete(x: Any) -> bool:
    """Return whether an array has concrete values, that is, whether it is not traced."""
    return isinstance(x, np.ndarray | np.generic | jax.Array) and not isinstance(x, jax.core.Tracer)


def numpy_if_concrete(tree: _P) -> _P:
    """Return a pytree with NumPy arrays, or the pytree itself inside `jax.jit`, `jax.vmap` or `jax.grad`.

    In a session without float64, JAX would round operations on float64 arrays to float32.
    """
    return tree if is_traced(tree) else jax.device_get(tree)


def is_traced(tree: Any) -> bool:
    """Return whether an array in a pytree is traced, inside `jax.jit`, `jax.vmap` or `jax.grad`."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))


def _written(x: Any) -> str:
    if is_concrete(x) and x.shape == () and not jax.numpy.issubdtype(x.dtype, jax.dtypes.extended):
        x = x.item()
    if isinstance(x, float):
        return f"{x:.4g}"
    if x is None or isinstance(x, bool | int):
        return "none" if x is None else str(x)
    if isinstance(x, str):
        return repr(x) if len(x) <= _LINE // 2 else repr(x[: _LINE // 2] + "…")
    if isinstance(x, np.ndarray | jax.Array | jax.ShapeDtypeStruct):
        return f"({', '.join(map(str, x.shape))}{',' * (len(x.shape) == 1)}) {x.dtype}"
    if isinstance(x, Brief):
        return f"{type(x).__name__}({x.brief()})"
    if isinstance(x, tuple | list):
        return f"{len(x)} of {type(x[0]).__name__}" if x else "()"
    return type(x).__name__


def floats_to_float64(tree: Any) -> Any:
    """Cast the float arrays in a pytree to float64, and leave its other arrays unchanged."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x, tree
    )
