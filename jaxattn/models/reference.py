"""Reference implementations of the models, with explicit arrays of shapes (n, T, d) and (n, T, T)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.models import one_layer, two_layer_weights


def padded_sequences(
    corpus: Corpus, longest: int | None = None
) -> tuple[Int[Array, "n T"], Bool[Array, "n T"]]:
    """Return token ids padded with 0, and a mask that is True for tokens and False for padding; (n, T) each.

    The order of tokens is not preserved: repeated tokens are adjacent.

    Args:
        corpus: n sequences.
        longest: T; the maximum length by default. Required under jit and vmap.

    Raises:
        InputError: the lengths are traced, but `longest` is None.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1]], labels=[1, -1], vocab_size=3)
        >>> ids, mask = ja.models.reference.padded_sequences(corpus)
        >>> ids.tolist(), mask.tolist()
        ([[0, 2], [1, 0]], [[True, True], [True, False]])
    """
    if longest is None:
        if isinstance(corpus.lengths, jax.core.Tracer):
            raise InputError(
                "padded_sequences: the lengths are traced; pass longest=..., an upper bound on them"
            )
        # Use NumPy, because inside jit JAX would trace even concrete arrays.
        longest = int(np.asarray(corpus.lengths).max())
    return _pad(corpus, longest)


@partial(jax.jit, static_argnames="longest")
def _pad(corpus: Corpus, longest: int) -> tuple[Array, Array]:
    bags, lengths = corpus.bags, jnp.asarray(corpus.lengths)
    place = jnp.arange(longest)
    mask = place < lengths[:, None]
    # Entries are ordered by sequence. The token at position j belongs to the first entry whose cumulative
    # count exceeds j.
    ends = jnp.cumsum(bags.count.astype(jnp.int32).ravel())
    first = jnp.cumsum(lengths) - lengths
    entry = jnp.searchsorted(ends, first[:, None] + place, side="right")
    tokens = bags.index.astype(jnp.int32).ravel()[jnp.minimum(entry, bags.index.size - 1)]
    return jnp.where(mask, tokens, 0), mask


def outputs(
    params: one_layer.Params, ids: Int[Array | np.ndarray, "n T"], mask: Bool[Array | np.ndarray, "n T"]
) -> Float[Array, " n *K"]:
    """Compute `one_layer.outputs` position by position: q = softmax(E[x] p) and f = Σ_i q_i (E[x_i]·v).

    Args:
        params: as in `one_layer.outputs`.
        ids: (n, T); token ids x.
        mask: (n, T) bool; True for tokens, False for padding.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.Params(E=jnp.eye(3), p=jnp.zeros(3), v=jnp.array([3.0, -1.0, 1.0]))
        >>> ja.models.reference.outputs(params, *ja.models.reference.padded_sequences(corpus)).tolist()
        [2.0, 0.0]
    """
    return _pool(params.E[ids], params.p, mask) @ params.v


def two_layer_outputs(
    params: one_layer.Params | two_layer_weights.Params,
    ids: Int[Array | np.ndarray, "n T"],
    mask: Bool[Array | np.ndarray, "n T"],
    *,
    residual: bool = False,
) -> Float[Array, " n *K"]:
    """Compute `two_layer.outputs` or `two_layer_weights.outputs` with explicit sums, position by position.

        H = Softmax(E[x] W1 E[x]ᵀ) E[x] (+ E[x] if `residual`),   q = softmax(H W2 p),   f = Σ_i q_i (H_i·v)

    Args:
        params: as in `two_layer.outputs`, where W1 and W2 are the identity, or
            `two_layer_weights.outputs`.
        ids: (n, T); token ids x.
        mask: (n, T) bool; True for tokens, False for padding.
        residual: True to add E[x].

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> ids, mask = ja.models.reference.padded_sequences(corpus)
        >>> f = ja.models.reference.two_layer_outputs(params, ids, mask)
        >>> bool(jnp.allclose(f, ja.models.two_layer.outputs(params, corpus), atol=1e-5))
        True
    """
    embedded = params.E[ids]
    keys, query = embedded, params.p
    if isinstance(params, two_layer_weights.Params):
        keys, query = embedded @ params.W1.T, params.W2 @ params.p
    scores = jnp.where(mask[:, None, :], jnp.einsum("ntd,nsd->nts", embedded, keys), -jnp.inf)
    mixed = jnp.einsum("nts,nsd->ntd", jax.nn.softmax(scores, axis=2), embedded)
    return _pool(mixed + embedded if residual else mixed, query, mask) @ params.v


def _pool(tokens: Array, query: Array, mask: Array | np.ndarray) -> Array:
    attention = jax.nn.softmax(jnp.where(mask, tokens @ query, -jnp.inf), axis=1)
    return jnp.einsum("nt,ntd->nd", attention, tokens)
