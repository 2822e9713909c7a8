"""Reference implementations of the models for tests, with arrays E[x] of (n, T, d) and (n, T, T)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.models import key_query, mlp, multi_head, one_layer, two_layer_weights


def padded_sequences(
    corpus: Corpus, longest: int | None = None
) -> tuple[Int[Array, "n T"], Bool[Array, "n T"]]:
    """Expand bags to padded sequences with repeated tokens next to each other.

    Args:
        corpus: n sequences.
        longest: T, at least the largest length, which is the default. It is required under jit and vmap.

    Returns:
        Token ids (n, T) with 0 as padding, and a mask (n, T) of the actual tokens.

    Raises:
        InputError: the lengths are traced, and `longest` is None.
    """
    if longest is None:
        if isinstance(corpus.lengths, jax.core.Tracer):
            raise InputError("padded_sequences: lengths are traced; give longest=..., the largest of them")
        # Computed by NumPy, because inside jit JAX would trace even concrete arrays.
        longest = int(np.asarray(corpus.lengths).max())
    return _padded(corpus, longest)


@partial(jax.jit, static_argnames="longest")
def _padded(corpus: Corpus, longest: int) -> tuple[Array, Array]:
    bags, lengths = corpus.bags, jnp.asarray(corpus.lengths)
    place = jnp.arange(longest)
    mask = place < lengths[:, None]
    # Entries are in the order of their sequences; the entry of position j ends after more than j tokens.
    ends = jnp.cumsum(bags.count.astype(jnp.int32).ravel())
    first = jnp.cumsum(lengths) - lengths
    entry = jnp.searchsorted(ends, first[:, None] + place, side="right")
    tokens = bags.index.astype(jnp.int32).ravel()[jnp.minimum(entry, bags.index.size - 1)]
    return jnp.where(mask, tokens, 0), mask


def outputs(
    params: one_layer.Params, ids: Int[Array | np.ndarray, "n T"], mask: Bool[Array | np.ndarray, "n T"]
) -> Float[Array, " n *K"]:
    """Compute f(X) position by position: q = softmax over positions of E[x] p, f = Σ_i q_i E[x_i] v.

    Args:
        params: as for `one_layer.outputs`.
        ids: token ids, (n, T).
        mask: actual tokens, (n, T).

    Returns:
        (n,) or (n, K).
    """
    return _pool(params.E[ids], params.p, mask) @ params.v


def two_layer_outputs(
    params: one_layer.Params | two_layer_weights.Params,
    ids: Int[Array | np.ndarray, "n T"],
    mask: Bool[Array | np.ndarray, "n T"],
    *,
    residual: bool = False,
) -> Float[Array, " n *K"]:
    """Compute H = Softmax(E[x] W1 E[x]ᵀ) E[x] (+ E[x]) by position, and its read-out with W2 p and v.

    Args:
        params: as for `two_layer.outputs`, where W1 and W2 are the identity, or `two_layer_weights.outputs`.
        ids: token ids, (n, T).
        mask: actual tokens, (n, T).
        residual: add E[x].

    Returns:
        (n,) or (n, K).
    """
    embedded = params.E[ids]
    keys, query = embedded, params.p
    if isinstance(params, two_layer_weights.Params):
        keys, query = embedded @ params.W1.T, params.W2 @ params.p
    scores = jnp.where(mask[:, None, :], jnp.einsum("ntd,nsd->nts", embedded, keys), -jnp.inf)
    mixed = jnp.einsum("nts,nsd->ntd", jax.nn.softmax(scores, axis=2), embedded)
    return _pool(mixed + embedded if residual else mixed, query, mask) @ params.v


def mlp_outputs(
    params: mlp.Params, ids: Int[Array | np.ndarray, "n T"], mask: Bool[Array | np.ndarray, "n T"]
) -> Float[Array, " n *K"]:
    """Compute v·relu(h W + b) with h = Σ_i q_i E[x_i] position by position.

    Args:
        params: as for `mlp.outputs`.
        ids: token ids, (n, T).
        mask: actual tokens, (n, T).

    Returns:
        (n,) or (n, K).
    """
    pooled = _pool(params.E[ids], params.p, mask)
    return jax.nn.relu(pooled @ params.W + params.b) @ params.v


def key_query_outputs(
    params: key_query.Params, ids: Int[Array | np.ndarray, "n T"], mask: Bool[Array | np.ndarray, "n T"]
) -> Float[Array, " n *K"]:
    """Compute f(X) position by position with keys E[x] W: q = softmax over positions of (E[x] W) p.

    Args:
        params: as for `key_query.outputs`.
        ids: token ids, (n, T).
        mask: actual tokens, (n, T).

    Returns:
        (n,) or (n, K).
    """
    embedded = params.E[ids]
    scores = jnp.where(mask, jnp.einsum("ntd,de,e->nt", embedded, params.W, params.p), -jnp.inf)
    return jnp.einsum("nt,ntd,d...->n...", jax.nn.softmax(scores, axis=1), embedded, params.v)


def multi_head_outputs(
    params: multi_head.Params, ids: Int[Array | np.ndarray, "n T"], mask: Bool[Array | np.ndarray, "n T"]
) -> Float[Array, " n *K"]:
    """Compute the average over heads of the one-layer model with p_h and v_h, position by position.

    f(X) = (1/H) Σ_h f_h(X)

    Args:
        params: as for `multi_head.outputs`.
        ids: token ids, (n, T).
        mask: actual tokens, (n, T).

    Returns:
        (n,) or (n, K).
    """
    heads = zip(params.p, params.v, strict=True)
    each = [outputs(one_layer.Params(E=params.E, p=p, v=v), ids, mask) for p, v in heads]
    return sum(each[1:], each[0]) / len(each)


def _pool(tokens: Array, query: Array, mask: Array | np.ndarray) -> Array:
    """Average (n, T, d) over positions with softmax attention to a query."""
    attention = jax.nn.softmax(jnp.where(mask, tokens @ query, -jnp.inf), axis=1)
    return jnp.einsum("nt,ntd->nd", attention, tokens)
