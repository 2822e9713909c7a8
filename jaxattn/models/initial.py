"""What every model starts from: embeddings, query and head."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.core.errors import InputError

Weights = Literal["identity", "normal"]


def embeddings_query_head(
    key: Array, *, vocab_size: int, dim: int, num_classes: int, dtype: DTypeLike
) -> tuple[Array, Array, Array]:
    """Draw E_s, p ~ N(0, I/d) and v uniform on the unit sphere: one key gives all models the same start.

    Args:
        key: PRNG key; a model that draws more takes it from `jax.random.fold_in(key, i)`.
        vocab_size: V. A larger V leaves the rows of a smaller one unchanged.
        dim: d.
        num_classes: K; two classes share one head.
        dtype: of all parameters.

    Returns:
        E (V, d), p (d,) and v, (d,) or (d, K).

    Raises:
        InputError: a size below 1, or fewer than two classes.

    Source:
        Section on the model in arXiv 2505.17282; the direction of v is not published and drawn here.
    """
    for name, size, least in (
        ("vocab_size", vocab_size, 1),
        ("dim", dim, 1),
        ("num_classes", num_classes, 2),
    ):
        if size < least:
            raise InputError(f"{name}: {size}; it must be at least {least}")
    e_key, p_key, v_key = jax.random.split(key, 3)
    scale = dim**-0.5
    shape = (dim,) if num_classes == 2 else (dim, num_classes)
    # Drawing and dividing in one kernel of float64 takes XLA very long to compile for a GPU where d is small.
    v = jax.lax.optimization_barrier(jax.random.normal(v_key, shape, dtype))
    return (
        scale * jax.random.normal(e_key, (vocab_size, dim), dtype),
        scale * jax.random.normal(p_key, (dim,), dtype),
        v / jnp.linalg.norm(v, axis=0),
    )


def square(key: Array, dim: int, dtype: DTypeLike, weights: Weights = "normal") -> Array:
    """Make a (d, d) matrix: entries N(0, 1/d), which on average keep the length of what they map, or 1.

    Raises:
        InputError: another start than "identity" or "normal".
    """
    if weights not in ("identity", "normal"):
        raise InputError(f"weights: {weights!r}; it must be 'identity' or 'normal'")
    if weights == "identity":
        return jnp.eye(dim, dtype=dtype)
    return dim**-0.5 * jax.random.normal(key, (dim, dim), dtype)
