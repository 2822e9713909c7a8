"""The one-layer model in coordinates of the span of E, p and v: any d at the cost of V."""

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxattn.models.one_layer import OneLayer, Params


def in_span(params: Params) -> Params:
    """Write E, p and v in coordinates of their span: the same inner products in fewer numbers.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K).

    Returns:
        E (V, m), p (m,), v (m,) or (m, K): m = V + 1 + K coordinates (K = 1 for one head), or V - 1 where
        d < V, padded with 0.
    """
    vocab_size, dim = params.E.shape
    rows = jnp.concatenate([params.E, params.p[None], jnp.atleast_2d(params.v.T)])
    if dim >= len(rows):
        rows = jnp.linalg.cholesky(jnp.matmul(rows, rows.T, precision="highest"))
    else:
        # With fewer coordinates than tokens a flow moves p itself instead of V dependent numbers.
        width = vocab_size - 1 if dim < vocab_size else len(rows)
        rows = jnp.pad(rows, ((0, 0), (0, width - dim)))
    v = rows[vocab_size + 1 :].T
    return Params(E=rows[:vocab_size], p=rows[vocab_size], v=v[:, 0] if params.v.ndim == 1 else v)


class OneLayerInSpan(OneLayer, frozen=True, kw_only=True):
    """`one_layer`, drawn in `dim` dimensions and turned into its span: an isometry, which no number sees.

    The dynamics know E, p and v through their inner products only, so all large d cost the same, and share
    their compiled programs.
    """

    def init(self, key: Array, *, vocab_size: int, num_classes: int = 2, dtype: DTypeLike) -> Params:
        """Draw what `one_layer` draws, and write it in coordinates of its span."""
        return in_span(super().init(key, vocab_size=vocab_size, num_classes=num_classes, dtype=dtype))
