"""The direction of -∂L/∂p and its derivative, without cancellation or underflow.

For large ‖p‖ every sequence attends to its top token, and the other weights are as small as e^(-3000), so
f - γ_top computed by subtraction is zero in any floating-point format. Here each sequence's top value is
subtracted first and its largest remaining exponent factored out: with δ_s = γ_s - γ_top,

    f - γ_top = e^m φ,   q_s (γ_s - f) = e^m c_s,   c_s = q_s δ_s e^(-m) - q_s φ,

where m is the largest score, relative to the top, among the tokens with δ ≠ 0. The largest exponent over
all sequences is factored out next, so every number is of order one or stored as its logarithm.

K > 2 classes work in the same way. With outputs f ∈ R^K, π = softmax(f) and the residual r = e_y - π, the
force of a sequence on its scores is

    -∂ℓ/∂a_s = q_s r·(γ_s - f),

as for two classes with values r·γ_s. For large ‖p‖ r keeps its relative precision if its size is factored
out, r = (1 - π_y) (e_y - π') with π' the softmax over the other classes; γ_s - f = e^gap c / q_s.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.core.mapping import sum_of_outer_products
from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


@struct.dataclass
class Force:
    """The force on the scores, -∂L/∂a = exp(log_scale) · force, and the terms of its derivative.

    Attributes:
        force: (V,); of order one, sums to zero.
        log_scale: (); -inf if no sequence exerts a force.
        gross: (); Σ_s |force_s| without cancellation between sequences.
        pull: (R, W); w c of every entry of the bags, w = y g/n in units of exp(log_scale - m).
        turn: (R, W); q - k e^m c/2 of every entry, k = ∂ log g/∂f.
        attention: (R, W); q of every entry, 0 for padding.
        log_weight: (n,); log g.
        slope: (n,); k.
        modes: (R, W, K); replaces k c cᵀ for K > 2 classes, whose `turn` is q; see `token_curvature`. None
            for two classes.
        pairs: the force of pairs of tokens whose forces cancel to first order, a `PairForce`, which `force`
            does not include; None without any.
    """

    force: Leaf
    log_scale: Leaf
    gross: Leaf
    pull: Leaf
    turn: Leaf
    attention: Leaf
    log_weight: Leaf
    slope: Leaf
    modes: Leaf = None
    pairs: Leaf = None

    @property
    def total(self) -> Float[Array, " V"]:
        """The force on the scores including that of pairs, (V,)."""
        return self.force if self.pairs is None else self.force + self.pairs.on_tokens(len(self.force))

    @property
    def log_gross(self) -> Float[Array, ""]:
        """Log of the gross force, -inf if no sequence exerts a force."""
        return self.log_scale + jnp.log(self.gross)


@struct.dataclass
class Logistic:
    """The weight of sequences in the gradient of the logistic loss, g = sigmoid(-m) for m = y f."""

    def __call__(self, agreement: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Compute log g and -∂ log g/∂m."""
        return -jax.nn.softplus(agreement), jax.nn.sigmoid(agreement)


LOGISTIC = Logistic()


def token_force(
    corpus: Corpus,
    scores: Float[Array, " V"],
    values: Float[Array, " V"] | Float[Array, "R W"],
    weigh: Callable[[Array], tuple[Array, Array]] = LOGISTIC,
) -> Force:
    """Compute -∂L/∂a_s = (1/n) Σ_X y g q_s (γ_s - f), g = sigmoid(-y f), with its exponent factored out.

    Args:
        corpus: n sequences of two classes over V tokens.
        scores: a = E p, (V,); any spread.
        values: γ = E v, (V,), or of every entry of the bags, (R, W).
        weigh: function of m = y f, (n,), that returns log g and -∂ log g/∂m, for another g.

    Returns:
        The force; each sequence's term has full relative precision.

    Source:
        The gradient on p of arXiv 2505.17282.
    """
    bags, labels = corpus.bags, corpus.targets
    token, present = bags.index.astype(jnp.int32), bags.count > 0
    score = jnp.where(present, take(scores, token), -jnp.inf)
    value = take(values, token) if values.ndim == 1 else values
    top = bags.max(score)
    top = jnp.where(top == -jnp.inf, 0, top)  # a sequence without tokens, from padding
    relative = score - bags.spread(top)
    # Several tokens may tie for the top; the value of any of them can be subtracted.
    top_value = bags.max(jnp.where(relative == 0, value, -jnp.inf))
    below = value - bags.spread(top_value)
    gap = bags.max(jnp.where(below != 0, relative, -jnp.inf))
    idle = gap == -jnp.inf
    gap = jnp.where(idle, 0, gap)
    # One exponential serves both: tokens that differ in value are scaled by e^(-m); others need no scale.
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


def token_curvature(
    corpus: Corpus, force: Force, place: Int[Array, " V"] | None = None, size: int = 0
) -> Float[Array, "k k"]:
    """Compute H = ∂(-∂L/∂a)/∂a in units of the force's exp(log_scale).

    H = Σ_X w (diag(c) - c qᵀ - q cᵀ + k c cᵀ),   w = y g/n,   c = q (γ - f),   k = ∂ log g/∂f,

    and for K > 2 classes, with c = q r·(γ - f) and w = 1/n, in place of w k c cᵀ

    -(1/n) Σ_X Σ_k π_k m_k m_kᵀ,   m_k = q (e_k - π)·(γ - f).

    Args:
        corpus: n sequences over V tokens.
        force: the force at some scores and values.
        place: index of the row and column of every token, `size` or more for tokens to omit. None keeps all
            tokens in their order.
        size: number of rows and columns of the result with `place`.

    Returns:
        (V, V), symmetric with rows that sum to zero, or (size, size) of it. Temporary memory: two arrays of n
        V numbers, or of n size.

    Source:
        Derived from the gradient on p of arXiv 2505.17282.
    """
    # Both cross terms and the square in one product: H = diag - M - Mᵀ, M = Σ_X (w c)(q - k c/2)ᵀ.
    spread = partial(dense, corpus, place=place, size=size)
    product = sum_of_outer_products(spread(force.pull), spread(force.turn))
    own = force.force
    if place is not None:
        own = jnp.zeros(size, own.dtype).at[place].set(own, mode="drop", unique_indices=True)
    curvature = jnp.diag(own) - product - product.T
    for mode in _each(force.modes):
        curvature -= sum_of_outer_products(spread(mode), spread(mode))
    if force.pairs is None:
        return curvature
    return force.pairs.add_curvature(curvature, jnp.arange(len(curvature)) if place is None else place)


def curvature_product(corpus: Corpus, force: Force, x: Float[Array, " V"]) -> Float[Array, " V"]:
    """Multiply `token_curvature` with a vector, in two passes over the entries of the bags."""
    bags = corpus.bags
    there = jnp.where(bags.count > 0, take(x, bags.index.astype(jnp.int32)), 0)
    pull, turn = force.pull, jnp.where(bags.count > 0, force.turn, 0)
    pulled, turned = bags.sum(pull * there, turn * there)
    entries = pull * bags.spread(turned) + turn * bags.spread(pulled)
    for mode in _each(force.modes):
        (along,) = bags.sum(mode * there)
        entries += mode * bags.spread(along)
    product = force.force * x - _summed(corpus, entries)
    return product if force.pairs is None else product + force.pairs.product(x)


def curvature_bound(corpus: Corpus, force: Force, lengths: Float[Array, " V"]) -> Float[Array, " V"]:
    """Compute upper bounds on the row sums of |H_st| ‖E_s‖ ‖E_t‖, where H is `token_curvature`.

    Args:
        corpus: n sequences over V tokens.
        force: the force at some scores and values.
        lengths: ‖E_s‖, (V,).

    Returns:
        (V,).
    """
    bags = corpus.bags
    length = take(lengths, bags.index.astype(jnp.int32))
    pull, turn = jnp.abs(force.pull), jnp.where(bags.count > 0, jnp.abs(force.turn), 0)
    pulled, turned = bags.sum(pull * length, turn * length)
    entries = pull * bags.spread(turned) + turn * bags.spread(pulled)
    for mode in _each(force.modes):
        (along,) = bags.sum(jnp.abs(mode) * length)
        entries += jnp.abs(mode) * bags.spread(along)
    rows = jnp.abs(force.force) * lengths + _summed(corpus, entries)
    return lengths * (rows if force.pairs is None else rows + force.pairs.bound(lengths))


def _each(modes: Array | None) -> list[Array]:
    return [] if modes is None else list(jnp.moveaxis(modes, -1, 0))


def direction(params: Any, corpus: Corpus) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """Compute the unit vector along -∂L/∂p and log ‖∂L/∂p‖, accurate even for gradients like e^(-10000).

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
def _force(corpus: Corpus, scores: Array, values: Array) -> tuple[Array, Array]:
    whole = token_force(corpus, scores, values)
    return whole.force, whole.log_scale


def by_token(corpus: Corpus, entries: Float[Array, "R W"]) -> tuple[Float[Array, " V"], Float[Array, " V"]]:
    """Sum the entries of all bags by token, and their sizes."""
    gathered = _gathered(corpus, entries)
    total, gross = corpus.occurrences.sum(gathered, jnp.abs(gathered))
    return total, gross


def _summed(corpus: Corpus, entries: Array) -> Array:
    return corpus.occurrences.sum(_gathered(corpus, entries))[0]


def _gathered(corpus: Corpus, entries: Array) -> Array:
    return jnp.where(corpus.occurrences.count > 0, take(entries.ravel(), corpus.occurrence_to_bag), 0)


def dense(
    corpus: Corpus, entries: Float[Array, "R W"], place: Int[Array, " V"] | None = None, size: int = 0
) -> Float[Array, "n k"]:
    """Write the entries of all bags into an (n, V) array, as a scatter without collisions.

    With `place` and `size` as in `token_curvature` it is (n, size).
    """
    bags = corpus.bags
    index, columns = bags.index.astype(jnp.int32), corpus.vocab_size
    if place is not None:
        index, columns = take(place, index), size
    column = jnp.where(bags.count > 0, index, columns)
    empty = jnp.zeros((corpus.num_examples, columns), entries.dtype)
    return empty.at[bags.owner[:, None], column].set(entries, mode="drop", unique_indices=True)


def score_force(
    corpus: Corpus,
    scores: Float[Array, " V"],
    values: Float[Array, " V *K"] | Float[Array, "R W *K"],
    weigh: Callable[[Array], tuple[Array, Array]] = LOGISTIC,
) -> Force:
    """Compute -∂L/∂a: `token_force` for two classes, `class_force` for more, which ignores `weigh`."""
    if corpus.num_classes == 2:
        return token_force(corpus, scores, values, weigh)
    return class_force(corpus, scores, values)


def residual(
    f: Float[Array, "n K"], labels: Int[Array, " n"]
) -> tuple[Float[Array, "n K"], Float[Array, " n"], Float[Array, "n K"]]:
    """Compute r = e_y - π = e^log_size direction, and log π.

    Args:
        f: (n, K); outputs.
        labels: (n,); y, 0 .. K-1.

    Returns:
        direction (n, K), e_y minus the softmax over the other classes; log_size (n,); log π (n, K).
    """
    own = jax.nn.one_hot(labels, f.shape[1], dtype=f.dtype)
    log_pi = jax.nn.log_softmax(f, axis=1)
    log_size = jax.nn.logsumexp(jnp.where(own > 0, -jnp.inf, log_pi), axis=1)
    others = jnp.where(own > 0, 0, jnp.exp(log_pi - log_size[:, None]))
    return own - others, log_size, log_pi


def class_force(
    corpus: Corpus, scores: Float[Array, " V"], values: Float[Array, "V K"] | Float[Array, "R W K"]
) -> Force:
    """Compute -∂L/∂a_s = (1/n) Σ_X q_s r·(γ_s - f) of mean cross-entropy, with its exponent factored out.

    Args:
        corpus: n sequences of K > 2 classes over V tokens.
        scores: a, (V,); any spread.
        values: γ, (V, K), or of every entry of the bags, (R, W, K).

    Returns:
        The force. Its `gross` sums the K terms of r·(γ_s - f) separately, because they may cancel too.
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

    The sum of their squares is the term that -∂r/∂f = Σ_k π_k (e_k - π)(e_k - π)ᵀ subtracts from the
    curvature.
    """
    own = direction > 0
    leaning = c - (bags.spread(jnp.exp(log_pi)) * c).sum(axis=-1, keepdims=True)
    # (e_y - π)·c = (1 - π_y) direction·c, without cancellation.
    steered = (bags.spread(direction) * c).sum(axis=-1, keepdims=True)
    log_factor = (log_pi + log_unit[:, None]) / 2 + jnp.where(own, log_size[:, None], 0)
    factor = jnp.where(jnp.isfinite(log_unit)[:, None], jnp.exp(log_factor), 0)
    return bags.spread(factor) * jnp.where(bags.spread(own), steered, leaning)
