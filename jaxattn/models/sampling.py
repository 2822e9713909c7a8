"""Sampling of initial parameters, shared by the models' `init`."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus

SquareInit = Literal["identity", "normal"]


def embeddings_query_head(
    key: Array, *, vocab_size: int, dim: int, num_classes: int, dtype: DTypeLike
) -> tuple[Array, Array, Array]:
    """Sample E (V, d) and p (d,) from N(0, I/d), and v, (d,) or (d, K), uniformly from the unit sphere.

    The same key produces the same E, p and v in all models. Models with more parameters sample them with
    `jax.random.fold_in(key, i)`. Increasing V does not change the existing rows.

    Raises:
        InputError: a size is below 1, or there are fewer than two classes.

    Source:
        Model section of arXiv 2505.17282. The paper does not specify the direction of v, so it is random
        here.

    Example:
        >>> sizes = {'vocab_size': 3, 'dim': 4, 'num_classes': 2, 'dtype': jnp.float32}
        >>> E, p, v = ja.models.sampling.embeddings_query_head(jax.random.key(0), **sizes)
        >>> E.shape, p.shape, round(float(jnp.linalg.norm(v)), 4)
        ((3, 4), (4,), 1.0)
    """
    for name, size, least in (
        ("vocab_size", vocab_size, 1),
        ("dim", dim, 1),
        ("num_classes", num_classes, 2),
    ):
        if size < least:
            raise InputError(f"{name}: must be at least {least}, got {size}")
    e_key, p_key, v_key = jax.random.split(key, 3)
    scale = dim**-0.5
    shape = (dim,) if num_classes == 2 else (dim, num_classes)
    # Prevent XLA from fusing sampling and division: for small d, the fused float64 kernel takes a very long
    # time to compile on a GPU.
    v = jax.lax.optimization_barrier(jax.random.normal(v_key, shape, dtype))
    return (
        scale * jax.random.normal(e_key, (vocab_size, dim), dtype),
        scale * jax.random.normal(p_key, (dim,), dtype),
        v / jnp.linalg.norm(v, axis=0),
    )


def sizes(like: Corpus) -> dict[str, int]:
    """Return V and K of a corpus, as keyword arguments for `init`.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.models.sampling.sizes(corpus)
        {'vocab_size': 3, 'num_classes': 2}
    """
    return {"vocab_size": like.vocab_size, "num_classes": like.num_classes}


def square_matrix(key: Array, dim: int, dtype: DTypeLike, weights: SquareInit = "normal") -> Array:
    """Return the (d, d) identity, or a matrix with entries from N(0, 1/d), which preserves norms on average.

    Raises:
        InputError: `weights` is neither "identity" nor "normal".

    Example:
        >>> ja.models.sampling.square_matrix(jax.random.key(0), 2, jnp.float32, "identity").tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if weights not in ("identity", "normal"):
        raise InputError(f"weights: must be 'identity' or 'normal', got {weights!r}")
    if weights == "identity":
        return jnp.eye(dim, dtype=dtype)
    return dim**-0.5 * jax.random.normal(key, (dim, dim), dtype)
