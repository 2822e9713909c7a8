"""The force on scores for any number of classes: cross-entropy of K > 2 beside the logistic loss of two.

With outputs f ∈ R^K, π = softmax(f) and the residual r = e_y - π, a sequence pulls at its scores with

    -∂ℓ/∂a_s = q_s r·(γ_s - f),

as one of two classes does whose values are r·γ_s. Far along a path r keeps its relative precision if its size
is kept apart, r = (1 - π_y) (e_y - π') with π' the softmax over the other classes; γ_s - f = e^gap c / q_s is
factored as in `direction`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take
from jaxattn.dynamics.flows.direction import LOGISTIC, Force, by_token, token_force


def score_force(
    corpus: Corpus,
    scores: Float[Array, "V"],
    values: Float[Array, "V *K"] | Float[Array, "R W *K"],
    weigh: Callable[[Array], tuple[Array, Array]] = LOGISTIC,
) -> Force:
    """Compute -∂L/∂a: `token_force` for two classes, `class_force` for more, which knows no other weights."""
    if corpus.num_classes == 2:
        return token_force(corpus, scores, values, weigh)
    return class_force(corpus, scores, values)


def residual(
    f: Float[Array, "n K"], labels: Int[Array, "n"]
) -> tuple[Float[Array, "n K"], Float[Array, "n"], Float[Array, "n K"]]:
    """Compute r = e_y - π = e^log_size direction, and log π.

    Args:
        f: (n, K); outputs.
        labels: (n,); y, 0 .. K-1.

    Returns:
        direction (n, K), e_y less the softmax over the other classes; log_size (n,); log π (n, K).
    """
    own = jax.nn.one_hot(labels, f.shape[1], dtype=f.dtype)
    log_pi = jax.nn.log_softmax(f, axis=1)
    log_size = jax.nn.logsumexp(jnp.where(own > 0, -jnp.inf, log_pi), axis=1)
    others = jnp.where(own > 0, 0, jnp.exp(log_pi - log_size[:, None]))
    return own - others, log_size, log_pi


def class_force(
    corpus: Corpus, scores: Float[Array, "V"], values: Float[Array, "V K"] | Float[Array, "R W K"]
) -> Force:
    """Compute -∂L/∂a_s = (1/n) Σ_X q_s r·(γ_s - f) of mean cross-entropy, its exponent kept apart.

    Args:
        corpus: n sequences of K > 2 classes over V tokens.
        scores: a, (V,); any spread.
        values: γ, (V, K), or of every entry of the bags, (R, W, K).

    Returns:
        The force. Its `gross` sums the K terms of r·(γ_s - f) one by one, as those may cancel too.
    """
    bags = corpus.bags
    token, present = bags.index.astype(jnp.int32), (bags.count > 0)[..., None]
    score = jnp.where(present[..., 0], take(scores, token), -jnp.inf)
    value = take(values, token) if values.ndim == 2 else values
    top = bags.max(score)
    relative = score - bags.spread(jnp.where(top == -jnp.inf, 0, top))
    on_top = jnp.where((relative == 0)[..., None], value, -jnp.inf)
    reference = jnp.stack([bags.max(column) for column in jnp.moveaxis(on_top, -1, 0)], axis=-1)
    below = jnp.where(present, value - bags.spread(reference), 0)
    differs = (below != 0).any(axis=-1)
    gap = bags.max(jnp.where(differs, relative, -jnp.inf))
    idle = gap == -jnp.inf
    gap = jnp.where(idle, 0, gap)
    scaled = bags.count * jnp.exp(relative - jnp.where(differs, bags.spread(gap), 0))
    weight = jnp.where(differs, scaled * bags.spread(jnp.exp(gap)), scaled)
    moments = below * scaled[..., None]
    normaliser, *summed = bags.sum(weight, *jnp.moveaxis(moments, -1, 0))
    mean = jnp.stack(summed, axis=-1) / normaliser[:, None]
    direction, log_size, log_pi = residual(reference + jnp.exp(gap)[:, None] * mean, corpus.targets)
    log_weight = jnp.where(idle, -jnp.inf, gap + log_size)
    largest = log_weight.max()
    log_share = log_weight - jnp.where(largest == -jnp.inf, 0, largest)
    q = jnp.where(present[..., 0], weight / bags.spread(normaliser), 0)
    c = moments / bags.spread(normaliser)[..., None] - q[..., None] * bags.spread(mean)
    c = jnp.where(present, c, 0)
    parts = bags.spread(jnp.exp(log_share)[:, None] * direction) * c
    force, _ = by_token(corpus, parts.sum(axis=-1))
    return Force(
        force=force,
        log_scale=largest - jnp.log(corpus.num_examples),
        gross=jnp.abs(parts).sum(),
        pull=parts.sum(axis=-1),
        turn=q,
        attention=q,
        log_weight=jnp.where(normaliser > 0, log_size, -jnp.inf),
        slope=jnp.zeros_like(log_size),
        modes=_modes(bags, c, direction, log_pi, log_size, log_share + gap - log_size),
    )


def _modes(
    bags: Ragged, c: Array, direction: Array, log_pi: Array, log_size: Array, log_unit: Array
) -> Float[Array, "R W K"]:
    """Compute √(π_k) (e_k - π)·(γ_s - f) q_s of all classes k in the unit of the force, e^log_unit squared.

    Their squares sum to what -∂r/∂f = Σ_k π_k (e_k - π)(e_k - π)ᵀ takes from the derivative of the force.
    """
    own = direction > 0
    leaning = c - (bags.spread(jnp.exp(log_pi)) * c).sum(axis=-1, keepdims=True)
    # (e_y - π)·c = (1 - π_y) direction·c, without cancellation.
    steered = (bags.spread(direction) * c).sum(axis=-1, keepdims=True)
    log_factor = (log_pi + log_unit[:, None]) / 2 + jnp.where(own, log_size[:, None], 0)
    factor = jnp.where(jnp.isfinite(log_unit)[:, None], jnp.exp(log_factor), 0)
    return bags.spread(factor) * jnp.where(bags.spread(own), steered, leaning)


def pulls(
    corpus: Corpus, f: Float[Array, "n *K"], differences: Float[Array, "R W *K"]
) -> tuple[Float[Array, "R W"], Float[Array, "R W"]]:
    """Multiply differences of values with the residual r of the outputs f of their sequence.

    Args:
        corpus: n sequences.
        f: outputs, (n,) for two classes, whose r is y σ(-y f), and (n, K) for more.
        differences: (R, W), or (R, W, K).

    Returns:
        The products, and the sum of the sizes of their terms, (R, W) each.
    """
    bags, labels = corpus.bags, corpus.targets
    if corpus.num_classes == 2:
        product = bags.spread(labels * jax.nn.sigmoid(-labels * f)) * differences
        return product, jnp.abs(product)
    direction, log_size, _ = residual(f, labels)
    terms = bags.spread(direction * jnp.exp(log_size)[:, None]) * differences
    return terms.sum(axis=-1), jnp.abs(terms).sum(axis=-1)
