"""Joint flow of p and v at large ‖v‖, where v is a function of p, and p moves as if v had converged.

Once ‖v‖ is large, v = r v_mm + O(1), where v_mm is the max-margin v for the tokens s(X) to which the
sequences X attend. A sequence is tight if it is on the margin of v_mm. The multipliers λ, with
Σ λ_s y E_s = v_mm, are the weights w of the tight sequences. With attention q and output f = Σ_i q_i γ_i,

    dp/dτ = Σ_X w_X y Σ_i q_i (γ_i - f) E_i,   γ = E v_mm,   τ = r²/2,

    w_X = λ_s / (number of sequences X' with s(X') = s)   if X is tight, s = s(X),
    w_X = e^(b_X - r (y f_X - 1)), with a constant b_X    otherwise.

A sequence that is not tight has negligible weight until it attends to a mixture of tokens with output on the
margin, y f_X = 1. The sequence then acts as a barrier (a "wall" in the notes) that stops p and becomes
steeper as r grows.

This form neglects two things, which `neglected` bounds at every recorded point. Sequences with the same s(X)
have equal weight only while r (1 - y f_X) is small. This quantity grows if a barrier prevents attention from
converging to a single token. In addition, v differs from r v_mm by δ = O(1), which exerts the force

    (1/r) Σ_X w_X y Σ_i q_i ((E_i - E_s(X))·δ) E_i.

This force matters where two tokens have the same value under v_mm, because there is otherwise no force
between them. See docs/notes/joint_flow.md.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxattn.attention.tops import below_top, first_tokens
from jaxattn.core.arithmetic import nonzero
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.force import score_force
from jaxattn.dynamics.flows.joint_coordinates import JointCoordinates, joint_force
from jaxattn.dynamics.flows.nearest_point import nearest_point

# Multipliers below this fraction of their sum are treated as rounding error.
_NO_MULTIPLIER = 1e-9
# Sequences within this distance of the margin of v_mm cannot be distinguished from tight sequences, which lie
# on it. The same holds for tokens.
_CLEAR = 1e-9
# Minimum steepness of a barrier, in units of max ‖E_s‖ · until_norm / clearance; see `hand_over`.
_STEEP = 32.0
# Neglect the force of a barrier on p if its log-weight is at least this far below the log-weight at y f = 1.
_ACTIVE = 100.0


@struct.dataclass
class LogisticWeights:
    """Weight w of each sequence with margin m = y f: log w = log_weight - steepness (m - 1).

    Attributes:
        log_weight: (n,); log w at m = 1.
        steepness: (n,); 0 for tight sequences.
    """

    log_weight: Array
    steepness: Array

    def __call__(self, agreement: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Compute log w and -∂ log w/∂m for margins m = y f."""
        return self.log_weight - self.steepness * (agreement - 1), self.steepness


class Head(NamedTuple):
    """Max-margin v for the attended tokens; NaN if no v separates them by class.

    Attributes:
        chosen: (R, W) bool; True for the entry of s(X), the token to which X attends.
        token: (n,) int32; s(X).
        coefficients: (V,); ±λ, the signed multipliers, such that v_mm = Eᵀ coefficients.
        tight: (V,) bool; True for tokens with a multiplier. They lie on the margin of v_mm.
        values: (V,); E v_mm, exactly ±1 for tight tokens.
        log_norm: (); log ‖v_mm‖.
    """

    chosen: Array
    token: Array
    coefficients: Array
    tight: Array
    values: Array
    log_norm: Array


class Handover(NamedTuple):
    """Transition from the joint flow to a flow of p alone, with v as a function of p.

    Attributes:
        head: the max-margin direction v_mm at the transition.
        log_scale: (); log r, where v ≈ r v_mm.
        flow: flow of p after the transition, with barriers steep enough for all ‖p‖ up to `until_norm`.
        apart: (R, W); ‖E_i - E_s(X)‖ of each bag entry.
        log_offset: (); log of an upper bound on ‖v - r v_mm‖ after the transition.
        mismatch: (); sine of the angle between dp/dt in the joint flow and in `flow`, or the result of
            `neglected` if that is larger. Infinite if a sequence on the margin of v_mm has no multiplier.
    """

    head: Head
    log_scale: Array
    flow: Coordinates
    apart: Array
    log_offset: Array
    mismatch: Array


def hand_over(flow: JointCoordinates, z: Float[Array, " m"], until_norm: Float[Array, ""]) -> Handover:
    """Build the transition to a flow of p alone at a point z of the joint flow where ‖v‖ is large."""
    corpus, unit = flow.query.corpus, flow.unit
    z_p, z_v = jnp.split(z, 2)
    here, norm = flow.query.moved(z_p), flow.head.norm(z_v, 1.0)
    values = flow.head.moved(z_v).scores
    head = _head(here, values, spread=jnp.log(norm / unit))
    r = norm / jnp.exp(head.log_norm)

    tight = head.tight[head.token]
    sharing = jnp.zeros(corpus.vocab_size).at[head.token].add(1.0)
    share = (jnp.log(nonzero(jnp.abs(head.coefficients))) - jnp.log(nonzero(sharing)))[head.token]
    force = joint_force(corpus, here.scores, values).of_scores
    # Express the weights of tight sequences and of all others in the same unit. For tight sequences, the two
    # units differ only by O(1/r), so use the mean difference.
    log_weight = force.log_weight - jnp.where(tight, force.log_weight - share, 0).sum() / tight.sum()
    (f,) = corpus.bags.sum(force.attention * take(head.values, corpus.bags.index.astype(jnp.int32)))
    clearance = jnp.where(tight, jnp.inf, corpus.targets * head.values[head.token] - 1)
    # e^(-steepness · clearance) must be far below the weakest force along the path, e^(-p·(E_s - E_s')).
    steep = jnp.maximum(r, _STEEP * until_norm / (unit * clearance))
    # If p is in contact with a barrier (r (y f - 1) < 100), preserve the weight at the current point.
    # Otherwise, preserve the weight at y f = 1.
    beyond = corpus.targets * f - 1
    log_weight += jnp.where(r * beyond < _ACTIVE, steep, r) * beyond
    log_weight, steepness = jnp.where(tight, share, log_weight), jnp.where(tight, 0, steep)
    # `score_force` averages over sequences, so cancel the factor 1/n.
    weigh = LogisticWeights(log_weight + jnp.log(corpus.num_examples), steepness)
    # Score differences grow at a rate of at most 2 max ‖E_s‖; only forces against a barrier change faster.
    onwards = here.replace(values=head.values, weigh=weigh, steepest=2 / unit)  # type: ignore[attr-defined]
    u, w = flow.velocity(z)[: len(z_p)], onwards.velocity(here.zero)
    # δ = v - r v_mm settles while ‖v‖ grows. Its present length plus ‖v_mm‖, which allows all margins to
    # change by 1, bounds its later length.
    v_mm = head.coefficients @ here.embeddings
    handover = Handover(
        head=head,
        log_scale=jnp.log(r),
        flow=onwards,
        apart=_distances(here.embeddings, corpus, head.token),
        log_offset=jnp.log(jnp.linalg.norm(flow.head.p(z_v) - r * v_mm) + jnp.exp(head.log_norm)),
        mismatch=here.norm(w - u / nonzero(here.norm(u))),
    )
    log_force = onwards.log_gradient_norm(here.zero)
    error = jnp.maximum(handover.mismatch, neglected(handover, here.zero, handover.log_scale, log_force))
    known = clearance.min() > _CLEAR
    return handover._replace(mismatch=jnp.where(known, error, jnp.inf))


def neglected(
    handover: Handover, z: Float[Array, " m"], log_scale: Float[Array, ""], log_force: Float[Array, ""]
) -> Float[Array, ""]:
    """Bound the relative error of dp/dτ when v is a function of p.

    The result is the larger of two numbers,

        max_X max_i r q_i |γ_i - γ_s(X)|,    Σ_X w_X Σ_i q_i ‖E_i - E_s(X)‖² ‖δ‖ / (r ‖dp/dτ‖),

    in the notation of the module docstring, where X is tight in the first number. The first number,
    multiplied by the number of tokens in X, bounds the error of its weight. The second is the relative
    size of the neglected force of δ = v - r v_mm. The result is infinite if the top token of a tight
    sequence is not s(X). It is also infinite if another sequence attends to a token on the margin of
    v_mm, because its barrier then corresponds to a single token, not a mixture, and recedes like log r.

    Args:
        handover: the transition.
        z: a point of `handover.flow`.
        log_scale: log r.
        log_force: log ‖dp/dτ‖ at this point.
    """
    flow, head, apart = handover.flow, handover.head, handover.apart
    bags, scores = flow.corpus.bags, flow.scores + flow.lift @ z
    present, tight = bags.count > 0, flow.weigh.steepness == 0
    below, value = below_top(flow.corpus, scores), take(head.values, bags.index.astype(jnp.int32))
    count = nonzero(bags.count.astype(scores.dtype))
    log_attention = jnp.where(present, jnp.log(count) - below, -jnp.inf)
    off = jnp.where(apart > 0, jnp.abs(value - bags.spread(take(head.values, head.token))), 0)
    of_weights = log_scale + bags.max(log_attention + jnp.log(off))

    log_weight = score_force(flow.corpus, scores, head.values, flow.weigh).log_weight
    pull = bags.spread(log_weight - jnp.log(flow.corpus.num_examples)) + log_attention
    log_pull = jax.nn.logsumexp(pull + 2 * jnp.log(apart)) + handover.log_offset - log_scale
    of_force = jnp.where(jnp.isneginf(log_pull), -jnp.inf, log_pull - log_force)

    margin = jnp.abs(bags.spread(flow.corpus.targets) * value - 1)
    lost = present & (below == 0) & jnp.where(bags.spread(tight), apart > 0, margin <= _CLEAR)
    error = jnp.exp(jnp.maximum(jnp.where(tight, of_weights, -jnp.inf).max(), of_force))
    return jnp.where(lost.any(), jnp.inf, error)


def _distances(E: Float[Array, "V d"], corpus: Corpus, token: Int[Array, " n"]) -> Float[Array, "R W"]:
    """Return ‖E_i - E_s(X)‖ for each bag entry i, and 0 for padding."""
    bags = corpus.bags
    first = take(E, bags.spread(token)[:, 0])

    def column(tokens: Array) -> Array:
        return jnp.sqrt(jnp.square(take(E, tokens) - first).sum(axis=1))

    apart = jax.lax.map(column, bags.index.astype(jnp.int32).T).T
    return jnp.where(bags.count > 0, apart, 0)


def _head(here: Coordinates, values: Array, spread: Array) -> Head:
    labels, vocab = here.corpus.targets, here.corpus.vocab_size
    chosen, token = _find_attended(here.corpus, here.scores, values, spread)
    sign = jnp.zeros(vocab).at[token].add(1.0 * labels)
    sharing = jnp.zeros(vocab).at[token].add(1.0)
    used, unanimous = sharing > 0, jnp.abs(sign) == sharing
    rows = here.rows
    # Replace unused tokens by a used token, because shapes are static.
    position = jnp.where(used, jnp.arange(vocab), token[0])
    multipliers, _ = nearest_point((jnp.sign(sign)[:, None] * rows * here.unit)[position])
    coefficients = jnp.zeros(vocab).at[position].add(multipliers) * jnp.sign(sign)
    found = rows @ (coefficients @ rows)
    lowest = jnp.where(used, jnp.sign(sign) * found, jnp.inf).min()
    scale = jnp.where((unanimous | ~used).all() & (lowest > 0), lowest, jnp.nan)
    coefficients, found = coefficients / scale, found / scale
    multiplier = jnp.abs(coefficients)
    tight = multiplier > _NO_MULTIPLIER * multiplier.sum()
    # Rounding of equal values would exert a force, and all other forces become smaller than rounding.
    values = jnp.where(tight, jnp.sign(sign), found)
    return Head(chosen, token, coefficients, tight, values, jnp.log(coefficients @ found) / 2)


def _find_attended(
    corpus: Corpus, scores: Array, values: Array, spread: Array
) -> tuple[Bool[Array, "R W"], Int[Array, " n"]]:
    """Find the attended token in each sequence whose value agrees most with the label.

    A token counts as attended if its score is at most `spread` below the top score. In a tight sequence, all
    tokens but one have negligible attention, about e^(-2 spread). In other sequences, multiple tokens may
    form a barrier; the best of them is the token that would be selected without the barrier.

    Returns:
        A mask of these tokens, (R, W), and their ids, (n,).
    """
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    attended = below_top(corpus, scores) <= spread
    agreement = jnp.where(attended, bags.spread(corpus.targets) * take(values, index), -jnp.inf)
    best = attended & (agreement == bags.spread(bags.max(agreement)))
    # Break ties by choosing the first token.
    first = first_tokens(corpus, best, index)
    return best & (index == bags.spread(first)), first
