"""Solution of a max-margin problem, or the outcome if there is none."""

from dataclasses import replace
from enum import IntEnum

import numpy as np
from flax import struct

from jaxattn.core.pytrees import Brief


class Status(IntEnum):
    """Outcome of a max-margin problem. `MaxMargin.reason` describes it in words.

    SOLVED: the duality gap is within the tolerance.

    NO_PAIRS: there are no pairs of tokens to separate, and p = 0.

    LOOSE: p satisfies all constraints, but its duality gap is above the tolerance. Rounding p limits the gap
    to about 4e-16 divided by the smallest cosine between p and the difference of a support pair.

    INFEASIBLE: the multipliers prove that no p satisfies all constraints.

    CYCLE: the pairs form a cycle in which each token must score higher than the next, which is
    infeasible for any keys.

    UNDECIDED: the solver found neither a feasible p nor a proof that none exists.

    INVALID: not attempted, because the input is invalid.
    """

    SOLVED = 0
    NO_PAIRS = 1
    LOOSE = 2
    INFEASIBLE = 3
    CYCLE = 4
    UNDECIDED = 5
    INVALID = 6


_REASONS = {
    Status.SOLVED: "solved to the tolerance",
    Status.NO_PAIRS: "there are no tokens to separate, so p = 0",
    Status.LOOSE: "p separates the selection, but its duality gap is above the tolerance",
    Status.INFEASIBLE: "no direction separates the selection: the multipliers sum its differences to zero",
    Status.CYCLE: "no scores fit the selection: along its pairs, tokens outrank each other in a cycle",
    Status.UNDECIDED: "undecided: the solver found neither a separating direction nor a proof of none",
    Status.INVALID: "not attempted: keys contain NaN or inf, exceed 1e140 or are all below 1e-140 (rescale "
    "them), or a sequence has no selected token",
}


@struct.dataclass(repr=False)
class MaxMargin(Brief):
    """Max-margin direction and its certificate, as float64 NumPy arrays. A batch adds a leading axis.

    E_s is the key of token s. Pairs (s, s') require p·(E_s - E_s') ≥ 1 by default, and ties (s, s'') require
    p·(E_s - E_s'') = 0. The solution is the sum p = Σ λ (E_s - E_s') + Σ μ (E_s - E_s''), λ ≥ 0. The largest
    margin of any unit direction lies between `margin` and `margin_bound`, so

        ‖p - p_mm‖² ≤ duality_gap ‖p‖²   and   1 - cos(p, p_mm) ≤ 1 - √(1 - duality_gap),

    where p_mm is the exact solution. If `certify_max_margin` is called with q ≠ 2, ‖p‖ is the ℓ_q norm, and
    the norm of the sum is the dual norm. The bounds on the margin still hold, but the bounds on the distance
    to p_mm do not.

    If the problem is infeasible, there are exact multipliers close to the returned ones, with Σ λ = 1,
    for which the sum is exactly 0, so no direction has a positive inner product with every difference. In
    that case `dual_residual` is at most 1e-14; it is the norm of the computed sum relative to the lengths
    of the differences. An undecided problem is neither `feasible` nor `infeasible`.

    Attributes:
        p: (d,); the minimum-norm vector that satisfies the constraints; NaN if none was found.
        margin: (); 1 / ‖p‖; 0 if no separating direction was found, inf if there are no pairs.
        margin_bound: (); upper bound on the margin, ‖Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')‖ / Σ λ b, with
            required margins b.
        pairs: (k, 2) int32; support pairs (s, s'), which have a positive multiplier.
        multipliers: (k,); λ of the support pairs; 0 for padding in a batch.
        ties: (t, 2) int32; pairs of tied tokens that join the tokens of each group. In a solution of
            `max_margin`, each token is paired with a nearby one.
        tie_multipliers: (t,); μ, of any sign.
        primal_residual: (); largest violation of a constraint by p; NaN if not feasible.
        dual_residual: (); ‖p - Σ λ (E_s - E_s') - Σ μ (E_s - E_s'')‖ / ‖p‖, with the sum accumulated pair
            by pair. For q ≠ 2, the relative gap in Hölder's inequality between p and the sum. If not
            feasible: ‖Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')‖ / Σ λ ‖E_s - E_s'‖, including rounding. No
            direction that satisfies the ties has a cosine above this value with every difference.
        duality_gap: (); 1 - (margin / margin_bound)², the relative gap in ½ ‖p‖²; 1 if not feasible.
        num_pairs: () int; number of distinct pairs in the problem.
        iterations: () int; number of solver iterations.
        status: () int8; a `Status`.
    """

    p: np.ndarray
    margin: float | np.ndarray
    margin_bound: float | np.ndarray
    pairs: np.ndarray
    multipliers: np.ndarray
    ties: np.ndarray
    tie_multipliers: np.ndarray
    primal_residual: float | np.ndarray
    dual_residual: float | np.ndarray
    duality_gap: float | np.ndarray
    num_pairs: int | np.ndarray
    iterations: int | np.ndarray
    status: np.int8 | np.ndarray

    @property
    def feasible(self) -> bool | np.ndarray:
        """Whether p satisfies all constraints; bool, or (S,) for a batch.

        False does not prove infeasibility.
        """
        return self._is(Status.SOLVED, Status.NO_PAIRS, Status.LOOSE)

    @property
    def infeasible(self) -> bool | np.ndarray:
        """Whether the multipliers prove that no p satisfies all constraints; bool, or (S,) for a batch."""
        return self._is(Status.INFEASIBLE, Status.CYCLE)

    @property
    def decided(self) -> float | np.ndarray:
        """1 if feasible, 0 if infeasible, NaN if neither is proven; float, or (S,) for a batch."""
        decided = np.where(self.feasible, 1.0, np.where(self.infeasible, 0.0, np.nan))
        return float(decided) if decided.ndim == 0 else decided

    def _is(self, *statuses: Status) -> bool | np.ndarray:
        found = np.isin(self.status, statuses)
        return bool(found) if found.ndim == 0 else found

    def brief(self) -> str:
        """Return a one-line summary: the outcome, margin, duality gap and sizes."""
        if np.ndim(self.status) > 0:
            status = np.asarray(self.status)
            counts = zip(*np.unique(status, return_counts=True), strict=True)
            outcome = ", ".join(f"{count} {Status(int(code)).name}" for code, count in counts)
            return f"batch of {len(status)}: {outcome}; p {np.shape(self.p)}"
        size = f"p {np.shape(self.p)}, {int(self.num_pairs)} pairs, {len(self.ties)} ties"
        numbers = f"margin {float(self.margin):.4g}, duality_gap {float(self.duality_gap):.4g}"
        return f"{Status(int(self.status)).name}, {self.reason}; {numbers}, {size}"

    @property
    def reason(self) -> str | list[str]:
        """Description of the outcome, or a list of descriptions for a batch."""
        if np.ndim(self.status) == 0:
            return _REASONS[Status(int(self.status))]
        return [_REASONS[Status(int(status))] for status in np.asarray(self.status)]


def in_unit(solution: MaxMargin, unit: float) -> MaxMargin:
    """Return the solution for keys multiplied by `unit`, a power of two, given the solution for the keys."""
    # The multipliers of a proof of infeasibility have the sum 1 in any unit.
    force = 1 / unit if solution.feasible else 1.0
    return replace(
        solution,
        p=solution.p / unit,
        margin=solution.margin * unit,
        margin_bound=solution.margin_bound * unit,
        multipliers=solution.multipliers * force * force,
        tie_multipliers=solution.tie_multipliers * force * force,
    )


def unsolved(status: Status, dim: int, *, ties: np.ndarray | None = None) -> MaxMargin:
    """Build the result for a problem without pairs to separate, or for a problem that was not solved."""
    nothing = status == Status.NO_PAIRS
    ties = np.zeros((0, 2), np.int32) if ties is None else ties
    return MaxMargin(
        p=np.full(dim, 0.0 if nothing else np.nan),
        margin=np.float64(np.inf if nothing else 0.0),
        margin_bound=np.float64(np.inf),
        pairs=np.zeros((0, 2), np.int32),
        multipliers=np.zeros(0),
        ties=ties,
        tie_multipliers=np.zeros(len(ties)),
        primal_residual=np.float64(0.0 if nothing else np.nan),
        dual_residual=np.float64(0.0 if nothing else np.nan),
        duality_gap=np.float64(0.0 if nothing else 1.0),
        num_pairs=0,
        iterations=0,
        status=np.int8(status),
    )
