"""Models built from Flax and Equinox modules: pure functions of dictionaries of arrays."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxattn.base import Dataset
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import leaves
from jaxattn.data.corpus import Corpus
from jaxattn.data.sequences import Sequences, Vectors

_Inputs = Callable[[Any], object]


class Adapted(NamedTuple):
    """Flax or Equinox module converted to a pair of pure functions.

    Attributes:
        init: (key, like, *, dtype) -> parameters, for data with the shapes of `like`.
        outputs: (params, data) -> (n, ...); a last axis of length 1 is removed.
        rebuild: function of arrays by name that returns what the library takes: the nested dictionary for
            `module.apply({"params": ...}, x)` of Linen, and a module of NNX or Equinox. `outputs` takes it
            as parameters, too.
    """

    init: Callable[..., Any]
    outputs: Callable[[Any, Any], Array]
    rebuild: Callable[[Mapping[str, Any]], Any]


def first_array(data: Dataset) -> Array:
    """Return the first array in a dataset other than `targets`, such as `X` in `Vectors`.

    Raises:
        InputError: the data are bags of tokens or padded sequences, which do not consist of a single array.
    """
    if isinstance(data, Corpus):
        raise InputError(
            "inputs: bags of tokens do not form a single array; pass inputs=lambda data: "
            "ja.models.reference.padded_sequences(data, longest=T), which returns token ids and a mask"
        )
    if isinstance(data, Sequences) or (isinstance(data, Vectors) and data.mask is not None):
        name = "ids" if isinstance(data, Sequences) else "X"
        raise InputError(
            f"inputs: {type(data).__name__} may be padded; pass inputs=lambda data: (data.{name}, data.mask) "
            f"or inputs=lambda data: data.{name} if all lengths are equal"
        )
    return next(x for name, x in data.arrays() if name != "targets")


def from_linen(module: Any, *, inputs: _Inputs = first_array, per_example: bool = False) -> Adapted:
    """Convert a Flax Linen module to a model.

    Args:
        module: the module. It is called with the inputs as its only argument.
        inputs: function that extracts the module's argument from the data; the first array by default.
        per_example: True if the module takes a single example and must be vmapped over examples.

    Returns:
        The model. Its parameters are those in the collection "params", with names such as `Dense_0.kernel`.

    Raises:
        InputError: at initialisation, if the module has other collections, such as batch statistics; when
            computing outputs, if it needs random keys, for example for dropout.

    Example:
        >>> import flax.linen as nn
        >>> model = ja.models.from_linen(nn.Dense(1), inputs=lambda data: data.X.mean(axis=1))
        >>> data = ja.data.Vectors(targets=jnp.ones(5), X=jnp.ones((5, 2, 3)))
        >>> params = model.init(jax.random.key(0), data, dtype=jnp.float32)
        >>> sorted(params), model.outputs(params, data).shape
        (['bias', 'kernel'], (5,))
    """
    from flax.core import meta
    from flax.errors import InvalidRngError

    def init(key: Array, like: Dataset, *, dtype: DTypeLike) -> Any:
        # Only the shapes of the data are known at this point.
        x = inputs(jax.tree.map(lambda array: jnp.zeros(array.shape, array.dtype), like))
        # As in `from_nnx`, ignore the names of mesh axes; they are in boxes around the parameters.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            variables = meta.unbox(module.init(key, _first(x) if per_example else x))
        for name in variables:
            if name != "params":
                raise InputError(
                    f"from_linen: the module has mutable state {name!r}; remove the layers that use it"
                )
        return _cast(variables["params"], dtype)

    def apply(params: Any, x: Any) -> Any:
        try:
            return module.apply({"params": params}, x)
        except InvalidRngError:
            raise InputError(_RANDOM.format("from_linen")) from None

    return Adapted(init, _outputs(apply, inputs, per_example), nested)


def from_nnx(
    make: Callable[[Any], object], *, inputs: _Inputs = first_array, per_example: bool = False
) -> Adapted:
    """Convert a Flax NNX module to a model.

    Args:
        make: function of `nnx.Rngs` that returns the module. The module is called with the inputs as its only
            argument.
        inputs: function that extracts the module's argument from the data; the first array by default.
        per_example: True if the module takes a single example and must be vmapped over examples.

    Returns:
        The model. Its parameters are the `nnx.Param` variables, with names such as `linear.kernel`. Other
        variables, such as stored batch statistics, are constants.

    Raises:
        InputError: at initialisation, if a constant depends on the PRNG key; when computing outputs, if a
            call changes a variable, as dropout and batch statistics do in training.

    Example:
        >>> from flax import nnx
        >>> dense = lambda rngs: nnx.Linear(3, 1, rngs=rngs)
        >>> model = ja.models.from_nnx(dense, inputs=lambda data: data.X.mean(axis=1))
        >>> data = ja.data.Vectors(targets=jnp.ones(5), X=jnp.ones((5, 2, 3)))
        >>> params = model.init(jax.random.key(0), data, dtype=jnp.float32)
        >>> model.outputs(params, data).shape
        (5,)
    """
    from flax import nnx

    def split(key: Array) -> Any:
        # Names of mesh axes in parameters refer to the module's own mesh, not to that of the study.
        with nnx.use_eager_sharding(False):
            return nnx.split(make(nnx.Rngs(key)), nnx.Param, ...)

    def constants(key: Array) -> Any:
        return nnx.to_pure_dict(split(key)[2])

    def variables(module: Any) -> dict[str, Any]:
        return leaves(nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.Param))))

    def init(key: Array, like: Dataset, *, dtype: DTypeLike) -> Any:
        _, params, _ = split(key)
        _check_constant(
            lambda key: leaves(nnx.to_pure_dict(nnx.split_state(split(key)[2], nnx.RngState, ...)[1]))
        )
        return _cast(nnx.to_pure_dict(params), dtype)

    def merged(params: Any) -> Any:
        if isinstance(params, nnx.Module):
            return params
        structure, state, others = nnx.eval_shape(lambda: split(jax.random.key(0)))
        floats = (x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating))
        dtype = next(floats, jnp.result_type(float))
        nnx.replace_by_pure_dict(state, params)
        nnx.replace_by_pure_dict(others, _cast(jax.jit(constants)(jax.random.key(0)), dtype))
        return nnx.merge(structure, state, others)

    def rebuild(arrays: Mapping[str, Any]) -> Any:
        _, state, _ = nnx.eval_shape(lambda: split(jax.random.key(0)))
        return merged(_fill(nnx.to_pure_dict(state), arrays, "from_nnx"))

    def apply(params: Any, x: Any) -> Any:
        module = merged(params)
        before = variables(module)
        found = module(x)
        after = variables(module)
        for name, value in before.items():
            if after[name] is not value:
                raise InputError(
                    f"from_nnx: the module has mutable state or PRNG keys ({name}); remove the layers that "
                    "use them, or call module.eval() in the function that makes the module"
                )
        return found

    return Adapted(init, _outputs(apply, inputs, per_example), rebuild)


def from_equinox(
    make: Callable[[Array], object], *, inputs: _Inputs = first_array, per_example: bool = True
) -> Adapted:
    """Convert an Equinox module to a model.

    Args:
        make: function of a PRNG key that returns the module. The module is called with the inputs as its only
            argument.
        inputs: function that extracts the module's argument from the data; the first array by default.
        per_example: True if the module takes a single example, as is usual in Equinox, and must be vmapped
            over examples.

    Returns:
        The model. Its parameters are the module's arrays in a dictionary, with names such as
        `layers.0.weight`. Other leaves, such as activations, are static.

    Raises:
        InputError: at initialisation, if the module has state or active dropout.

    Example:
        >>> import equinox as eqx
        >>> dense = lambda key: eqx.nn.Linear(3, 1, key=key)
        >>> model = ja.models.from_equinox(dense, inputs=lambda data: data.X.mean(axis=1))
        >>> data = ja.data.Vectors(targets=jnp.ones(5), X=jnp.ones((5, 2, 3)))
        >>> params = model.init(jax.random.key(0), data, dtype=jnp.float32)
        >>> model.outputs(params, data).shape
        (5,)
    """
    import equinox as eqx

    def init(key: Array, like: Dataset, *, dtype: DTypeLike) -> Any:
        module = make(key)
        special: Any = (eqx.nn.Dropout, eqx.nn.StateIndex)
        for part in jax.tree.leaves(module, is_leaf=lambda x: isinstance(x, special)):
            if isinstance(part, eqx.nn.StateIndex):
                raise InputError("from_equinox: the module has mutable state; remove the layers that use it")
            if isinstance(part, eqx.nn.Dropout) and part.p > 0 and not part.inference:
                raise InputError(_RANDOM.format("from_equinox"))
        return _cast(leaves(eqx.filter(module, eqx.is_array)), dtype)

    def rebuild(arrays: Mapping[str, Any]) -> Any:
        shapes, static = eqx.partition(
            eqx.filter_eval_shape(make, jax.random.key(0)), lambda x: isinstance(x, jax.ShapeDtypeStruct)
        )
        return eqx.combine(_fill(shapes, arrays, "from_equinox"), static)

    def apply(params: Any, x: Any) -> Any:
        module: Any = params if isinstance(params, eqx.Module) else rebuild(params)
        return module(x)

    return Adapted(init, _outputs(apply, inputs, per_example), rebuild)


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays with names such as `head.kernel` as a nested dictionary."""
    found: dict[str, Any] = {}
    for name, x in arrays.items():
        *parts, last = name.split(".")
        inner = found
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = x
    return found


def _fill(shapes: Any, arrays: Mapping[str, Any], adapter: str) -> Any:
    """Return a copy of a pytree with arrays in place of its leaves, by name."""
    wanted = {name: tuple(x.shape) for name, x in leaves(shapes).items()}
    given = {name: tuple(np.shape(x)) for name, x in arrays.items()}
    if wanted != given:
        raise InputError(f"{adapter}: the module has parameters {wanted}, got {given}; pass the same module")
    return jax.tree.unflatten(jax.tree.structure(shapes), [arrays[name] for name in wanted])


def _check_constant(constants: Callable[[Array], dict[str, Any]]) -> None:
    """Raise InputError if a constant of a module depends on the PRNG key and so differs between seeds."""
    with jax.ensure_compile_time_eval():
        one, other = (jax.jit(constants)(jax.random.key(seed)) for seed in (0, 1))
        for name, value in one.items():
            if not np.array_equal(value, other[name], equal_nan=jnp.issubdtype(value.dtype, jnp.inexact)):
                raise InputError(
                    f"from_nnx: the constant {name} depends on the PRNG key; make it an nnx.Param, and "
                    f'exclude it from training with "!{name}" in `train`'
                )


_RANDOM = "{}: the module requires a random key at every call; disable dropout and noise"


def _outputs(
    apply: Callable[[Any, Any], Any], inputs: _Inputs, per_example: bool
) -> Callable[[Any, Any], Array]:
    def outputs(params: Any, data: Dataset) -> Array:
        x = inputs(data)
        found: Array = jax.vmap(lambda one: apply(params, one))(x) if per_example else apply(params, x)
        return found[..., 0] if found.ndim > 1 and found.shape[-1] == 1 else found

    return outputs


def _first(x: Any) -> Any:
    return jax.tree.map(lambda array: array[0], x)


def _cast(params: Any, dtype: DTypeLike) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params)
