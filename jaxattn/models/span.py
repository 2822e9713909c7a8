"""Coordinates in the span of E, p and v, in which the cost of training does not grow with d.

A loss that depends only on E p and E v depends on E, p and v only through their inner products, and its
gradients stay in the span of the initial p, v and rows of E. This span has at most m = V + 1 + K dimensions
(K = 1 for two classes). Training in m coordinates is therefore equivalent, and an isometry Q maps the
coordinates to R^d:

    [p; v; E] = L Qᵀ,   L (m, m) lower triangular,   Q (d, m) with orthonormal columns.

Source:
    Bartlett's decomposition, for the distribution of L if the rows are normal.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxattn.core.settings import PositiveInt
from jaxattn.models.sampling import embeddings_query_head

# Embedding dimension of a model. "inf" means that the initial rows of E, p and v are orthonormal.
Dim = PositiveInt | Literal["inf"]
# If d is at least this large, sample in span coordinates, because (V, d) arrays become too expensive.
LARGE_DIM = 16_384


class Rows(NamedTuple):
    """Embeddings E, (V, d), query p, (d,), and read-out v, (d,) or (d, K), in any coordinate system."""

    E: Array
    p: Array
    v: Array


def coordinates(vocab_size: int, num_classes: int) -> int:
    """Return the dimension of the span, m = V + 1 + K, with K = 1 for two classes.

    Example:
        >>> ja.models.span.coordinates(vocab_size=10, num_classes=2)
        12
    """
    return vocab_size + 1 + (1 if num_classes == 2 else num_classes)


def dimensions(dim: Dim, vocab_size: int, num_classes: int) -> int:
    """Return the number of coordinates that `start` uses: min(d, m), with m from `coordinates`.

    Example:
        >>> ja.models.span.dimensions("inf", 10, 2), ja.models.span.dimensions(4, 10, 2)
        (12, 4)
    """
    m = coordinates(vocab_size, num_classes)
    return m if dim == "inf" else min(dim, m)


def infinite_by_name(model: Any) -> None:
    """If `model.dim` is a float infinity, replace it with "inf", the value used in sweep files.

    Example:
        >>> ja.models.OneLayer(dim=float('inf')).dim
        'inf'
    """
    if isinstance(model.dim, float) and math.isinf(model.dim):
        msgspec.structs.force_setattr(model, "dim", "inf")


def start(key: Array, *, vocab_size: int, dim: Dim, num_classes: int, dtype: DTypeLike) -> Rows:
    """Sample E, p and v as in `embeddings_query_head`. If d > m, return their coordinates in their span.

    Here m = V + 1 + K (K = 1 for two classes). For d < 16,384, the result is a rotation of the vectors from
    `embeddings_query_head`. For larger d, no array of size d is created: the result has the same
    distribution, but different values for the same key. For d = ∞, it is deterministic.

    Args:
        key: PRNG key.
        vocab_size: V. Increasing V does not change the existing inner products.
        dim: d, or "inf".
        num_classes: K. For two classes, there is a single read-out vector.
        dtype: dtype of the parameters.

    Returns:
        E (V, r), p (r,) and v, (r,) or (r, K), with r = min(d, m).

    Example:
        >>> sizes = {'vocab_size': 3, 'dim': 'inf', 'num_classes': 2, 'dtype': jnp.float32}
        >>> E, p, v = ja.models.span.start(jax.random.key(0), **sizes)
        >>> E.shape, p.shape, v.shape
        ((3, 5), (5,), (5,))
    """
    m = coordinates(vocab_size, num_classes)
    if dim == "inf":
        return _apart(jnp.eye(m, dtype=dtype), num_classes)
    if dim >= max(LARGE_DIM, m + 1):
        return _apart(_bartlett(key, m, dim, num_classes, dtype), num_classes)
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "dim": dim, "num_classes": num_classes, "dtype": dtype}
    drawn = Rows(*embeddings_query_head(key, **sizes))
    return in_span(drawn) if m < dim else drawn


def in_span(rows: Rows) -> Rows:
    """Return E, p and v expressed in coordinates of their span, with the same inner products.

    Example:
        >>> sizes = {'vocab_size': 3, 'dim': 100, 'num_classes': 2, 'dtype': jnp.float32}
        >>> drawn = ja.models.sampling.embeddings_query_head(jax.random.key(0), **sizes)
        >>> rows = ja.models.span.in_span(ja.models.span.Rows(*drawn))
        >>> rows.E.shape, bool(jnp.allclose(rows.E @ rows.p, drawn[0] @ drawn[1], atol=1e-5))
        ((3, 5), True)
    """
    return _apart(_factor(_together(rows)), 2 if rows.v.ndim == 1 else rows.v.shape[1])


def basis(
    key: Array, *, vocab_size: int, dim: int, num_classes: int, dtype: DTypeLike
) -> Float[Array, "d m"]:
    """Return the isometry Q that maps span coordinates from `start` to vectors in R^d: x = Q x_m.

    Q applies to both initial and trained parameters. The arguments are those of `start`, with d > m. For
    d < 16,384, Q maps the initial parameters to the vectors from `embeddings_query_head`. For larger d, Q is
    random.

    Example:
        >>> sizes = {'vocab_size': 3, 'dim': 100, 'num_classes': 2, 'dtype': jnp.float32}
        >>> Q = ja.models.span.basis(jax.random.key(0), **sizes)
        >>> Q.shape, bool(jnp.allclose(Q.T @ Q, jnp.eye(5), atol=1e-5))
        ((100, 5), True)
    """
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "dim": dim, "num_classes": num_classes, "dtype": dtype}
    Q, R = jnp.linalg.qr(_together(Rows(*embeddings_query_head(key, **sizes))).T)
    return Q * _signs(R)


def _factor(rows: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return the lower triangular L with positive diagonal such that L Lᵀ = X Xᵀ, where X is `rows`."""
    m, d = rows.shape
    if 2 * m <= d:
        # For large d, random normal rows are well conditioned, and a matrix product is ten times faster than
        # Householder reflections.
        return jnp.linalg.cholesky(jnp.matmul(rows, rows.T, precision="highest"))
    R = jnp.linalg.qr(rows.T, mode="r")
    return R.T * _signs(R)


def _signs(R: Float[Array, "m m"]) -> Float[Array, " m"]:
    return jnp.where(jnp.diagonal(R) < 0, -1, 1).astype(R.dtype)


def _together(rows: Rows) -> Float[Array, "m d"]:
    # Put p and v first, so that increasing V only appends rows to the triangular factor.
    return jnp.concatenate([rows.p[None], jnp.atleast_2d(rows.v.T), rows.E])


def _apart(rows: Float[Array, "m k"], num_classes: int) -> Rows:
    heads = 1 if num_classes == 2 else num_classes
    v = rows[1 : 1 + heads].T
    return Rows(E=rows[1 + heads :], p=rows[0], v=v[:, 0] if num_classes == 2 else v)


def _bartlett(key: Array, m: int, dim: int, num_classes: int, dtype: DTypeLike) -> Float[Array, "m m"]:
    """Sample the factor L of rows from N(0, I/d), and normalise the rows for v.

    By Bartlett's decomposition, √d L has χ_d, χ_(d-1), ... on the diagonal and N(0, 1) entries below it.
    """

    def row(i: Array) -> Array:
        below, diagonal = jax.random.split(jax.random.fold_in(key, i))
        # A chi-squared variable with k degrees of freedom is twice a gamma variable with shape parameter k/2.
        chi = jnp.sqrt(2 * jax.random.gamma(diagonal, ((dim - i) / 2).astype(dtype)))
        return jnp.where(columns < i, jax.random.normal(below, (m,), dtype), jnp.where(columns == i, chi, 0))

    columns = jnp.arange(m)
    rows = jax.vmap(row)(columns) * dim**-0.5
    is_head = (columns >= 1) & (columns <= (1 if num_classes == 2 else num_classes))
    return jnp.where(is_head[:, None], rows / jnp.linalg.norm(rows, axis=1, keepdims=True), rows)
