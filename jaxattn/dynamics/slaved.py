"""The far end of the joint flow of p and v: v follows from p, and p moves as if v had settled.

Once ‖v‖ is large, v = r v_mm + O(1), with v_mm the max-margin head of the tokens that sequences attend to.
Its multipliers λ, Σ λ_s y E_s = v_mm, are the weights of the sequences on which it is tight, and p moves by

    dp/dτ = Σ_X w_X y Σ_i q_i (γ_i - f) E_i,   γ = E v_mm,   τ = r²/2,

    w_X = λ_s / (number of sequences that attend to s)     if v_mm is tight on X, s = s(X),
    w_X = e^(b_X - r (y f_X - 1))                          if it is not.

A sequence of the second kind weighs nothing until attention has moved to a mixture of its tokens that is tight
as well, y f_X = 1, and then holds p there: a wall, the steeper the larger r. r itself grows beyond any number,
and the wall is as good as vertical long before: a fixed steepness takes its place in w.
"""

from typing import NamedTuple


import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.coordinates import Coordinates, coordinates, positive
from jaxattn.dynamics.joint_coordinates import JointCoordinates, joint_force
from jaxattn.theory.interior_point import nearest_point

# Multipliers below this share of their sum are rounding.
_NO_MULTIPLIER = 1e-9


@struct.dataclass
class Weights:
    """w of every sequence as a function of m = y f: log w = log_weight - steepness (m - 1).

    Attributes:
        log_weight: (n,).
        steepness: (n,); 0 where v_mm is tight.
    """

    log_weight: Array
    steepness: Array

    def __call__(self, agreement: Float[Array, "n"]) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
        """Compute log w and -∂ log w/∂m."""
        return self.log_weight - self.steepness * (agreement - 1), self.steepness


class Slaved(NamedTuple):
    """What is known of v and of the sequences where the two descriptions of the flow meet.

    Attributes:
        chosen: (R, W) bool; the token s(X) of every sequence, an entry of its bag.
        values: γ = E v_mm, (V,).
        coefficients: (V,); v_mm = Eᵀ coefficients.
        log_norm: log ‖v_mm‖, ().
        log_scale: log r, ().
        weights: of the sequences, with walls of steepness r.
        clearance: y E_{s(X)}·v_mm - 1, 0 where v_mm is tight, (n,).
        mismatch: sine of the angle between dp/dt of the two descriptions, ().
    """

    chosen: Array
    values: Array
    coefficients: Array
    log_norm: Array
    log_scale: Array
    weights: Weights
    clearance: Array
    mismatch: Array


def slave(flow: JointCoordinates, z: Float[Array, "2r"], E: Float[Array, "V d"]) -> Slaved:
    """Find v_mm and the weights of the sequences at a point of the joint flow with ‖v‖ large.

    Args:
        flow: the joint flow.
        z: where.
        E: the embeddings.

    Returns:
        The head and the weights, NaN where no v separates the chosen tokens.
    """
    corpus = flow.query.corpus
    z_p, z_v = jnp.split(z, 2)
    scores, values = flow.query.scores + flow.query.lift @ z_p, flow.head.scores + flow.head.lift @ z_v
    norm = flow.head.norm(z_v, 1.0)
    chosen, token = _choose(corpus, scores, values, jnp.log(norm / flow.unit))
    coefficients, gamma = _head(E, corpus.labels, token)
    log_norm = jnp.log(coefficients @ gamma) / 2
    r = norm / jnp.exp(log_norm)

    multiplier = jnp.abs(coefficients)
    tight = multiplier > _NO_MULTIPLIER * multiplier.sum()
    sharing = jnp.zeros(len(E)).at[token].add(1.0)
    share = (jnp.log(positive(multiplier)) - jnp.log(positive(sharing)))[token]
    forces = joint_force(corpus, scores, values)
    heavy, margin = tight[token], corpus.labels * gamma[token]
    log_g = forces.of_scores.log_weight
    # In units of log w; the mean is over sequences that differ by 1/r only.
    log_g = log_g - jnp.where(heavy, log_g - share, 0).sum() / heavy.sum()
    bags = corpus.bags
    (f,) = bags.sum(forces.of_scores.attention * take(gamma, bags.index.astype(jnp.int32)))
    start = log_g + r * (corpus.labels * f - 1)
    weights = Weights(jnp.where(heavy, share, start), jnp.where(heavy, 0.0, r))
    slow = slaved_coordinates(E, flow.query.p(z_p), corpus, gamma, weights)
    u, v = flow.velocity(z)[: len(z_p)], slow.velocity(slow.zero)
    return Slaved(
        chosen=chosen,
        values=gamma,
        coefficients=coefficients,
        log_norm=log_norm,
        log_scale=jnp.log(r),
        weights=weights,
        clearance=jnp.where(heavy, 0, margin - 1),
        mismatch=slow.norm(v - u / positive(slow.norm(u))),
    )


def slaved_coordinates(
    E: Float[Array, "V d"],
    p: Float[Array, "d"],
    corpus: Corpus,
    values: Float[Array, "V"],
    weights: Weights,
) -> Coordinates:
    """Set up the flow of p alone from p, in the clock τ, v being slaved."""
    flow = coordinates(E, p, p, corpus)
    # `token_force` takes a mean over sequences.
    weights = weights.replace(log_weight=weights.log_weight + jnp.log(corpus.num_sequences))
    # Scores fall apart by 2 max ‖E_s‖ along p at most. Against a wall the force changes faster, but p does not go.
    return flow.replace(values=values, weigh=weights, steepest=2 / flow.unit)


def _choose(corpus, scores, values, spread) -> tuple[Bool[Array, "R W"], Array]:
    """Pick the token of every sequence that agrees most with its label, of those with attention left.

    Where v_mm is tight all tokens but one have lost theirs, by e^(-2 spread) and more; where it is not, several
    may hold a wall, and the best of them is the one that would be selected without it.
    """
    bags = corpus.bags
    index, present = bags.index.astype(jnp.int32), bags.count > 0
    score = jnp.where(present, take(scores, index), -jnp.inf)
    attended = present & (score >= bags.spread(bags.max(score)) - spread)
    agreement = jnp.where(attended, bags.spread(corpus.labels) * take(values, index), -jnp.inf)
    best = attended & (agreement == bags.spread(bags.max(agreement)))
    token = -bags.max(jnp.where(best, -index.astype(scores.dtype), -jnp.inf))
    return best & (index == bags.spread(token)), token.astype(jnp.int32)


def _head(E, labels, token):
    """Find v_mm = Eᵀ β with y E_s·v_mm ≥ 1 for chosen tokens; return β and E v_mm, NaN if there is none."""
    V = len(E)
    gram = jnp.matmul(E, E.T, precision="highest")
    if V <= E.shape[1]:
        size, basis = jnp.linalg.eigh(gram)
        rows = basis * jnp.sqrt(jnp.maximum(size, 0))
    else:
        rows = E
    sign = jnp.zeros(V).at[token].add(labels)
    sharing = jnp.zeros(V).at[token].add(1.0)
    used, agree = sharing > 0, jnp.abs(sign) == sharing
    # Of unused tokens a used one takes the place.
    stand_in = jnp.where(used, jnp.arange(V), token[0])
    signed = jnp.sign(sign)[:, None] * rows / jnp.sqrt(jnp.diag(gram).max())
    multipliers, _ = nearest_point(signed[stand_in])
    coefficients = jnp.zeros(V).at[stand_in].add(multipliers) * jnp.sign(sign)
    values = gram @ coefficients
    lowest = jnp.where(used, jnp.sign(sign) * values, jnp.inf).min()
    scale = jnp.where(jnp.where(used, agree, True).all() & (lowest > 0), lowest, jnp.nan)
    return coefficients / scale, values / scale
