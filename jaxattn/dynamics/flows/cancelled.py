"""Detection of token pairs whose forces cancel, and of the order of the remaining force.

Let C be the group of tied tokens with the highest scores, D a group below it, and x = e^(a_D - a_C). In a
sequence X that attends to C,

    f = f_X + Σ_i x_i V_i - Σ_ij x_i x_j U_i V_j + ...,    V = U (Γ_D - f_X),

where i and j run over such pairs of groups, f_X is the output for attention to C alone, Γ_D is the mean value
of D, and U is the weight of D at x = 1, relative to the total weight of C. With r = -∂ℓ/∂f and S = ∂²ℓ/∂f²
at f_X, the mean of the losses ℓ is L₀ + Σ_i g_i x_i + ½ Σ_ij H_ij x_i x_j + ..., where

    g_i = -mean_X r·V_i,    H_ij = mean_X [V_i·S V_j + r·(V_i U_j + V_j U_i)].

L₀ is called the tied part of the loss. For given x, the scores of tied tokens adjust until the forces on
their differences balance. The second-order terms that act on p are therefore

    M = H - G K⁻¹ Gᵀ,    G = ∂g/∂y,    K: Hessian of L₀,

in coordinates y of 𝒯, the span of the differences of tied embeddings. A pair with g ≠ 0 exerts a force of
order e^(-gap). A pair with g = 0 is called idle. If M has a nonzero entry for an idle pair, a force of order
e^(-2 gap) remains. If H is nonzero but M is zero, the response of the tied tokens cancels the force at every
order. If H itself is zero, the order is higher than two and unknown.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxattn.attention.tops import first_tokens
from jaxattn.core.arithmetic import nonzero
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.force import LOGISTIC, dense, residual
from jaxattn.dynamics.flows.pairs import MAX_PAIRS, Pairs
from jaxattn.dynamics.flows.ties import first_of

# Maximum number of idle pairs for which second-order terms are computed.
_MAX_CANCELLED = 32
# First-order forces whose sum is at most the first fraction of their sizes are zero up to rounding. Above the
# second one, the sum has three digits and counts as a force. In between, it is unknown whether it is zero: a
# force of this size is negligible at first, and exceeds all others for large ‖p‖.
_CANCELS, _REMAINS = 2e-15, 1e-13
# Second-order terms whose sum is at most this fraction of their sizes count as zero.
_CANCELS_TWICE = 1e-11
# Two values count as equal if their difference, relative to their magnitudes, is at most this.
_EQUAL = 2e-15
# Embedding differences θ count as equal if they differ by less than this fraction of the longest difference.
_SAME = 1e-15


class Cancelled(NamedTuple):
    """Bag entries whose forces cancel to first order.

    Attributes:
        idle: (R, W) bool; True if the first-order forces of the entry's pair cancel.
        pairs: second-order terms of these pairs.
        undecided: () bool; True if it is unknown for some pair whether its forces cancel, or of which order
            the remaining force is, or if there are too many pairs.
    """

    idle: Array
    pairs: Pairs
    undecided: Array


class Tied(NamedTuple):
    """Tied tokens, and how scores depend on the coordinates y of 𝒯.

    𝒯 is the span of the differences of tied embeddings. The module docstring defines the tied part of the
    loss.

    Attributes:
        attended: (R, W) bool; True for the top group of each sequence.
        scores: (V,); part of the scores a that depends on y, at the minimum of the tied part.
        embeddings: (V, d); Q E, the embeddings projected onto the orthogonal complement of 𝒯.
        lift: (V, k); derivative of the scores with respect to y.
        inverse: (k, k); inverse of K, the Hessian of the tied part of the mean loss in y; 0 in unused rows.
    """

    attended: Array
    scores: Array
    embeddings: Array
    lift: Array
    inverse: Array


class _Entries(NamedTuple):
    """Quantities for each bag entry, (R, W), or (R, W, C) with C output columns. See the module docstring.

    Attributes:
        low: token of the entry.
        top: a token with the highest score in its sequence.
        group: index of the entry's group; entries with equal θ = Q (E_low - E_top) form a group, or pair.
        weight: U at x = e^(a_low - a_top), computed from the scores of the first entry of the group.
        below: γ - f_X, set to 0 if it is only rounding error.
        attention: softmax weight q over the attended tokens; 0 for other tokens.
        f: (n, C); outputs.
    """

    low: Array
    top: Array
    group: Array
    weight: Array
    below: Array
    attention: Array
    f: Array


class _Loss(NamedTuple):
    """Derivatives of the loss: r = -∂ℓ/∂f, (n, C), and w and π, (n, C), with ∂²ℓ/∂f² = diag(w) - π πᵀ."""

    r: Array
    weight: Array
    pi: Array

    def times(self, x: Float[Array, "n m C"]) -> Float[Array, "n m C"]:
        pi = self.pi[:, None]
        return self.weight[:, None] * x - pi * (pi * x).sum(axis=-1, keepdims=True)


def cancelled(corpus: Corpus, values: Float[Array, " V *K"], tied: Tied) -> Cancelled:
    """Find entries whose first-order forces on the top group cancel, and compute their second-order terms."""
    entries = _entries(corpus, values, tied)
    idle, doubtful = _idle(corpus, entries, tied.attended, _inert(corpus, values, tied.attended))
    number, tokens, many = _number_pairs(idle, entries)
    pairs, unknown = _second_order(corpus, entries, number, tokens, tied)
    return Cancelled(idle, pairs, doubtful | many | unknown)


def _entries(corpus: Corpus, values: Array, tied: Tied) -> _Entries:
    bags = corpus.bags
    low, present = bags.index.astype(jnp.int32), bags.count > 0
    value = take(values, low)
    value = value[..., None] if value.ndim == 2 else value
    own = take(tied.scores, low)
    token = first_tokens(corpus, tied.attended, low)
    top = jnp.broadcast_to(bags.spread(jnp.where(token < corpus.vocab_size, token, 0)), low.shape)
    apart = jnp.where(present, own - take(tied.scores, top), 0)
    weight = jnp.where(tied.attended, bags.count * jnp.exp(jnp.where(tied.attended, apart, 0)), 0)
    columns = [weight * column for column in jnp.moveaxis(value, -1, 0)]
    total, *sums = bags.sum(weight, *columns, *map(jnp.abs, columns))
    f, size = jnp.split(jnp.stack(sums, axis=-1) / nonzero(total)[:, None], 2, axis=-1)
    below = value - bags.spread(f)
    below = jnp.where(jnp.abs(below) <= _EQUAL * (jnp.abs(value) + bags.spread(size)), 0, below)
    group, first = _groups(take(tied.embeddings, low) - take(tied.embeddings, top), present)
    # Within a group, score differences stay bounded, because they are differences of tied tokens.
    share = jnp.where(present, bags.count * jnp.exp(apart - apart.ravel()[first]), 0)
    return _Entries(
        low=low,
        top=top,
        group=group,
        weight=share / bags.spread(nonzero(total)),
        below=below,
        attention=weight / bags.spread(nonzero(total)),
        f=f,
    )


def _groups(theta: Float[Array, "R W d"], present: Bool[Array, "R W"]) -> tuple[Array, Array]:
    """Group entries with equal θ, up to rounding. Return groups and their first entries, (R, W) each."""
    dim, size = theta.shape[-1], present.size
    # Two projections distinguish the vectors, because sines of integers satisfy no simple linear relation.
    along = jnp.sin(jnp.arange(1.0, 2 * dim + 1)).reshape(2, dim).astype(theta.dtype)
    one, other = jnp.moveaxis(theta @ along.T, -1, 0).reshape(2, size)
    rounding = _SAME * jnp.where(present[..., None], jnp.abs(theta), 0).max() * dim
    one = jnp.where(present.ravel(), one, jnp.inf)
    number = jnp.arange(size, dtype=jnp.int32)
    one, other, order = jax.lax.sort((jnp.round(one / nonzero(rounding)), other, number), num_keys=2)
    new = (jnp.diff(one, prepend=-jnp.inf) > 1) | (jnp.abs(jnp.diff(other, prepend=jnp.inf)) > rounding)
    in_order = jnp.cumsum(new.astype(jnp.int32)) - 1
    group = jnp.zeros(size, jnp.int32).at[order].set(in_order)
    first = jnp.full(size, size, jnp.int32).at[group].min(number)[group]
    return group.reshape(present.shape), first.reshape(present.shape)


def _inert(corpus: Corpus, values: Array, attended: Array) -> Bool[Array, "R W"]:
    """Return the entries whose value equals all attended values of their sequence, which exert no force."""
    bags = corpus.bags
    value = take(values, bags.index.astype(jnp.int32))
    equal = jnp.ones(attended.shape, bool)
    for column in [value] if value.ndim == 2 else list(jnp.moveaxis(value, -1, 0)):
        highest = bags.max(jnp.where(attended, column, -jnp.inf))
        lowest = -bags.max(jnp.where(attended, -column, -jnp.inf))
        equal &= (column == bags.spread(highest)) & (column == bags.spread(lowest))
    return equal


def _idle(
    corpus: Corpus, entries: _Entries, attended: Array, inert: Array
) -> tuple[Bool[Array, "R W"], Bool[Array, ""]]:
    """Return entries whose first-order forces cancel, and whether this is unknown for any entry.

    A pair of inert entries is not idle. Its force is exactly zero at any distance, also close to the top.
    """
    r = corpus.bags.spread(_loss(corpus, entries.f).r)
    terms = entries.weight[..., None] * r * entries.below
    product, size = terms.sum(axis=-1), jnp.abs(terms).sum(axis=-1)
    # Terms that cancel within a sequence leave rounding error. Set it to zero; otherwise it could
    # dominate the other forces when they are small.
    product = jnp.where(jnp.abs(product) <= _EQUAL * size, 0, product)
    rest = (corpus.bags.count > 0) & ~attended
    empty = jnp.zeros(rest.size, product.dtype)
    net = empty.at[entries.group].add(jnp.where(rest, product, 0))
    gross = empty.at[entries.group].add(jnp.where(rest, size, 0))
    share = jnp.abs(net) / nonzero(gross)
    acts = jnp.zeros(rest.size, jnp.int32).at[entries.group].max((rest & ~inert).astype(jnp.int32)) > 0
    doubtful = (share > _CANCELS) & (share <= _REMAINS)
    return rest & (acts & (share <= _CANCELS))[entries.group], doubtful.any()


def _number_pairs(idle: Array, entries: _Entries) -> tuple[Array, tuple[Array, Array], Array]:
    """Number the pairs of idle entries.

    Returns:
        The pair index of each entry, (R, W); the top and low token of each pair, (m,) each; and whether
        there are more than m pairs.
    """
    size = idle.size
    number = jnp.arange(size, dtype=jnp.int32)
    group = entries.group.ravel()
    first = jnp.full(size, size, jnp.int32).at[group].min(jnp.where(idle.ravel(), number, size))
    own = idle.ravel() & (first[group] == number)
    chosen = jnp.pad(first_of(own, min(_MAX_CANCELLED, size)), (0, max(0, _MAX_CANCELLED - size)))
    used = own[chosen] & (jnp.arange(_MAX_CANCELLED) < size)
    table = jnp.full(size, _MAX_CANCELLED, jnp.int32)
    position = jnp.where(used, group[chosen], size)
    table = table.at[position].set(jnp.arange(_MAX_CANCELLED, dtype=jnp.int32), mode="drop")
    top, low = (jnp.where(used, x.ravel()[chosen], 0) for x in (entries.top, entries.low))
    return jnp.where(idle, table[entries.group], _MAX_CANCELLED), (top, low), own.sum() > _MAX_CANCELLED


def _second_order(
    corpus: Corpus,
    entries: _Entries,
    number: Array,
    tokens: tuple[Array, Array],
    tied: Tied,
) -> tuple[Pairs, Array]:
    """Compute the matrix M of second-order terms for the numbered pairs; see the module docstring.

    Also return, as a boolean scalar, whether H_ii is zero for any pair i, or there are too many pairs.
    """
    bags, n = corpus.bags, corpus.num_examples
    loss = _loss(corpus, entries.f)
    owner = jnp.broadcast_to(jnp.minimum(bags.owner, n - 1)[:, None], number.shape)

    def by_pair(x: Array) -> Array:
        empty = jnp.zeros((n, _MAX_CANCELLED, *x.shape[2:]), x.dtype)
        return empty.at[owner, number].add(x, mode="drop")

    weight = by_pair(entries.weight)
    deviation = by_pair(entries.weight[..., None] * entries.below)
    along = (loss.r[:, None] * deviation).sum(axis=-1)
    size = (jnp.abs(loss.r)[:, None] * jnp.abs(deviation)).sum(axis=-1)
    steered = loss.times(deviation)
    cross = along.T @ weight
    direct = (jnp.einsum("nmc,nkc->mk", steered, deviation) + cross + cross.T) / n
    sizes = size.T @ weight
    gross = (jnp.einsum("nmc,nkc->mk", jnp.abs(steered), jnp.abs(deviation)) + sizes + sizes.T) / n
    turning = _turning(corpus, entries, number, tokens, tied.lift, loss, (weight, along, steered)) / n
    response = turning @ tied.inverse @ turning.T
    whole = direct - (response + response.T) / 2
    whole = jnp.where(jnp.abs(whole) <= _CANCELS_TWICE * (gross + jnp.abs(response)), 0, whole)
    own = jnp.diag(gross)
    unknown = (own > 0) & (jnp.abs(jnp.diag(direct)) <= _CANCELS_TWICE * own)
    some = (whole != 0).any(axis=1)
    kept = first_of(some, MAX_PAIRS)
    top, low = (x[kept] for x in tokens)
    whole = whole[kept][:, kept]
    log_size = jnp.where(whole == 0, -jnp.inf, jnp.log(jnp.abs(jnp.where(whole == 0, 1, whole))))
    return Pairs(top, low, log_size, jnp.sign(whole)), unknown.any() | (some.sum() > MAX_PAIRS)


def _turning(
    corpus: Corpus,
    entries: _Entries,
    number: Array,
    tokens: tuple[Array, Array],
    lift: Array,
    loss: _Loss,
    of_pairs: tuple[Array, Array, Array],
) -> Float[Array, "m k"]:
    """Compute n ∂g/∂y for all pairs, with n sequences; see the module docstring for the notation.

    `of_pairs` contains U, r·V and S V for each sequence and pair.
    """
    weight, along, steered = of_pairs
    top, low = tokens
    moved = entries.attention[..., None] * entries.below  # ∂f_X/∂a of each entry
    r = corpus.bags.spread(loss.r)
    pairs = [
        (weight, (r * moved).sum(axis=-1)),
        (along, entries.attention),
        *((steered[..., column], moved[..., column]) for column in range(moved.shape[-1])),
    ]
    products = [(of_pair, dense(corpus, of_entry)) for of_pair, of_entry in pairs]
    by_token = jnp.stack([of_pair.T @ of_token for of_pair, of_token in products]).sum(axis=0)
    sizes = jnp.stack([jnp.abs(of_pair).T @ jnp.abs(of_token) for of_pair, of_token in products]).sum(axis=0)
    own = entries.weight * (r * entries.below).sum(axis=-1)
    by_token = by_token.at[number, entries.low].add(-own, mode="drop")
    sizes = sizes.at[number, entries.low].add(jnp.abs(own), mode="drop")
    # Scores are taken relative to the leaders of both groups.
    total, apart = along.sum(axis=0)[:, None], lift[low] - lift[top]
    turning = by_token @ lift + total * apart
    gross = sizes @ jnp.abs(lift) + jnp.abs(along).sum(axis=0)[:, None] * jnp.abs(apart)
    # Terms that cancel leave rounding error. Set it to zero, because it could dominate other terms of M if
    # these are small.
    return jnp.where(jnp.abs(turning) <= _CANCELS_TWICE * gross, 0, turning)


def _loss(corpus: Corpus, f: Array) -> _Loss:
    labels: Any = corpus.targets
    if corpus.num_classes == 2:
        log_size, fall = LOGISTIC(labels * f[:, 0])
        size = jnp.exp(log_size)
        return _Loss((labels * size)[:, None], (size * fall)[:, None], jnp.zeros_like(f))
    direction, log_size, log_pi = residual(f.T, labels)
    pi = jnp.exp(log_pi).T
    return _Loss((direction * jnp.exp(log_size)).T, pi, pi)
