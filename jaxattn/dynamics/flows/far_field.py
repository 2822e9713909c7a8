"""The far end of the joint flow of p and v: v follows from p, and p moves as if v had settled.

Once ‖v‖ is large, v = r v_mm + O(1), with v_mm the max-margin head of the tokens s(X) that sequences X
attend to. Its multipliers λ, Σ λ_s y E_s = v_mm, are the weights of the sequences on which it is tight, and

    dp/dτ = Σ_X w_X y Σ_i q_i (γ_i - f) E_i,   γ = E v_mm,   τ = r²/2,

    w_X = λ_s / (number of sequences with this s)     if v_mm is tight on X, s = s(X),
    w_X = e^(b_X - r (y f_X - 1))                     if it is not.

A sequence of the second kind weighs nothing until its attention lies on a mixture of tokens that is tight
too, y f_X = 1, and then holds p there: a wall, the steeper the larger r. That all sequences of one s weigh
the same takes a small r (1 - y f_X); where a wall keeps attention from settling, it grows. See
docs/notes/joint_flow.md.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.conditions import nonzero
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.joint_coordinates import JointCoordinates, joint_force
from jaxattn.dynamics.flows.nearest_point import nearest_point

# Multipliers below this share of their sum are rounding.
_NO_MULTIPLIER = 1e-9
# Sequences closer to the margin of v_mm cannot be told from tight ones.
_CLEAR = 1e-9
# Up to the inverse of this, in units of its width, a wall stands where it would if it were vertical.
_STEEP = 32.0
# Weights that are less than others by more nats do not hold p.
_ACTIVE = 100.0


@struct.dataclass
class Weights:
    """w of every sequence as a function of m = y f: log w = log_weight - steepness (m - 1).

    Attributes:
        log_weight: (n,).
        steepness: (n,); 0 where v_mm is tight.
    """

    log_weight: Array
    steepness: Array

    def __call__(self, agreement: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Compute log w and -∂ log w/∂m."""
        return self.log_weight - self.steepness * (agreement - 1), self.steepness


class Head(NamedTuple):
    """The max-margin head of chosen tokens, NaN if no v separates them.

    Attributes:
        chosen: (R, W) bool; s(X), an entry of the bag of X.
        token: (n,) int32; s(X).
        coefficients: (V,); v_mm = Eᵀ coefficients, so that they are ±λ.
        values: E v_mm, (V,).
        log_norm: log ‖v_mm‖, ().
    """

    chosen: Array
    token: Array
    coefficients: Array
    values: Array
    log_norm: Array


class Handover(NamedTuple):
    """Where the joint flow goes over into that of p with v slaved.

    Attributes:
        head: v_mm.
        log_scale: log r, ().
        flow: p from here on; its walls are steep enough up to the norm that was asked for.
        mismatch: sine of the angle between dp/dt here by the joint flow and by `flow`, or what is `neglected`
            if that is larger, (); infinite if v_mm is tight without a multiplier on a sequence, whose weight
            then is not known.
    """

    head: Head
    log_scale: Array
    flow: Coordinates
    mismatch: Array


def hand_over(flow: JointCoordinates, z: Float[Array, " m"], until_norm: Float[Array, ""]) -> Handover:
    """Slave v at a point of the joint flow where ‖v‖ is large.

    Args:
        flow: the joint flow.
        z: where.
        until_norm: ‖p‖ that is to be reached.

    Returns:
        The flow of p alone from there.
    """
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
    # Both kinds in one unit; that of the tight ones differs from sequence to sequence by 1/r only.
    log_weight = force.log_weight - jnp.where(tight, force.log_weight - share, 0).sum() / tight.sum()
    (f,) = corpus.bags.sum(force.attention * take(head.values, corpus.bags.index.astype(jnp.int32)))
    clearance = jnp.where(tight, jnp.inf, corpus.targets * head.values[head.token] - 1)
    # e^(-steepness · clearance) is to be far less than e^(-p·(E_s - E_s')), the weakest force on the way.
    steep = jnp.maximum(r, _STEEP * until_norm / (unit * clearance))
    # A wall that p leans on stays where it is, within 100/r of y f = 1; others are to stand there later.
    beyond = corpus.targets * f - 1
    log_weight += jnp.where(r * beyond < _ACTIVE, steep, r) * beyond
    log_weight, steepness = jnp.where(tight, share, log_weight), jnp.where(tight, 0, steep)
    # `token_force` takes a mean over sequences.
    weigh = Weights(log_weight + jnp.log(corpus.num_examples), steepness)
    # Along p scores fall apart by 2 max ‖E_s‖ at most; forces that change faster are those against a wall.
    onwards = here.replace(values=head.values, weigh=weigh, steepest=2 / unit)  # type: ignore[attr-defined]
    u, v = flow.velocity(z)[: len(z_p)], onwards.velocity(here.zero)
    known = clearance.min() > _CLEAR
    handover = Handover(head, jnp.log(r), onwards, here.norm(v - u / nonzero(here.norm(u))))
    error = jnp.maximum(handover.mismatch, neglected(handover, here.zero, handover.log_scale))
    return handover._replace(mismatch=jnp.where(known, error, jnp.inf))


def neglected(handover: Handover, z: Float[Array, " m"], log_scale: Float[Array, ""]) -> Float[Array, ""]:
    """Compute the largest relative error of the weights of tight sequences on the way, with v slaved.

        max_X max_i r q_i |γ_i - γ_s(X)|,   γ = E v_mm.

    Args:
        handover: where v was slaved.
        z: a point of `handover.flow`.
        log_scale: log r there.

    Returns:
        The error, (); infinite if another sequence rests on a token on which v_mm is tight: its wall is at no
        mixture, but recedes like log r.
    """
    flow, head = handover.flow, handover.head
    bags = flow.corpus.bags
    index, tight = bags.index.astype(jnp.int32), flow.weigh.steepness == 0
    score = jnp.where(bags.count > 0, take(flow.scores + flow.lift @ z, index), -jnp.inf)
    below, value = score - bags.spread(bags.max(score)), take(head.values, index)
    off = jnp.abs(value - bags.spread(take(head.values, head.token)))
    # Two tokens on the margin of v_mm differ by rounding.
    lost = bags.max(below + jnp.log(jnp.where(off > _CLEAR, bags.count * off, 0)))
    margin = jnp.abs(bags.spread(flow.corpus.targets) * value - 1)
    rests = bags.max(jnp.where((below == 0) & (margin <= _CLEAR), jnp.inf, -jnp.inf))
    return jnp.exp(log_scale + jnp.where(tight, lost, rests).max())


def _head(here: Coordinates, values: Array, spread: Array) -> Head:
    """Find the tokens that sequences attend to, and the max-margin head of them."""
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
    # A token that is not used leaves its place to one that is.
    place = jnp.where(used, jnp.arange(vocab), token[0])
    multipliers, _ = nearest_point((jnp.sign(sign)[:, None] * rows * here.unit)[place])
    coefficients = jnp.zeros(vocab).at[place].add(multipliers) * jnp.sign(sign)
    found = rows @ (coefficients @ rows)
    lowest = jnp.where(used, jnp.sign(sign) * found, jnp.inf).min()
    scale = jnp.where((unanimous | ~used).all() & (lowest > 0), lowest, jnp.nan)
    coefficients, found = coefficients / scale, found / scale
    return Head(chosen, token, coefficients, found, jnp.log(coefficients @ found) / 2)


def _attended(
    corpus: Corpus, scores: Array, values: Array, spread: Array
) -> tuple[Bool[Array, "R W"], Int[Array, " n"]]:
    """Pick of each sequence's tokens with attention left the one that agrees most with its label.

    Where v_mm is tight all tokens but one have lost theirs, by e^(-2 spread) or so. Where it is not, several
    may hold a wall; the best one of them is that which would be selected without it.
    """
    bags = corpus.bags
    index, present = bags.index.astype(jnp.int32), bags.count > 0
    score = jnp.where(present, take(scores, index), -jnp.inf)
    attended = present & (score >= bags.spread(bags.max(score)) - spread)
    agreement = jnp.where(attended, bags.spread(corpus.targets) * take(values, index), -jnp.inf)
    best = attended & (agreement == bags.spread(bags.max(agreement)))
    # Of several that agree as much, the first.
    first = -bags.max(jnp.where(best, -index.astype(scores.dtype), -jnp.inf))
    return best & (index == bags.spread(first)), first.astype(jnp.int32)
