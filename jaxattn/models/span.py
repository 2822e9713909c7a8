"""Coordinates of the span of E, p and v: training at any d, also infinite, at the cost of V.

A loss of E p and E v moves E, p and v within the span of their first rows, and knows them by their inner
products only. An isometry onto m = V + 1 + K coordinates (K = 1 for one head) changes no number that does
not depend on the axes of R^d:

    [p; v; E] = L Qᵀ,   L (m, m) lower triangular,   Q (d, m) with orthonormal columns.

Source:
    Bartlett's decomposition for the law of L where the rows are normal.
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

# d of a model; at "inf" the rows of E, p and v begin as orthonormal vectors.
Dim = PositiveInt | Literal["inf"]
# From here on a start is drawn in its span at once: (V, d) numbers would cost more than all else of a study.
LARGE = 16_384


class Rows(NamedTuple):
    """E (V, d), p (d,) and v, (d,) or (d, K), in any coordinates."""

    E: Array
    p: Array
    v: Array


def coordinates(vocab_size: int, num_classes: int) -> int:
    """Count the coordinates of the span, m = V + 1 + K; two classes share one head."""
    return vocab_size + 1 + (1 if num_classes == 2 else num_classes)


def dimensions(dim: Dim, vocab_size: int, num_classes: int) -> int:
    """Count the coordinates that `start` draws, the smaller one of d and m."""
    m = coordinates(vocab_size, num_classes)
    return m if dim == "inf" else min(dim, m)


def infinite_by_name(model: Any) -> None:
    """Write an infinite `dim` of a model that is being made as "inf", as a sweep file does."""
    if isinstance(model.dim, float) and math.isinf(model.dim):
        msgspec.structs.force_setattr(model, "dim", "inf")


def start(key: Array, *, vocab_size: int, dim: Dim, num_classes: int, dtype: DTypeLike) -> Rows:
    """Draw E, p and v as `embeddings_query_head` does, in coordinates of their span if these are fewer.

    Below d = 16,384 they are the same vectors, rotated. From there on they have the same law but are other
    draws for the same key, since nothing of size d is made. At d = ∞ nothing is random.

    Args:
        key: PRNG key.
        vocab_size: V. A larger V leaves the inner products of a smaller one unchanged.
        dim: d, or "inf".
        num_classes: K; two classes share one head.
        dtype: of all parameters.

    Returns:
        E (V, m), p (m,) and v, (m,) or (m, K); of d coordinates where d ≤ m.
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
    """Write E, p and v in coordinates of their span: the same inner products in fewer numbers."""
    return _apart(_factor(_together(rows)), 2 if rows.v.ndim == 1 else rows.v.shape[1])


def basis(
    key: Array, *, vocab_size: int, dim: int, num_classes: int, dtype: DTypeLike
) -> Float[Array, "d m"]:
    """Make Q, which brings what `start` draws with this key, and all that it becomes, to R^d: x = Q x_m.

    Below d = 16,384 these are the vectors that were drawn; from there on Q is a random isometry of the key.

    Args:
        key: as for `start`.
        vocab_size: V.
        dim: d > m.
        num_classes: K.
        dtype: of the result.
    """
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "dim": dim, "num_classes": num_classes, "dtype": dtype}
    Q, R = jnp.linalg.qr(_together(Rows(*embeddings_query_head(key, **sizes))).T)
    return Q * _signs(R)


def _factor(rows: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Find the lower triangular L with a positive diagonal and L Lᵀ = X Xᵀ, for rows X."""
    m, d = rows.shape
    if 2 * m <= d:
        # Normal rows are far from dependent then, and a product is ten times as fast as reflections.
        return jnp.linalg.cholesky(jnp.matmul(rows, rows.T, precision="highest"))
    R = jnp.linalg.qr(rows.T, mode="r")
    return R.T * _signs(R)


def _signs(R: Float[Array, "m m"]) -> Float[Array, " m"]:
    return jnp.where(jnp.diagonal(R) < 0, -1, 1).astype(R.dtype)


def _together(rows: Rows) -> Float[Array, "m d"]:
    # p and v come first: the triangle of a larger V begins with that of a smaller one.
    return jnp.concatenate([rows.p[None], jnp.atleast_2d(rows.v.T), rows.E])


def _apart(rows: Float[Array, "m k"], num_classes: int) -> Rows:
    heads = 1 if num_classes == 2 else num_classes
    v = rows[1 : 1 + heads].T
    return Rows(E=rows[1 + heads :], p=rows[0], v=v[:, 0] if num_classes == 2 else v)


def _bartlett(key: Array, m: int, dim: int, num_classes: int, dtype: DTypeLike) -> Float[Array, "m m"]:
    """Draw L where rows are N(0, I/d): √d L has normals below a diagonal of χ_d, χ_(d-1), ..."""

    def row(i: Array) -> Array:
        below, diagonal = jax.random.split(jax.random.fold_in(key, i))
        # A chi-squared variable of k degrees of freedom is twice a gamma variable of k/2.
        chi = jnp.sqrt(2 * jax.random.gamma(diagonal, ((dim - i) / 2).astype(dtype)))
        return jnp.where(columns < i, jax.random.normal(below, (m,), dtype), jnp.where(columns == i, chi, 0))

    columns = jnp.arange(m)
    rows = jax.vmap(row)(columns) * dim**-0.5
    is_head = (columns >= 1) & (columns <= (1 if num_classes == 2 else num_classes))
    return jnp.where(is_head[:, None], rows / jnp.linalg.norm(rows, axis=1, keepdims=True), rows)
