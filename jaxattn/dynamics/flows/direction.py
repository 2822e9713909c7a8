"""The direction of -∂L/∂p and its derivative, without cancellation or underflow.

Late in training every sequence has settled on its top token, the other weights are like e^(-3000), and
f - γ_top formed by subtraction is zero in any floating-point format. Here each sequence's top value is
subtracted first and its largest remaining exponent factored out: with δ_s = γ_s - γ_top,

    f - γ_top = e^m φ,   q_s (γ_s - f) = e^m c_s,   c_s = q_s δ_s e^(-m) - q_s φ,

where m is the largest score, relative to the top, among the tokens with δ ≠ 0. The largest exponent over
all sequences is factored out next, so every number kept is of order one or kept as its logarithm.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take


@struct.dataclass
class Force:
    """The force on the scores, -∂L/∂a = exp(log_scale) · force, and what its derivative is made of.

    Attributes:
        force: (V,); of order one, sums to zero.
        log_scale: (); -inf if no sequence pulls.
        gross: (); what Σ_s |force_s| would be if no two sequences pulled against each other.
        pull: (R, W); w c of every entry of the bags, w = y g/n in units of exp(log_scale - m).
        turn: (R, W); q - k e^m c/2 of every entry, k = ∂ log g/∂f.
        attention: (R, W); q of every entry, 0 where there is none.
        log_weight: (n,); log g.
        slope: (n,); k.
        modes: (R, W, K); for K > 2 classes, whose `turn` is q, what takes the place of k c cᵀ, see
            `token_curvature`; None for two.
    """

    force: Array
    log_scale: Array
    gross: Array
    pull: Array
    turn: Array
    attention: Array
    log_weight: Array
    slope: Array
    modes: Array | None = None

    @property
    def log_gross(self) -> Float[Array, ""]:
        """Log of the gross force, -inf if no sequence pulls."""
        return self.log_scale + jnp.log(self.gross)


@struct.dataclass
class Logistic:
    """The weight of sequences in the gradient of the logistic loss, g = sigmoid(-m) for m = y f."""

    def __call__(self, agreement: Float[Array, "n"]) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
        """Compute log g and -∂ log g/∂m."""
        return -jax.nn.softplus(agreement), jax.nn.sigmoid(agreement)


LOGISTIC = Logistic()


def token_force(
    corpus: Corpus,
    scores: Float[Array, "V"],
    values: Float[Array, "V"] | Float[Array, "R W"],
    weigh: Callable[[Array], tuple[Array, Array]] = LOGISTIC,
) -> Force:
    """Compute -∂L/∂a_s = (1/n) Σ_X y g q_s (γ_s - f), g = sigmoid(-y f), its exponent kept apart.

    Args:
        corpus: n sequences of two classes over V tokens.
        scores: a = E p, (V,); any spread.
        values: γ = E v, (V,), or of every entry of the bags, (R, W).
        weigh: m = y f, (n,), to log g and -∂ log g/∂m, for another g.

    Returns:
        The force; each sequence's share has full relative precision.

    Source:
        The gradient on p of arXiv 2505.17282; the factoring is this library's.
    """
    bags, labels = corpus.bags, corpus.targets
    token, present = bags.index.astype(jnp.int32), bags.count > 0
    score = jnp.where(present, take(scores, token), -jnp.inf)
    value = take(values, token) if values.ndim == 1 else values
    top = bags.max(score)
    top = jnp.where(top == -jnp.inf, 0, top)  # a sequence without tokens, as padding may hold
    relative = score - bags.spread(top)
    # Tokens may tie for the top; any of their values may be the one subtracted.
    top_value = bags.max(jnp.where(relative == 0, value, -jnp.inf))
    below = value - bags.spread(top_value)
    gap = bags.max(jnp.where(below != 0, relative, -jnp.inf))
    idle = gap == -jnp.inf
    gap = jnp.where(idle, 0, gap)
    # One exponential serves both: tokens that differ in value are scaled by e^(-m), the others need not be.
    scaled = bags.count * jnp.exp(relative - jnp.where(below != 0, bags.spread(gap), 0))
    weight = jnp.where(below != 0, scaled * bags.spread(jnp.exp(gap)), scaled)
    normaliser, moment = bags.sum(weight, below * scaled)
    mean = moment / normaliser
    agreement = labels * (top_value + jnp.exp(gap) * mean)
    log_g, fall = weigh(agreement)
    log_weight = jnp.where(idle, -jnp.inf, gap + log_g)
    largest = log_weight.max()
    share = labels * jnp.exp(log_weight - jnp.where(largest == -jnp.inf, 0, largest))
    slope = -labels * fall
    q = weight / bags.spread(normaliser)
    c = below * scaled / bags.spread(normaliser) - q * bags.spread(mean)
    pull = jnp.where(present, bags.spread(share) * c, 0)
    force, gross = by_token(corpus, pull)
    return Force(
        force=force,
        log_scale=largest - jnp.log(corpus.num_examples),
        gross=gross.sum(),
        pull=pull,
        turn=q - bags.spread(jnp.exp(gap) * slope) * c / 2,
        attention=jnp.where(present, q, 0),
        log_weight=jnp.where(normaliser > 0, log_g, -jnp.inf),
        slope=slope,
    )


def token_curvature(corpus: Corpus, force: Force) -> Float[Array, "V V"]:
    """Compute H = ∂(-∂L/∂a)/∂a in units of the force's exp(log_scale).

    H = Σ_X w (diag(c) - c qᵀ - q cᵀ + k c cᵀ),   w = y g/n,   c = q (γ - f),   k = ∂ log g/∂f,

    and for K > 2 classes, with c = q r·(γ - f) and w = 1/n, in place of w k c cᵀ

    -(1/n) Σ_X Σ_k π_k m_k m_kᵀ,   m_k = q (e_k - π)·(γ - f).

    Args:
        corpus: n sequences over V tokens.
        force: the force at some scores and values.

    Returns:
        (V, V), symmetric, rows sum to zero. On the way it needs two arrays of n V numbers.

    Source:
        Derived from the gradient on p of arXiv 2505.17282.
    """
    # Both cross terms and the square in one product: H = diag - M - Mᵀ, M = Σ_X (w c)(q - k c/2)ᵀ.
    product = dense(corpus, force.pull).T @ dense(corpus, force.turn)
    curvature = jnp.diag(force.force) - product - product.T
    if force.modes is None:
        return curvature
    modes = [dense(corpus, mode) for mode in jnp.moveaxis(force.modes, -1, 0)]
    return curvature - sum(mode.T @ mode for mode in modes)


def direction(params: Any, corpus: Corpus) -> tuple[Float[Array, "d"], Float[Array, ""]]:
    """Compute the unit vector along -∂L/∂p and log ‖∂L/∂p‖, right for gradients like e^(-10000) too.

    Args:
        params: E (V, d), p (d,), v (d,).
        corpus: n sequences of two classes over V tokens.

    Returns:
        The direction (d,) and the log norm; zeros and -inf where the gradient is exactly zero.
    """
    force, log_scale = _force(corpus, params.E @ params.p, params.E @ params.v)
    vector = force @ params.E
    norm = jnp.sqrt(vector @ vector)
    return vector / jnp.where(norm > 0, norm, 1), log_scale + jnp.log(norm)


@sequential_vmap_if_large
def _force(corpus, scores, values):
    whole = token_force(corpus, scores, values)
    return whole.force, whole.log_scale


def by_token(corpus: Corpus, entries: Float[Array, "R W"]) -> tuple[Float[Array, "V"], Float[Array, "V"]]:
    """Sum the entries of all bags by token, and their sizes."""
    gathered = jnp.where(corpus.occurrences.count > 0, take(entries.ravel(), corpus.occurrence_to_bag), 0)
    total, gross = corpus.occurrences.sum(gathered, jnp.abs(gathered))
    return total, gross


def dense(corpus: Corpus, entries: Float[Array, "R W"]) -> Float[Array, "n V"]:
    """Write the entries of all bags into an (n, V) array: a scatter without collisions."""
    bags = corpus.bags
    column = jnp.where(bags.count > 0, bags.index.astype(jnp.int32), corpus.vocab_size)
    empty = jnp.zeros((corpus.num_examples, corpus.vocab_size), entries.dtype)
    return empty.at[bags.owner[:, None], column].set(entries, mode="drop", unique_indices=True)
