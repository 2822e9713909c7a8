"""The textbook form of the one-layer model, kept as an oracle: gathers E[x], arrays of (n, T, d)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxattn.data.corpus import Corpus
from jaxattn.models.one_layer import Params


def padded_sequences(corpus: Corpus) -> tuple[Int[np.ndarray, "n T"], Bool[np.ndarray, "n T"]]:
    """Write bags out as padded sequences, repeated tokens side by side.

    Args:
        corpus: n sequences.

    Returns:
        Token ids (n, T) with 0 as padding, and a mask (n, T) of the real tokens; T is the longest length.
    """
    bags = jax.tree.map(np.asarray, corpus.bags)
    counts = bags.count.astype(np.int64)
    owner = np.broadcast_to(bags.owner[:, None], counts.shape)[counts > 0]
    tokens = np.repeat(bags.index[counts > 0].astype(np.int64), counts[counts > 0])
    owner = np.repeat(owner, counts[counts > 0])
    lengths = np.asarray(corpus.lengths)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = tokens[np.argsort(owner, kind="stable")]
    return ids, mask


def logits(
    params: Params, ids: Int[Array | np.ndarray, "n T"], mask: Bool[Array | np.ndarray, "n T"]
) -> Float[Array, "n *K"]:
    """Compute f(X) position by position: q = softmax over positions of E[x] p, f = Σ_i q_i E[x_i] v.

    Args:
        params: as for `one_layer.logits`.
        ids: token ids, (n, T).
        mask: real tokens, (n, T).

    Returns:
        (n,) or (n, K).
    """
    embedded = params.E[ids]
    scores = jnp.where(mask, embedded @ params.p, -jnp.inf)
    attention = jax.nn.softmax(scores, axis=1)
    return jnp.einsum("nt,ntd->nd", attention, embedded) @ params.v
