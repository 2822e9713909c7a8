"""Certificates for limits of gradient flow on p, including limits with tied tokens."""

from typing import Any

import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores, require_values
from jaxattn.core.arguments import checked
from jaxattn.core.arithmetic import lengths, power_of_two
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief
from jaxattn.data.corpus import Corpus
from jaxattn.theory.attraction import accuracy, attraction
from jaxattn.theory.constraints import constraints, distinct_tokens
from jaxattn.theory.contradictions import Settled, isolated, settled
from jaxattn.theory.max_margin import max_margin_from_constraints
from jaxattn.theory.orders import Entries, Orders, orders, residual
from jaxattn.theory.selection import Selection, one_minus_cosine, require_finite
from jaxattn.theory.solution import MaxMargin, Status, in_unit
from jaxattn.theory.tied_part import tied_part

# Relative size below which a force counts as zero. At ‖p‖ = 1e6, scores and forces are accurate to 1e-10.
_ZERO = 1e-8
# Maximum relative size of a force that should be zero, at a duality gap of 1e-10.
_NO_FORCE = 1e-5
# Relative error up to which forces that cancel are known to do so.
_EXACT = 1e-11
# Maximum drift due to attracting forces with rates above 1, below 1/(3e) as derived in
# docs/notes/exact_flow_ties.md.
_DRIFT = 0.1
# p is on course if its cosine distance from the limit, 1 - cos, is at most this.
_ON_COURSE = 1e-3
# Bound on the rounding error of a product of vectors, relative to the product of their lengths.
_ROUNDING = 8 * 2.0**-52


@struct.dataclass(repr=False)
class Limit(Brief):
    """Limit p_* of p under gradient flow, with a certificate that the flow converges to it.

    All arrays are float64 NumPy arrays. The top tokens of a sequence are those that attention selects in the
    limit; if there is more than one, they are tied. 𝒯 is the span of the differences of tied embeddings. The
    tied part of the loss is the loss if only the top tokens receive attention.

    A pair consists of a top token s of a sequence and a token s' below the top. Its rate is p_*·(E_s - E_s'),
    and the force between the two tokens decays like e^(-rate · ‖p‖/‖p_*‖). If these first-order forces cancel
    for two pairs (or one pair, counted twice), a second-order term can remain, and its rate is the sum of
    both rates. A term is attracting if it pulls the lower token towards the top.

    Attributes:
        direction: solution of the max-margin problem for the limit. Its status is NO_PAIRS if no force
            moves p, so that the limit is finite. If the certificate does not hold, the forces at p define the
            problem, and rounding may determine which pairs it requires.
        angle: (); 1 - cos(p, p_*); 0 if no force moves p. It may be large at a point that is converging to
            the limit, because components of p that no force moves do not vanish.
        distance: (); 1 - cos between the score differences at p and at p_*, taken over a_top - a_s for all
            tokens s below the top. Components of p that do not affect score differences are ignored. 0 if
            no force moves p.
        gradient: (); gradient of the tied part on 𝒯, as the largest derivative with respect to a score
            difference of two tied tokens. Each derivative is relative to the forces that cancel in it, and
            includes their rounding errors, so the value is at most 1. 0 if there are no ties.
        curvature: (); smallest eigenvalue of the Hessian of the tied part, relative to the largest, in
            score differences of tied tokens, each in the unit of the forces that cancel in it; inf if there
            are no ties. Eigenvalues that are zero relative to the cancelling forces are excluded, and the
            directions of p in their eigenspace are called loose directions.
        untied: (); norm of the projection of p_* onto 𝒯, relative to ‖p_*‖; 0 if there are no ties.
        isolated: False if a force may act along loose directions. True if there are none, or if they are
            isolated: all sequences that exert forces near them contain only top tokens, are at a minimum of
            their own loss, and have key differences that are exactly orthogonal to those of all other
            sequences.
        attracting_rate: (); smallest rate of the attracting terms; inf if there are none.
        attracting_component: (); for attracting terms with rate 1, the largest component of the key
            difference outside the span of 𝒯 and of the support pairs of `direction`, relative to its length;
            0 if there are none. 1 if the rate equals 1 only up to rounding.
        attracting_drift: (); bound on how far attracting terms with a rate above 1 can move p across p_*
            before they decay, in units of 1/(largest key difference); 0 if there are none, inf if it is not
            known. It is largest for rates slightly above 1. If a term with rate 1 attracts, all terms with a
            rate above 1 are included.
        outward: (); inf if no term attracts. Otherwise, the force of all terms at p along p_*, relative to
            the sum of magnitudes. If a term with rate 1 attracts, at most the force along p_* of the terms
            with rate 1 and their smallest stiffness across p_*, in the same units, at the point where their
            forces across p_* cancel; -inf if there is no such point near p.
        cancelled_rate: (); smallest rate of the pairs whose first-order forces cancel; inf if there are none.
        cancelled_cosine: (); smallest cosine between p_* and the key differences of these pairs; inf if there
            are none.
        unknown_rate: (); smallest rate of a force of unknown size or sign, inf if there are none. It is the
            rate of a pair if its first-order force may be nonzero, because p is not exactly at the
            equilibrium of the tied tokens; twice the rate if its second-order force also cancels, and the
            response of the tied tokens is not known to cancel all orders; and the sum of the rates of two
            pairs if the forces of the first cancel between different bags.
        resolved: False if the scores at p are so large that their rounding errors hide whether forces cancel,
            or if forces of both signs act on tokens whose key differences agree only up to rounding.
    """

    direction: MaxMargin
    angle: float
    distance: float
    gradient: float
    curvature: float
    untied: float
    isolated: bool
    attracting_rate: float
    attracting_component: float
    attracting_drift: float
    outward: float
    cancelled_rate: float
    cancelled_cosine: float
    unknown_rate: float
    resolved: bool

    @property
    def holds(self) -> bool:
        """True if every condition of the certificate holds."""
        return self.reason == ""

    @property
    def reason(self) -> str:
        """First condition of the certificate that fails, with its value; "" if the certificate holds."""
        return next((text for holds, text in self._conditions() if not holds), "")

    def brief(self) -> str:
        """Return a one-line summary: the first condition that fails, if any, and how far p is from p_*."""
        course = (
            f"1 - cos {float(self.angle):.3g} of p and p_*, {float(self.distance):.3g} of score differences"
        )
        return f"{self.reason or 'certified'}; {course}; p_*: {self.direction.brief()}"

    def _conditions(self) -> list[tuple[Any, str]]:
        solved = int(self.direction.status) in (Status.SOLVED, Status.NO_PAIRS)
        return [
            (solved, f"the max-margin problem of the limit: {self.direction.reason}"),
            (
                self.gradient <= _ZERO,
                f"the forces on tied tokens are not known to balance, gradient {self.gradient:.3g}",
            ),
            (self.curvature > 0, f"tied tokens are not at a strict minimum, curvature {self.curvature:.3g}"),
            (self.untied <= _ZERO, f"tied tokens separate along p_* (relative size {self.untied:.3g})"),
            (self.isolated, "tied tokens are not known to stay where they are along loose directions"),
            (
                self.resolved,
                "rounding of scores or keys hides which forces cancel; pass a point with a smaller norm",
            ),
            (
                self.cancelled_cosine > accuracy(self.direction),
                "two tokens whose forces cancel are not known to separate "
                f"(rate {self.cancelled_rate:.3g}, cosine {self.cancelled_cosine:.3g})",
            ),
            (
                self.unknown_rate >= 1 - _ZERO,
                f"a force of unknown order matters (rate {self.unknown_rate:.3g})",
            ),
            (
                self.attracting_rate >= 1 - _ZERO,
                f"two tokens attract each other (rate {self.attracting_rate:.3g})",
            ),
            (
                self.attracting_component <= _NO_FORCE,
                "two attracting tokens at rate 1 are not held apart "
                f"(component {self.attracting_component:.3g})",
            ),
            (
                self.attracting_drift <= _DRIFT,
                f"attracting forces may move p away from p_* (drift {self.attracting_drift:.3g})",
            ),
            (
                self.outward > _ZERO,
                f"attracting forces are not known to be the smaller ones (relative size {self.outward:.3g})",
            ),
            (
                self.distance <= _ON_COURSE,
                f"p is not on course to p_*, 1 - cos of score differences {self.distance:.3g}",
            ),
        ]


@checked
def certify_limit(
    scores: Scores,
    p: Float[Array | np.ndarray, " D"],
    selection: Selection,
    *,
    tolerance: float = 1e-10,
) -> Limit:
    """Certify the limit of gradient flow on p, with fixed keys and values, from a point far along the path.

        p_* = argmin ‖p‖²  s.t.  p·(Φ_s - Φ_s'') = 0  for tokens s and s'' that tie,
                                 p·(Φ_s - Φ_s') ≥ 1  for a top token s of X and s' repelled from it.

    The top tokens of a sequence are those that attention selects in the limit. The rate of a token s' below
    the top is p·(Φ_s - Φ_s') for a top token s. For each token below the top, the forces from all sequences
    with the same group of tied top tokens are added. The sum repels the token from the top, attracts it, or
    cancels.

    - Repelled: a rate of at least 1 is required.
    - Attracted: the token stays below the top if its rate exceeds 1 without this constraint, and if p is so
      far along the path that the force decays before it moves p. If its rate is
      1, its force is as large as that of repelled tokens. All forces with rate 1 must then cancel across p_*,
      at a stable point, and their sum must move p outwards.
    - Cancelled to first order: the force decays like e^(-2 gap), where gap is the score difference. If it
      repels, a rate of 1/2 is required. If the response of the tied tokens provably cancels all orders, there
      is no force, and any positive rate is sufficient. A force of unknown size or sign must decay at least as
      fast as those with rate 1.

    For pairs without a required rate, the max-margin problem requires a rate ≥ 0. The score differences
    of tied tokens converge to the minimum of the tied part of the loss, in which only the top tokens
    receive attention. The flow returns to this minimum if it is strict on 𝒯, the span of the differences
    of tied keys. Loose directions, where the derivative of the forces is zero, are allowed only if no other
    force acts along them. All of this is local because the loss is not convex, so p must already be close to
    the direction of p_*.

    Args:
        scores: keys Φ (m, D), values γ, and bags of n sequences; two classes and the logistic loss, or K
            > 2 classes and cross-entropy.
        p: (D,); a point on the path, which determines the score differences of tied tokens.
        selection: the top tokens of each sequence in the limit, `Path.selection`.
        tolerance: relative duality gap up to which the problem counts as solved.

    Raises:
        InputError: the scores have no values, an array contains NaN or inf, a sequence has no selected
            token, or the shapes do not match.

    Source:
        docs/notes/exact_flow_ties.md.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(np.eye(3), corpus, np.array([1.0, -1.0, 0.0]))
        >>> path = ja.dynamics.exact_flow(scores, np.zeros(3), until_norm=1e6)
        >>> ja.theory.certify_limit(scores, path.p[-1], path.selection).holds
        True
    """
    corpus = scores.corpus
    require_values(scores)
    require_finite(keys=scores.keys, p=p, values=scores.values)
    E, p, values = (np.asarray(x, np.float64) for x in (scores.keys, p, scores.values))
    # Compute in a unit of length next to the largest entry, so that the result is the same in any unit.
    unit = float(power_of_two(np.abs(E).max(initial=0)))
    E, p = E / unit, p * unit
    if E.shape != (corpus.vocab_size, len(p)):
        raise InputError(
            f"shapes do not match: keys {E.shape}, p {p.shape}; expected ({corpus.vocab_size}, D) and (D,)"
        )
    values = values.reshape(len(E), -1)
    found = constraints(corpus, selection)
    entries = _entries(corpus, selection, E, p, values)
    # Compute with the logarithms of residuals: for a sequence with a large margin y f, e^(-y f) underflows in
    # float64.
    loss = residual(entries.f, np.asarray(corpus.targets), corpus.num_classes)
    balance = tied_part(E, found.leader, entries, loss)
    rounding = _ROUNDING * _norm(p) * float(lengths(E).max(initial=0))
    order = orders(E, entries, loss, balance.part, rounding)
    rate = _required_rates(order)
    # Require a margin of 1 over unselected tokens that are tied with selected ones. If there are any, the
    # problem is infeasible.
    rate[~entries.chosen & (found.leader[entries.token] == found.leader[entries.top])] = 1
    required = np.zeros(np.shape(selection.mask))
    required[np.asarray(corpus.bags.count) > 0] = rate
    direction = max_margin_from_constraints(E, constraints(corpus, selection, required), tolerance=tolerance)
    attracting = attraction(E, entries, order, direction, balance.normals, p)
    rates, cosines = _rates(E, entries, order.pair >= 0, direction.p)
    own = settled(E, values, entries, loss) if len(rates) or len(balance.loose) else None
    moves = direction.feasible and direction.p.any()
    return Limit(
        direction=in_unit(direction, unit),
        angle=float(one_minus_cosine(p, direction.p)) if moves else 0.0,
        distance=_distance(E @ p, E @ direction.p, entries),
        gradient=balance.gradient,
        curvature=balance.curvature,
        untied=_norm(balance.normals @ direction.p) / _norm(direction.p) if moves else 0.0,
        isolated=own is None or isolated(E, found.leader, entries, balance.part.edges, balance.loose, own),
        attracting_rate=attracting.rate,
        attracting_component=attracting.component,
        attracting_drift=attracting.drift,
        outward=attracting.outward,
        cancelled_rate=rates.min(initial=np.inf),
        cancelled_cosine=cosines.min(initial=np.inf),
        unknown_rate=np.inf if own is None else _unknown_rate(entries, order, own, rates),
        resolved=order.resolved,
    )


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x))


def _rates(E: np.ndarray, entries: Entries, some: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return p·(E_top - E_s) and the cosine of the angle, for some entries."""
    pairs = np.stack([entries.top[some], entries.token[some]])
    (top, low), number = np.unique(pairs, axis=1, return_inverse=True)
    rows = E[top] - E[low]
    rates, size = rows @ p, lengths(rows) * _norm(p)
    cosines = np.divide(rates, size, out=np.zeros_like(rates), where=size > 0)
    return rates[number.ravel()], cosines[number.ravel()]


def _entries(
    corpus: Corpus, selection: Selection, E: np.ndarray, p: np.ndarray, values: np.ndarray
) -> Entries:
    present, sequence, token = distinct_tokens(corpus)
    chosen, n = np.asarray(selection.mask)[present], corpus.num_examples
    first, scores = np.full(n, len(E)), E @ p
    np.minimum.at(first, sequence[chosen], token[chosen])
    top = first[sequence]
    times = np.asarray(corpus.bags.count)[present].astype(float)
    apart = scores[token] - scores[top]
    # Differences of scores have the rounding error of the scores, but tied keys may be much closer than long.
    tied = chosen & (token != top)
    (one, other), number = np.unique(np.stack([token[tied], top[tied]]), axis=1, return_inverse=True)
    apart[tied] = ((E[one] - E[other]) @ p)[number.ravel()]
    log_count = np.log(times)
    log_weight = log_count + apart
    # Adding the same constant to the outputs of all classes has no effect, so subtract the last output.
    value = values[token] if values.shape[1] == 1 else (values - values[:, -1:])[token]
    highest = np.full(n, -np.inf)
    np.maximum.at(highest, sequence[chosen], log_weight[chosen])
    weight = np.exp(np.where(chosen, log_weight - highest[sequence], -np.inf))
    total = np.bincount(sequence, weight, n)
    f = _sum_by(sequence, weight[:, None] * value, n) / total[:, None]
    log_total = np.log(total) + highest
    return Entries(sequence, token, top, chosen, log_count, apart, value, f, log_total)


def _distance(scores: np.ndarray, limit: np.ndarray, entries: Entries) -> float:
    top, low = entries.top[~entries.chosen], entries.token[~entries.chosen]
    apart = limit[top] - limit[low]
    return float(one_minus_cosine(scores[top] - scores[low], apart)) if apart.any() else 0.0


def _required_rates(order: Orders) -> np.ndarray:
    squares = np.append(np.diag(order.second_order) > 0, False)[order.pair]
    return np.where(order.first > 0, 1.0, np.where(squares, 0.5, 0.0))


def _sum_by(index: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    return np.stack([np.bincount(index, column, size) for column in columns.T], axis=1)


def _unknown_rate(entries: Entries, order: Orders, own: Settled, rates: np.ndarray) -> float:
    """Compute `Limit.unknown_rate`, given the rates of all entries that belong to a cancelling pair."""
    idle, number = order.pair >= 0, len(order.silent)
    if number == 0:
        return np.inf
    if not np.isfinite(rates).all():  # there is no direction
        return np.nan
    pair, sequence = order.pair[idle], entries.sequence[idle]
    rate = np.full(number, np.inf)
    np.minimum.at(rate, pair, rates)
    within = np.bincount(pair, ~own.sequence[sequence], number) == 0
    exact = within & own.has_common_minimum(entries)
    reached = np.bincount(pair, ~own.reached[idle], number) == 0
    compensated = within & reached & own.compensate(entries)
    silent = order.silent & (np.bincount(pair, ~own.has_value_of_output(entries)[idle], number) == 0)
    exerts = ~silent & ~compensated
    zero = exerts & (np.diag(order.second_order) == 0)
    rates_of_terms = [
        rate[(order.doubt > _EXACT) & ~exact],
        2 * rate[zero],
        rate[exerts & ~within] + rate.min(),
    ]
    return float(np.concatenate(rates_of_terms).min(initial=np.inf))
