"""Direction of -∂L/∂p and its derivative, free of cancellation and underflow.

For large ‖p‖, every sequence attends to its top token, and all other weights may be as small as e^(-3000), so
the difference between the output f and the value γ_top of the top token would be zero in floating point. Here
γ_top is subtracted from all values first, and the largest remaining exponential is factored out. With
attention q and δ_s = γ_s - γ_top,

    f - γ_top = e^m φ,   q_s (γ_s - f) = e^m c_s,   c_s = q_s δ_s e^(-m) - q_s φ,

where m is the largest score, relative to the top, among the tokens with δ ≠ 0. The largest exponential over
all sequences is factored out next, so that every number is either of order one or stored as a logarithm.

For K > 2 classes, let f ∈ R^K be the outputs, π = softmax(f), and r = e_y - π the residual. The force of a
sequence on its scores is then

    -∂ℓ/∂a_s = q_s r·(γ_s - f),

as for two classes with values r·γ_s. For large ‖p‖, r retains its relative precision if its magnitude is
factored out: r = (1 - π_y) (e_y - π'), where π' is the softmax over the classes other than y.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.attention.tops import averages, score_entries, top_scores
from jaxattn.core.arithmetic import sum_of_outer_products
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


@no_type_check
@struct.dataclass
class Force:
    """Force on the scores, -∂L/∂a = exp(log_scale) · force, and the terms of its derivative.

    See the module docstring for m, c and q; g is the weight of a sequence in the gradient.

    Attributes:
        force: (V,); of order one; sums to zero.
        log_scale: (); -inf if no sequence exerts a force.
        gross: (); Σ_s |force_s| without cancellation between sequences.
        pull: (R, W); w c of each bag entry, with w = y g/n in units of exp(log_scale - m).
        turn: (R, W); q - k e^m c/2 of each bag entry, with k = ∂ log g/∂f.
        attention: (R, W); attention q of each bag entry, 0 for padding.
        log_weight: (n,); log g.
        slope: (n,); k.
        modes: (R, W, K); terms that replace k c cᵀ for K > 2 classes, in which case `turn` is q; see
            `token_curvature`. None for two classes.
        pairs: a `PairForce`: the force of token pairs whose forces cancel to first order, not included in
            `force`. None if there are no such pairs.
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
    pairs: Any = None  # `pairs` imports this module

    @property
    def total(self) -> Float[Array, " V"]:
        """Force on the scores, (V,), including the force of token pairs."""
        return self.force if self.pairs is None else self.force + self.pairs.on_tokens(len(self.force))

    @property
    def log_gross(self) -> Float[Array, ""]:
        """Log of the gross force, before cancellation between sequences; -inf if there is no force."""
        return self.log_scale + jnp.log(self.gross)


@struct.dataclass
class Logistic:
    """Weights of the sequences in the gradient of the logistic loss, g = sigmoid(-m) for m = y f."""

    def __call__(self, agreement: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Compute log g and -∂ log g/∂m for margins m = y f."""
        return -jax.nn.softplus(agreement), jax.nn.sigmoid(agreement)


LOGISTIC = Logistic()


def score_force(
    corpus: Corpus,
    scores: Float[Array, " V"],
    values: Float[Array, " V *K"] | Float[Array, "R W *K"],
    weigh: Callable[[Array], tuple[Array, Array]] = LOGISTIC,
) -> Force:
    """Compute -∂L/∂a_s = (1/n) Σ_X q_s r·(γ_s - f), where r = -∂ℓ/∂f, with its magnitude factored out.

    For two classes, r = y g with g = sigmoid(-y f); for K > 2 classes, r = e_y - softmax(f).

    Args:
        corpus: n sequences over V tokens.
        scores: a = E p, of any finite spread.
        values: γ per token, or per bag entry.
        weigh: function of m = y f that returns log g and -∂ log g/∂m for another weight g; ignored for K > 2
            classes.

    Returns:
        The force. For two classes, the term from each sequence has full relative precision. For K > 2
        classes, `gross` sums the absolute values of the K terms of r·(γ_s - f), because these may also
        cancel.
    """
    bags, two = corpus.bags, corpus.num_classes == 2
    present = bags.count > 0
    score = score_entries(corpus, scores)
    relative = score - bags.spread(top_scores(bags, score))
    of_token = values.ndim == (1 if two else 2)
    value = take(values, bags.index.astype(jnp.int32)) if of_token else values
    columns = [value] if two else list(jnp.moveaxis(value, -1, 0))
    # Several tokens may tie for the top. Subtract the value of one of them; any one will do.
    reference = [bags.max(jnp.where(relative == 0, column, -jnp.inf)) for column in columns]
    below = [column - bags.spread(x) for column, x in zip(columns, reference, strict=True)]
    near = averages(bags, relative, below)
    f = [x + jnp.exp(near.gap) * mean for x, mean in zip(reference, near.mean, strict=True)]
    if two:
        log_size, fall = weigh(corpus.targets * f[0])
        direction, slope = corpus.targets[None], -corpus.targets * fall
    else:
        direction, log_size, log_pi = residual(jnp.stack(f), corpus.targets)
        slope = jnp.zeros_like(log_size)
    log_weight = jnp.where(near.idle, -jnp.inf, near.gap + log_size)
    largest = log_weight.max()
    log_share = log_weight - jnp.where(largest == -jnp.inf, 0, largest)
    q = jnp.where(present, near.attention, 0)
    c = [jnp.where(present, column, 0) for column in near.deviation]
    parts = [bags.spread(jnp.exp(log_share) * r) * x for r, x in zip(direction, c, strict=True)]
    pull = sum(parts[1:], parts[0])
    # A single pass sums both the force and its absolute value.
    on_tokens, gross = by_token(corpus, pull)
    force = Force(
        force=on_tokens,
        log_scale=largest - jnp.log(corpus.num_examples),
        gross=gross.sum() if two else jnp.stack([jnp.abs(part).sum() for part in parts]).sum(),
        pull=pull,
        turn=q,
        attention=q,
        log_weight=jnp.where(near.normaliser > 0, log_size, -jnp.inf),
        slope=slope,
    )
    if two:
        turn = q - bags.spread(jnp.exp(near.gap) * slope) * c[0] / 2
        return force.replace(turn=turn)  # type: ignore[attr-defined]
    log_unit = log_share + near.gap - log_size
    modes = _modes(bags, c, direction, log_pi, log_size, log_unit)
    return force.replace(modes=modes)  # type: ignore[attr-defined]


def token_curvature(
    corpus: Corpus, force: Force, position: Int[Array, " V"] | None = None, size: int = 0
) -> Float[Array, "k k"]:
    """Compute the derivative of the force, H = ∂(-∂L/∂a)/∂a, in units of exp(force.log_scale).

        H = Σ_X w (diag(c) - c qᵀ - q cᵀ + k c cᵀ),   w = y g/n,   c = q (γ - f),   k = ∂ log g/∂f,

    where g is the weight of sequence X in the gradient. For K > 2 classes, c = q r·(γ - f), w = 1/n, and
    w k c cᵀ is replaced by

        -(1/n) Σ_X Σ_j π_j m_j m_jᵀ,   m_j = q (e_j - π)·(γ - f),

    with a sum over classes j. With `position`, the result has `size` rows and columns: token s is at
    index position[s], and is omitted if position[s] ≥ `size`. Allocates two temporary arrays of shape
    (n, V), or (n, size) with `position`.

    Returns:
        A symmetric matrix, (V, V), whose rows sum to zero; with `position`, its entries for the chosen
        tokens, (size, size).
    """
    # Compute cross terms and square in a single product: H = diag - M - Mᵀ, M = Σ_X (w c)(q - k c/2)ᵀ.
    spread = partial(dense, corpus, position=position, size=size)
    product = sum_of_outer_products(spread(force.pull), spread(force.turn))
    own = force.force
    if position is not None:
        own = jnp.zeros(size, own.dtype).at[position].set(own, mode="drop", unique_indices=True)
    curvature = jnp.diag(own) - product - product.T
    for mode in _each(force.modes):
        curvature -= sum_of_outer_products(spread(mode), spread(mode))
    if force.pairs is None:
        return curvature
    return force.pairs.add_curvature(curvature, jnp.arange(len(curvature)) if position is None else position)


def curvature_product(corpus: Corpus, force: Force, x: Float[Array, " V"]) -> Float[Array, " V"]:
    """Multiply the matrix H from `token_curvature` by a vector, in two passes over the bag entries."""
    bags = corpus.bags
    there = jnp.where(bags.count > 0, take(x, bags.index.astype(jnp.int32)), 0)
    pull, turn = force.pull, jnp.where(bags.count > 0, force.turn, 0)
    force_on_z, turned = bags.sum(pull * there, turn * there)
    entries = pull * bags.spread(turned) + turn * bags.spread(force_on_z)
    for mode in _each(force.modes):
        (along,) = bags.sum(mode * there)
        entries += mode * bags.spread(along)
    product = force.force * x - _sum_tokens(corpus, entries)
    return product if force.pairs is None else product + force.pairs.product(x)


def curvature_bound(corpus: Corpus, force: Force, lengths: Float[Array, " V"]) -> Float[Array, " V"]:
    """Compute upper bounds on the row sums Σ_t |H_st| ‖E_s‖ ‖E_t‖, where H is from `token_curvature`."""
    bags = corpus.bags
    length = take(lengths, bags.index.astype(jnp.int32))
    pull, turn = jnp.abs(force.pull), jnp.where(bags.count > 0, jnp.abs(force.turn), 0)
    force_on_z, turned = bags.sum(pull * length, turn * length)
    entries = pull * bags.spread(turned) + turn * bags.spread(force_on_z)
    for mode in _each(force.modes):
        (along,) = bags.sum(jnp.abs(mode) * length)
        entries += jnp.abs(mode) * bags.spread(along)
    rows = jnp.abs(force.force) * lengths + _sum_tokens(corpus, entries)
    return lengths * (rows if force.pairs is None else rows + force.pairs.bound(lengths))


def _each(modes: Array | None) -> list[Array]:
    return [] if modes is None else list(jnp.moveaxis(modes, -1, 0))


def direction(params: Any, corpus: Corpus) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """Compute the unit vector along -∂L/∂p, and log ‖∂L/∂p‖. Both are accurate even if ‖∂L/∂p‖ is e^(-10000).

    If the gradient is exactly zero, the results are zeros and -inf. `corpus` must have two classes.
    """
    force, log_scale = _force(corpus, params.E @ params.p, params.E @ params.v)
    vector = force @ params.E
    norm = jnp.sqrt(vector @ vector)
    return vector / jnp.where(norm > 0, norm, 1), log_scale + jnp.log(norm)


@sequential_vmap_if_large
def _force(corpus: Corpus, scores: Array, values: Array) -> tuple[Array, Array]:
    whole = score_force(corpus, scores, values)
    return whole.force, whole.log_scale


def by_token(corpus: Corpus, entries: Float[Array, "R W"]) -> tuple[Float[Array, " V"], Float[Array, " V"]]:
    """Return the sums of per-entry values, and of their absolute values, over all entries of each token."""
    gathered = _by_occurrence(corpus, entries)
    total, gross = corpus.occurrences.sum(gathered, jnp.abs(gathered))
    return total, gross


def _sum_tokens(corpus: Corpus, entries: Array) -> Array:
    return corpus.occurrences.sum(_by_occurrence(corpus, entries))[0]


def _by_occurrence(corpus: Corpus, entries: Array) -> Array:
    return jnp.where(corpus.occurrences.count > 0, take(entries.ravel(), corpus.occurrence_to_bag), 0)


def dense(
    corpus: Corpus, entries: Float[Array, "R W"], position: Int[Array, " V"] | None = None, size: int = 0
) -> Float[Array, "n k"]:
    """Scatter the bag entries into a dense array, (n, V).

    With `position` and `size`, as in `token_curvature`, the result has shape (n, size).
    """
    bags = corpus.bags
    index, columns = bags.index.astype(jnp.int32), corpus.vocab_size
    if position is not None:
        index, columns = take(position, index), size
    column = jnp.where(bags.count > 0, index, columns)
    empty = jnp.zeros((corpus.num_examples, columns), entries.dtype)
    return empty.at[bags.owner[:, None], column].set(entries, mode="drop", unique_indices=True)


def residual(
    f: Float[Array, "K n"], labels: Int[Array, " n"]
) -> tuple[Float[Array, "K n"], Float[Array, " n"], Float[Array, "K n"]]:
    """Compute r = e_y - π, factored as exp(log_size) · direction, and log π, where π = softmax(f).

    Args:
        f: (K, n); outputs.
        labels: (n,); class indices y, 0 to K-1.

    Returns:
        direction (K, n), e_y minus the softmax over the classes other than y; log_size (n,); log π (K, n).
    """
    own = jax.nn.one_hot(labels, len(f), dtype=f.dtype, axis=0)
    log_pi = jax.nn.log_softmax(f, axis=0)
    log_size = jax.nn.logsumexp(jnp.where(own > 0, -jnp.inf, log_pi), axis=0)
    others = jnp.where(own > 0, 0, jnp.exp(log_pi - log_size))
    return own - others, log_size, log_pi


def _modes(
    bags: Ragged, c: list[Array], direction: Array, log_pi: Array, log_size: Array, log_unit: Array
) -> Float[Array, "R W K"]:
    """Compute √(π_k) (e_k - π)·(γ_s - f) q_s for all classes k, in units of √(e^log_unit).

    Here π = softmax(f). The curvature contains the sum of the outer products of these terms, because

        -∂r/∂f = Σ_k π_k (e_k - π)(e_k - π)ᵀ.
    """
    own = direction > 0
    mean = sum(bags.spread(jnp.exp(log_k)) * x for log_k, x in zip(log_pi, c, strict=True))
    # (e_y - π)·c = (1 - π_y) direction·c, without cancellation.
    steered = sum(bags.spread(r) * x for r, x in zip(direction, c, strict=True))
    log_factor = (log_pi + log_unit) / 2 + jnp.where(own, log_size, 0)
    factor = jnp.where(jnp.isfinite(log_unit), jnp.exp(log_factor), 0)
    modes = [
        bags.spread(factor[k]) * jnp.where(bags.spread(own[k]), steered, x - mean) for k, x in enumerate(c)
    ]
    return jnp.stack(modes, axis=-1)
