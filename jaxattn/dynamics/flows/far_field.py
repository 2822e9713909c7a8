"""Joint flow of p and v at large ‖v‖, where v is a function of p, and p moves as if v had converged.

Once ‖v‖ is large, v = r v_mm + O(1), where v_mm is the max-margin v for the tokens s(X) to which the
sequences X attend. A sequence is tight if it is on the margin of v_mm. The multipliers λ, with
Σ λ_s y E_s = v_mm, are the weights w of the tight sequences. With attention q and output f = Σ_i q_i γ_i,

    dp/dτ = Σ_X w_X y Σ_i q_i (γ_i - f) E_i,   γ = E v_mm,   τ = r²/2,

    w_X = λ_s / (number of sequences X' with s(X') = s)   if X is tight, s = s(X),
    w_X = e^(b_X - r (y f_X - 1)), with a constant b_X    otherwise.

A sequence that is not tight has negligible weight until it attends to a mixture of tokens with output on the
margin, y f_X = 1. The sequence then acts as a barrier (a "wall" in the notes) that stops p and becomes
steeper as r grows. Sequences with the same s(X) have equal weight only while r (1 - y f_X) is small. This
quantity grows if a barrier prevents attention from converging to a single token. See
docs/notes/joint_flow.md.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxattn.attention.tops import below_top, first_tokens
from jaxattn.core.mapping import nonzero
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.joint_coordinates import JointCoordinates, joint_force
from jaxattn.dynamics.flows.nearest_point import nearest_point

# Multipliers below this fraction of their sum are treated as rounding error.
_NO_MULTIPLIER = 1e-9
# Sequences within this distance of the margin of v_mm cannot be distinguished from tight sequences, which lie
# on it.
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
        values: (V,); E v_mm.
        log_norm: (); log ‖v_mm‖.
    """

    chosen: Array
    token: Array
    coefficients: Array
    values: Array
    log_norm: Array


class Handover(NamedTuple):
    """Transition from the joint flow to a flow of p alone, with v as a function of p.

    Attributes:
        head: the max-margin direction v_mm at the transition.
        log_scale: (); log r, where v ≈ r v_mm.
        flow: flow of p after the transition, with barriers steep enough for all ‖p‖ up to `until_norm`.
        mismatch: (); sine of the angle between dp/dt in the joint flow and in `flow`, or the result of
            `neglected` if that is larger. Infinite if a sequence on the margin of v_mm has no multiplier.
    """

    head: Head
    log_scale: Array
    flow: Coordinates
    mismatch: Array


def hand_over(flow: JointCoordinates, z: Float[Array, " m"], until_norm: Float[Array, ""]) -> Handover:
    """Build the transition to a flow of p alone at a point z of the joint flow where ‖v‖ is large."""
    corpus, unit = flow.query.corpus, flow.unit
    z_p, z_v = jnp.split(z, 2)
    here, norm = flow.query.moved(z_p), flow.head.norm(z_v, 1.0)
    values = flow.head.moved(z_v).scores
    head = _head(here, values, spread=jnp.log(norm / unit))
    r = norm / jnp.exp(head.log_norm)

    multiplier = jnp.abs(head.coefficients)
    tight = (multiplier > _NO_MULTIPLIER * multiplier.sum())[head.token]
    sharing = jnp.zeros(corpus.vocab_size).at[head.token].add(1.0)
    share = (jnp.log(nonzero(multiplier)) - jnp.log(nonzero(sharing)))[head.token]
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
    u, v = flow.velocity(z)[: len(z_p)], onwards.velocity(here.zero)
    known = clearance.min() > _CLEAR
    handover = Handover(head, jnp.log(r), onwards, here.norm(v - u / nonzero(here.norm(u))))
    error = jnp.maximum(handover.mismatch, neglected(handover, here.zero, handover.log_scale))
    return handover._replace(mismatch=jnp.where(known, error, jnp.inf))


def neglected(handover: Handover, z: Float[Array, " m"], log_scale: Float[Array, ""]) -> Float[Array, ""]:
    """Compute the largest relative error in the weights of tight sequences when v is a function of p.

        max_X max_i r q_i |γ_i - γ_s(X)|,   γ = E v_mm,   r = exp(log_scale).

    The notation is that of the module docstring. The result is infinite if a sequence that is not tight
    attends to a token on the margin of v_mm, because its barrier corresponds to a single token, not a
    mixture, and recedes like log r.
    """
    flow, head = handover.flow, handover.head
    bags = flow.corpus.bags
    index, tight = bags.index.astype(jnp.int32), flow.weigh.steepness == 0
    below, value = -below_top(flow.corpus, flow.scores + flow.lift @ z), take(head.values, index)
    off = jnp.abs(value - bags.spread(take(head.values, head.token)))
    # Values of two tokens on the margin of v_mm differ only by rounding errors.
    lost = bags.max(below + jnp.log(jnp.where(off > _CLEAR, bags.count * off, 0)))
    margin = jnp.abs(bags.spread(flow.corpus.targets) * value - 1)
    rests = bags.max(jnp.where((below == 0) & (margin <= _CLEAR), jnp.inf, -jnp.inf))
    return jnp.exp(log_scale + jnp.where(tight, lost, rests).max())


def _head(here: Coordinates, values: Array, spread: Array) -> Head:
    labels, vocab = here.corpus.targets, here.corpus.vocab_size
    chosen, token = _attended(here.corpus, here.scores, values, spread)
    sign = jnp.zeros(vocab).at[token].add(1.0 * labels)
    sharing = jnp.zeros(vocab).at[token].add(1.0)
    used, unanimous = sharing > 0, jnp.abs(sign) == sharing
    if here.basis is None:
        rows = here.lift
    else:
        size, vectors = jnp.linalg.eigh(here.lift)
        rows = vectors * jnp.sqrt(jnp.maximum(size, 0))
    # Replace unused tokens by a used token, because shapes are static.
    position = jnp.where(used, jnp.arange(vocab), token[0])
    multipliers, _ = nearest_point((jnp.sign(sign)[:, None] * rows * here.unit)[position])
    coefficients = jnp.zeros(vocab).at[position].add(multipliers) * jnp.sign(sign)
    found = rows @ (coefficients @ rows)
    lowest = jnp.where(used, jnp.sign(sign) * found, jnp.inf).min()
    scale = jnp.where((unanimous | ~used).all() & (lowest > 0), lowest, jnp.nan)
    coefficients, found = coefficients / scale, found / scale
    return Head(chosen, token, coefficients, found, jnp.log(coefficients @ found) / 2)


def _attended(
    corpus: Corpus, scores: Array, values: Array, spread: Array
) -> tuple[Bool[Array, "R W"], Int[Array, " n"]]:
    """Find the attended token in each sequence whose value agrees most with the label.

    A token counts as attended if its score is at most `spread` below the top score. In a tight sequence, all
    tokens but one have negligible attention, about e^(-2 spread). In other sequences, several tokens may form
    a barrier; the best of them is the token that would be selected without the barrier.

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
