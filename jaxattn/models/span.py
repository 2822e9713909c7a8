"""Coordinates of the span of E, p and v, for training at any d, including infinity, at a cost set by V.

A loss of E p and E v depends on E, p and v only by their inner products, and moves them only within the span
of their initial rows. An isometry onto m = V + 1 + K coordinates (K = 1 for one head) changes no number that
does not depend on the axes of R^d:

    [p; v; E] = L Qᵀ,   L (m, m) lower triangular,   Q (d, m) with orthonormal columns.

Source:
    Bartlett's decomposition for the distribution of L if the rows are normal.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxattn.core.settings import PositiveInt
from jaxattn.models.initial import embeddings_query_head

# Embedding dimension of a model; for "inf" the initial rows of E, p and v are orthonormal.
Dim = PositiveInt | Literal["inf"]
# From this d on, initial values are sampled in span coordinates, because (V, d) numbers cost too much.
LARGE = 16_384


class Rows(NamedTuple):
    """E (V, d), p (d,) and v, (d,) or (d, K), in any coordinates."""

    E: Array
    p: Array
    v: Array


def coordinates(vocab_size: int, num_classes: int) -> int:
    """Return the number of coordinates of the span, m = V + 1 + K; two classes share one head."""
    return vocab_size + 1 + (1 if num_classes == 2 else num_classes)


def dimensions(dim: Dim, vocab_size: int, num_classes: int) -> int:
    """Return the number of coordinates of `start`, min(d, m)."""
    m = coordinates(vocab_size, num_classes)
    return m if dim == "inf" else min(dim, m)


def infinite_by_name(model: Any) -> None:
    """Replace an infinite float `dim` of a new model by "inf", as in a sweep file."""
    if isinstance(model.dim, float) and math.isinf(model.dim):
        msgspec.structs.force_setattr(model, "dim", "inf")


def start(key: Array, *, vocab_size: int, dim: Dim, num_classes: int, dtype: DTypeLike) -> Rows:
    """Sample E, p and v like `embeddings_query_head`, in coordinates of their span if these are fewer.

    For d < 16,384 they are the same vectors, rotated. For larger d they have the same distribution but other
    values for the same key, because no array of size d is created. For d = ∞ nothing is random.

    Args:
        key: PRNG key.
        vocab_size: V. A larger V does not change the inner products of a smaller one.
        dim: d, or "inf".
        num_classes: K; two classes share one head.
        dtype: dtype of all parameters.

    Returns:
        E (V, m), p (m,) and v, (m,) or (m, K); with d coordinates if d ≤ m.
    """
    m = coordinates(vocab_size, num_classes)
    if dim == "inf":
        return _apart(jnp.eye(m, dtype=dtype), num_classes)
    if dim >= max(LARGE, m + 1):
        return _apart(_bartlett(key, m, dim, num_classes, dtype), num_classes)
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "dim": dim, "num_classes": num_classes, "dtype": dtype}
    drawn = Rows(*embeddings_query_head(key, **sizes))
    return in_span(drawn) if m < dim else drawn


def in_span(rows: Rows) -> Rows:
    """Return E, p and v in coordinates of their span, with the same inner products."""
    return _apart(_factor(_together(rows)), 2 if rows.v.ndim == 1 else rows.v.shape[1])


def basis(
    key: Array, *, vocab_size: int, dim: int, num_classes: int, dtype: DTypeLike
) -> Float[Array, "d m"]:
    """Return Q, which maps the parameters of `start`, also after training, to R^d: x = Q x_m.

    The arguments are those of `start`, with d > m. For d < 16,384 the mapped initial parameters are the
    originally sampled vectors; for larger d, Q is a random isometry of the key.
    """
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "dim": dim, "num_classes": num_classes, "dtype": dtype}
    Q, R = jnp.linalg.qr(_together(Rows(*embeddings_query_head(key, **sizes))).T)
    return Q * _signs(R)


def _factor(rows: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return the lower triangular L with positive diagonal and L Lᵀ = X Xᵀ, for rows X."""
    m, d = rows.shape
    if 2 * m <= d:
        # Normal rows are then well conditioned, and a product is ten times as fast as reflections.
        return jnp.linalg.cholesky(jnp.matmul(rows, rows.T, precision="highest"))
    R = jnp.linalg.qr(rows.T, mode="r")
    return R.T * _signs(R)


def _signs(R: Float[Array, "m m"]) -> Float[Array, " m"]:
    return jnp.where(jnp.diagonal(R) < 0, -1, 1).astype(R.dtype)


def _together(rows: Rows) -> Float[Array, "m d"]:
    # p and v come first, so that the triangle of a larger V starts with that of a smaller one.
    return jnp.concatenate([rows.p[None], jnp.atleast_2d(rows.v.T), rows.E])


def _apart(rows: Float[Array, "m k"], num_classes: int) -> Rows:
    heads = 1 if num_classes == 2 else num_classes
    v = rows[1 : 1 + heads].T
    return Rows(E=rows[1 + heads :], p=rows[0], v=v[:, 0] if num_classes == 2 else v)


def _bartlett(key: Array, m: int, dim: int, num_classes: int, dtype: DTypeLike) -> Float[Array, "m m"]:
    """Sample L for rows N(0, I/d): √d L has normal entries below a diagonal of χ_d, χ_(d-1), ..."""

    def row(i: Array) -> Array:
        below, diagonal = jax.random.split(jax.random.fold_in(key, i))
        # A chi-squared variable with k degrees of freedom is twice a gamma variable of shape k/2.
        chi = jnp.sqrt(2 * jax.random.gamma(diagonal, ((dim - i) / 2).astype(dtype)))
        return jnp.where(columns < i, jax.random.normal(below, (m,), dtype), jnp.where(columns == i, chi, 0))

    columns = jnp.arange(m)
    rows = jax.vmap(row)(columns) * dim**-0.5
    is_head = (columns >= 1) & (columns <= (1 if num_classes == 2 else num_classes))
    return jnp.where(is_head[:, None], rows / jnp.linalg.norm(rows, axis=1, keepdims=True), rows)
