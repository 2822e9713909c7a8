"""Flows for many seeds: input checks, and integration in chunks of vmapped seeds."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.loops import map_in_equal_parts
from jaxattn.core.pytrees import attributes, is_traced, numpy_if_concrete
from jaxattn.data.corpus import Corpus

_T = TypeVar("_T")

# Relative error tolerance per step.
Tolerance = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Inputs(NamedTuple):
    """Inputs of a flow: arrays such as E, p and v, and a corpus, each with or without a leading seed axis.

    Attributes:
        arrays: the arrays, with the corpus last.
        batched: True for each array with a seed axis.
        seeds: number of seeds, or None if no array has a seed axis.
    """

    arrays: tuple[Any, ...]
    batched: tuple[bool, ...]
    seeds: int | None


def parts_from_params(params: Any, corpus: Corpus) -> dict[str, tuple[Any, int]]:
    """Return E, p and v by name, each with its number of axes for one seed, as input to `flow_inputs`.

    Raises:
        InputError: there are more than two classes, or the shapes do not match.
    """
    if corpus.num_classes != 2:
        raise InputError(f"corpus: has {corpus.num_classes} classes, but this flow requires two")
    params = attributes(params)
    if np.shape(params.p)[-1:] != np.shape(params.v)[-1:]:
        shapes = (f"{name} {np.shape(getattr(params, name))}" for name in "Epv")
        raise InputError(f"shapes do not match: {', '.join(shapes)}; p and v must have the same dimension")
    return {"E": (params.E, 2), "p": (params.p, 1), "v": (params.v, 1)}


def flow_inputs(parts: dict[str, tuple[Any, int]], corpus: Corpus) -> Inputs:
    """Build the `Inputs` of a flow: check shapes, and determine which arrays have a leading seed axis.

    Args:
        parts: arrays by name, each with its number of axes for one seed. The embeddings or keys come
            first, then p.
        corpus: n sequences over the same tokens.
    """
    shapes = {name: np.shape(x) for name, (x, _) in parts.items()}
    (rows, p), names = list(shapes.values())[:2], ", ".join([*parts, "corpus"])
    known = all(len(shapes[name]) in (axes, axes + 1) for name, (_, axes) in parts.items())
    if not known or rows[-2:] != (corpus.vocab_size, p[-1]):
        shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"shapes do not match: got {shown} and a corpus with V = {corpus.vocab_size} tokens")
    batched = (*(np.ndim(x) > axes for x, axes in parts.values()), corpus.targets.ndim > 1)
    arrays = (*(x for x, _ in parts.values()), corpus)
    sizes = {
        jax.tree.leaves(x)[0].shape[0] for x, has_seeds in zip(arrays, batched, strict=True) if has_seeds
    }
    if len(sizes) > 1:
        raise InputError(f"{names}: the numbers of seeds {sorted(sizes)} differ; use the same number for all")
    if sizes == {0}:
        raise InputError(f"{names}: the leading (seed) axis has length 0; use at least one seed")
    return Inputs(arrays, batched, sizes.pop() if sizes else None)


def over_seeds(
    follow: Callable[..., Any],
    inputs: Inputs,
    numbers: Any,
    max_steps: int,
    *,
    points: int,
    width: int | None,
) -> Any:
    """Integrate chunks of seeds one after another, so that a slow seed delays only its own chunk.

    Chunks of one seed outside of a trace call `follow` for each seed, so that all seeds, and any number of
    them, share its compiled programs.

    Args:
        follow: function (arrays, corpus, numbers, max_steps, points) -> pytree that integrates the flow for
            one seed in float64, with compiled programs of its own.
        inputs: inputs for all seeds.
        numbers: pytree of float settings shared by all seeds.
        max_steps: maximum number of steps.
        points: number of rows, static.
        width: number of seeds to vmap; by default all on an accelerator, and 1 on a CPU.

    Returns:
        The output of `follow`, with a leading seed axis, as NumPy arrays outside of a trace.

    Raises:
        InputError: `max_steps` or `width` is too small, or the flow is differentiated.
    """
    for name, number, least in (("max_steps", max_steps, 0), ("width", 1 if width is None else width, 1)):
        if not isinstance(number, jax.core.Tracer) and number < least:
            raise InputError(f"{name}: must be at least {least}, got {number}")
    *given, corpus = inputs.arrays
    # On a CPU, the arrays for one seed fit into a core's cache, and a slow seed does not delay the other
    # seeds.
    width = width or (1 if backend.platform() == "cpu" else inputs.seeds or 1)
    with backend.float64():
        arrays = *to_float64(tuple(given)), corpus
        settings = to_float64(numbers), jnp.asarray(max_steps, jnp.int32)
        if is_traced((arrays, settings)) or (inputs.seeds and width > 1):
            path = _without_derivative(arrays, settings, follow, inputs.batched, inputs.seeds, points, width)
            return numpy_if_concrete(path)
        if inputs.seeds is None:
            return jax.device_get(follow(*arrays, *settings, points))
        each = _of_seeds(arrays, inputs.batched, inputs.seeds)
        paths = [jax.device_get(follow(*own, *settings, points)) for own in each]
    return jax.tree.map(lambda *rows: np.stack(rows), *paths)


def _of_seeds(arrays: tuple[Any, ...], batched: tuple[bool, ...], seeds: int) -> Iterator[tuple[Any, ...]]:
    """List the inputs of each seed."""
    # NumPy takes rows without a compiled program.
    arrays = tuple(jax.device_get(x) if own else x for x, own in zip(arrays, batched, strict=True))
    for k in range(seeds):
        yield tuple(
            jax.tree.map(lambda rows, k=k: jax.device_put(rows[k]), x) if own else x
            for x, own in zip(arrays, batched, strict=True)
        )


def to_float64(tree: _T) -> _T:
    """Cast all arrays in a pytree to float64."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)


def jacobian_columns(keys: Array) -> Array:
    """Return the number of Jacobian columns, a scalar. Each column costs one gradient evaluation per step."""
    # All-zero rows are vocabulary padding.
    return jnp.minimum((keys != 0).any(axis=1).sum(), keys.shape[1])


def refuse_derivative(*_: Any) -> NoReturn:
    """Raise InputError, because flows are not differentiable. This is the rule of a `jax.custom_jvp`."""
    raise InputError(
        "exact flows are not differentiable: their adaptive steps do not depend smoothly on the initial "
        "parameters; apply jax.lax.stop_gradient to params, use ja.dynamics.Descent instead, or "
        "differentiate the limit of the flow with ja.theory.differentiable_direction"
    )


@partial(jax.jit, static_argnames=("follow", "batched", "seeds", "points", "width"))
def _over_chunks(
    arrays: Any,
    settings: Any,
    follow: Callable[..., Any],
    batched: Any,
    seeds: int | None,
    points: int,
    width: int,
) -> Any:
    if seeds is None:
        return follow(*arrays, *settings, points)
    own = [x for x, has_seeds in zip(arrays, batched, strict=True) if has_seeds]

    def one(own: list[Any]) -> Any:
        each = iter(own)
        given = (next(each) if has_seeds else x for x, has_seeds in zip(arrays, batched, strict=True))
        return follow(*given, *settings, points)

    return map_in_equal_parts(one, own, width)


_without_derivative = jax.custom_jvp(_over_chunks, nondiff_argnums=(2, 3, 4, 5, 6))
_without_derivative.defjvp(refuse_derivative)
