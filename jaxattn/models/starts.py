"""Starts: initial parameter values that a study uses in place of those sampled by the model."""

from collections.abc import Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxattn.base.from_function import StartFromFunction, declare, settings_class
from jaxattn.core.errors import InputError
from jaxattn.core.settings import FilePath
from jaxattn.data.arrays import read_array, read_vocabulary
from jaxattn.data.corpus import Corpus


@declare(rotation_invariant=True)
def zero(key: Array, drawn: Array) -> Array:
    """Return zeros as the initial value.

    Example:
        >>> ja.models.starts.zero(jax.random.key(0), jnp.ones(2)).tolist()
        [0.0, 0.0]
    """
    return jnp.zeros_like(drawn)


@declare(rotation_invariant=True)
def scaled(key: Array, drawn: Array, *, scale: float | Array) -> Array:
    """Return the initial value sampled by the model, multiplied by `scale`.

    Args:
        key: PRNG key (unused).
        drawn: the value sampled by the model.
        scale: scaling factor.

    Example:
        >>> ja.models.starts.scaled(jax.random.key(0), jnp.ones(2), scale=0.5).tolist()
        [0.5, 0.5]
    """
    return jnp.asarray(scale, drawn.dtype) * drawn


def from_file(
    key: Array, drawn: Array, *, tokens: Sequence[str], file: FilePath, vocabulary: FilePath | None = None
) -> Array:
    """Read the initial value from a file: `FILE.npy` or `FILE.safetensors:KEY`.

    If `vocabulary` is given, row k of the array belongs to the token in line k + 1 of that file. Corpus
    tokens that are not in the file keep the value sampled by the model.

    Args:
        key: PRNG key (unused).
        drawn: the value sampled by the model.
        tokens: names of the V tokens.
        file: path of the file, relative to the sweep file.
        vocabulary: text file with one token per line; by default, the rows are in the order of `tokens`.

    Raises:
        InputError: a file cannot be read, the array has the wrong shape, or `vocabulary` contains none of the
            tokens.
    """
    rows = read_array(file)
    if vocabulary is None:
        if rows.shape != drawn.shape:
            raise InputError(f"{file}: has shape {rows.shape}, but the model requires {drawn.shape}")
        return jnp.asarray(rows, drawn.dtype)
    lines = read_vocabulary(vocabulary)
    if rows.shape != (wanted := (len(lines), *drawn.shape[1:])):
        raise InputError(f"{file}: has shape {rows.shape}, but the model and vocabulary require {wanted}")
    place = {token: k for k, token in enumerate(lines)}
    index = np.array([place.get(token, -1) for token in tokens])
    if (index < 0).all():
        raise InputError(f"{vocabulary}: contains none of the tokens in the corpus; write one token per line")
    known = jnp.asarray((index >= 0).reshape(-1, *(1,) * (drawn.ndim - 1)))
    return jnp.where(known, jnp.asarray(rows[np.maximum(index, 0)], drawn.dtype), drawn)


def kind_of(table: Mapping[str, object]) -> str | None:
    """Infer the kind of a start from the keys of its table; return None if they do not determine the kind.

    Example:
        >>> ja.models.starts.kind_of({"scale": 0.5})
        'scaled'
    """
    return "file" if "file" in table else "scaled" if "scale" in table else None


Zero = settings_class(zero, StartFromFunction, "Zero")
Scaled = settings_class(scaled, StartFromFunction, "Scaled")
FromFile = settings_class(from_file, StartFromFunction, "FromFile")


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
        >>> E, p, v = ja.models.starts.embeddings_query_head(jax.random.key(0), **sizes)
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
        >>> ja.models.starts.sizes(corpus)
        {'vocab_size': 3, 'num_classes': 2}
    """
    return {"vocab_size": like.vocab_size, "num_classes": like.num_classes}


def square_matrix(key: Array, dim: int, dtype: DTypeLike, weights: SquareInit = "normal") -> Array:
    """Return the (d, d) identity, or a matrix with entries from N(0, 1/d), which preserves norms on average.

    Raises:
        InputError: `weights` is neither "identity" nor "normal".

    Example:
        >>> ja.models.starts.square_matrix(jax.random.key(0), 2, jnp.float32, "identity").tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if weights not in ("identity", "normal"):
        raise InputError(f"weights: must be 'identity' or 'normal', got {weights!r}")
    if weights == "identity":
        return jnp.eye(dim, dtype=dtype)
    return dim**-0.5 * jax.random.normal(key, (dim, dim), dtype)
