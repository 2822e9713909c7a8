"""Correlations and bin means inside compiled programs; `results.correlations` has those of the host."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def bin_means(
    values: Float[Array, "V"],
    difference: Float[Array, "V"],
    bins: int,
    low: float | Array,
    high: float | Array,
) -> Float[Array, "bins"]:
    """Average values of tokens within equal bins of the posterior difference.

    Args:
        values: one number per token.
        difference: posterior difference; tokens outside [low, high] or NaN are left out.
        bins: how many.
        low: lower end of the first bin.
        high: upper end of the last bin.

    Returns:
        The mean of every bin, NaN for an empty one.
    """
    # Ratios of counts lie on edges, and were rounded; `results.correlations` has the same slack.
    at = (difference - low) / ((high - low) / bins) + 1e-5
    number = jnp.clip(jnp.floor(at), 0, bins - 1)
    inside = (at >= 0) & (at <= bins + 2e-5)
    member = inside & (number == jnp.arange(bins, dtype=values.dtype)[:, None])
    return jnp.where(member, values, 0).sum(axis=1) / member.sum(axis=1)


def spearman(x: Float[Array, "N"], y: Float[Array, "N"], use: Bool[Array, "N"]) -> Float[Array, ""]:
    """Compute Spearman's rank correlation over the entries in use, ties at their average rank.

    Returns:
        The coefficient; NaN if fewer than two entries are in use or one side is constant.
    """
    # Together: sorting takes long to compile.
    ranks = jax.vmap(_ranks, (0, None))(jnp.stack([x, y]), use)
    return pearson(ranks[0], ranks[1], use)


def pearson(x: Float[Array, "N"], y: Float[Array, "N"], use: Bool[Array, "N"]) -> Float[Array, ""]:
    """Compute Pearson's correlation over the entries in use; NaN if one side is constant."""
    number = use.sum()
    x = jnp.where(use, x, 0)
    y = jnp.where(use, y, 0)
    x = jnp.where(use, x - x.sum() / number, 0)
    y = jnp.where(use, y - y.sum() / number, 0)
    return (x * y).sum() / (jnp.sqrt((x * x).sum()) * jnp.sqrt((y * y).sum()))


def _ranks(x: Array, use: Bool[Array, "N"]) -> Array:
    ordered = jnp.sort(jnp.where(use, x, jnp.inf))
    below = jnp.searchsorted(ordered, x, side="left")
    up_to = jnp.searchsorted(ordered, x, side="right")
    return (below + up_to).astype(x.dtype) / 2
