"""The direction of -∂L/∂p and its derivative, without cancellation or underflow.

Late in training every sequence has settled on its top token, the other weights are like e^(-3000), and
γ_top - f, formed by subtraction, is zero in any floating-point format. Here each sequence's top value is
subtracted first and its largest remaining exponent factored out: with δ_i = γ_i - γ_top,

    f - γ_top = e^m φ,   c_i = q_i (γ_i - f) = e^m (w_i - q_i φ),   w_i = q_i δ_i e^(-m) = O(1),

where m is the largest score below the top among tokens with δ ≠ 0. The largest exponent over sequences
is factored out next, so that every number kept is of order one and every exponent is kept as such.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take


@struct.dataclass
class Attention:
    """What the sequences did with scores and values, all (n,): enough to weigh every token again.

    Attributes:
        top: largest score of the sequence.
        value: value γ_top of the token that has it, the largest such value at a tie.
        gap: m ≤ 0, score of the runner-up above; 0 if every value equals γ_top.
        normaliser: Σ_i count_i exp(a_i - top).
        mean: φ = e^(-m) (f - γ_top).
        weight: y g / n up to the common factor, times e^m.
        slope: ∂ log g / ∂f = -y (1 - g) with g = sigmoid(-y f).
    """

    top: Array
    value: Array
    gap: Array
    normaliser: Array
    mean: Array
    weight: Array
    slope: Array


@struct.dataclass
class Force:
    """The force -∂L/∂a = exp(log_scale) · force on the scores.

    Attributes:
        force: (V,); sums to zero, of order one.
        log_scale: (); log of the common factor, -inf if the force is exactly zero.
        gross: (); what Σ_s |force_s| would be if no two sequences pulled against each other.
        attention: what the derivative is made of.
    """

    force: Array
    log_scale: Array
    gross: Array
    attention: Attention


def token_force(corpus: Corpus, scores: Float[Array, "V"], values: Float[Array, "V"]) -> Force:
    """Compute -∂L/∂a_s = (1/n) Σ_X y g q_s (γ_s - f), g = sigmoid(-y f), with its exponent apart.

    Args:
        corpus: n sequences of two classes over V tokens.
        scores: a = E p, (V,); any spread.
        values: γ = E v, (V,).

    Returns:
        The force; every entry has full relative precision unless sequences cancel each other.
    """
    bags = corpus.bags
    token = bags.index.astype(jnp.int32)
    present = bags.count > 0
    score, value = jnp.where(present, take(scores, token), -jnp.inf), take(values, token)
    top = bags.max(score)
    top = jnp.where(top > -jnp.inf, top, 0)
    top_value = bags.max(jnp.where(present & (score == bags.spread(top)), value, -jnp.inf))
    top_value = jnp.where(top_value > -jnp.inf, top_value, 0)
    gap = bags.max(jnp.where(value != bags.spread(top_value), score, -jnp.inf)) - top
    pulls = gap > -jnp.inf
    gap = jnp.where(pulls, gap, 0)
    normaliser, moment = bags.sum(*_weigh(bags.count, score, value, *map(bags.spread, (top, top_value, gap))))
    mean = moment / normaliser
    agreement = corpus.labels * (top_value + jnp.exp(gap) * mean)
    log_weight = jnp.where(pulls, gap - jax.nn.softplus(agreement), -jnp.inf)
    largest = log_weight.max()
    largest = jnp.where(largest > -jnp.inf, largest, 0)
    attention = Attention(
        top=top,
        value=top_value,
        gap=gap,
        normaliser=normaliser,
        mean=mean,
        weight=corpus.labels * jnp.exp(log_weight - largest),
        slope=-corpus.labels * jax.nn.sigmoid(agreement),
    )
    force, gross = _collect(corpus, scores, values, attention)
    return Force(
        force=force,
        log_scale=jnp.where(gross > 0, largest - jnp.log(corpus.num_sequences), -jnp.inf),
        gross=gross,
        attention=attention,
    )


def token_curvature(
    corpus: Corpus, scores: Float[Array, "V"], values: Float[Array, "V"], force: Force
) -> Float[Array, "V V"]:
    """Compute H = ∂(-∂L/∂a)/∂a in units of the force's own exp(log_scale).

    H = Σ_X w (diag(c) - c qᵀ - q cᵀ + k c cᵀ),   w = y g/n,   k = ∂ log g/∂f,   c = q (γ - f).

    Args:
        corpus: n sequences of two classes over V tokens.
        scores: a, (V,).
        values: γ, (V,).
        force: the force at these scores and values.

    Returns:
        (V, V), symmetric, rows and columns sum to zero. Needs two arrays of n V numbers.

    Source:
        Differentiated by hand from the gradient on p of arXiv 2505.17282.
    """
    bags, attention = corpus.bags, force.attention
    token = bags.index.astype(jnp.int32)
    top, value, gap, normaliser, mean, weight, slope = map(
        bags.spread,
        (
            attention.top,
            attention.value,
            attention.gap,
            attention.normaliser,
            attention.mean,
            attention.weight,
            attention.slope,
        ),
    )
    q, moved = _weigh(bags.count, take(scores, token), take(values, token), top, value, gap)
    q, c = q / normaliser, (moved - q * mean) / normaliser
    # Both cross terms and the square in one product: M + Mᵀ with M = Σ_X (w c)(q - k c / 2)ᵀ.
    product = _dense(corpus, weight * c).T @ _dense(corpus, q - slope * jnp.exp(gap) * c / 2)
    return jnp.diag(force.force) - product - product.T


def direction(params, corpus: Corpus) -> tuple[Float[Array, "d"], Float[Array, ""]]:
    """Compute the unit vector along -∂L/∂p and log ‖∂L/∂p‖, right for gradients like e^(-10000) too.

    Args:
        params: E (V, d), p (d,), v (d,).
        corpus: n sequences of two classes over V tokens.

    Returns:
        The direction (d,) and the log norm; zeros and -inf where the gradient is exactly zero.
    """
    pull = token_force(corpus, params.E @ params.p, params.E @ params.v)
    vector = pull.force @ params.E
    norm = jnp.linalg.norm(vector)
    return vector / jnp.where(norm > 0, norm, 1), pull.log_scale + jnp.log(norm)


def _weigh(count, score, value, top, top_value, gap):
    """Weigh entries: count exp(a - top), and δ count exp(a - top - gap), with one exponential for both."""
    below = value - top_value
    moves = below != 0
    relative = jnp.where(count > 0, score - top, -jnp.inf)
    weight = count * jnp.exp(jnp.where(moves, relative - gap, relative))
    return jnp.where(moves, weight * jnp.exp(gap), weight), below * weight


def _collect(corpus, scores, values, attention):
    """Sum w c over the sequences that hold a token, and |w c| over everything."""
    layout = corpus.occurrences
    sequence = layout.index.astype(jnp.int32)
    top, value, gap, mean, share = (
        take(x, sequence)
        for x in (
            attention.top,
            attention.value,
            attention.gap,
            attention.mean,
            attention.weight / attention.normaliser,
        )
    )
    weight, moved = _weigh(layout.count, layout.spread(scores), layout.spread(values), top, value, gap)
    pull = share * (moved - weight * mean)
    force, gross = layout.sum(pull, jnp.abs(pull))
    return force, gross.sum()


def _dense(corpus, entries):
    """Write the entries of all bags into an (n, V) array; a scatter without collisions."""
    bags = corpus.bags
    column = jnp.where(bags.count > 0, bags.index.astype(jnp.int32), corpus.vocab_size)
    empty = jnp.zeros((corpus.num_sequences, corpus.vocab_size), entries.dtype)
    return empty.at[bags.owner[:, None], column].set(entries, mode="drop", unique_indices=True)
