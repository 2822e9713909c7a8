"""Conjectured joint limit of p and v: the max-margin v, and the relaxed max-margin p."""

import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores
from jaxattn.core.arithmetic import lengths
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief
from jaxattn.data.corpus import Corpus
from jaxattn.theory.constraints import Constraints, constraints, distinct_tokens
from jaxattn.theory.max_margin import max_margin_from_constraints
from jaxattn.theory.selection import Selection, require_finite, require_keys
from jaxattn.theory.solution import MaxMargin, Status, unsolved

# A token is on the margin of v if y x_s·v ≤ 1 + the larger of this tolerance and a bound on the rounding
# errors, which are relative to ‖x‖ ‖v‖.
_ON_MARGIN, _ROUNDING = 1e-8, 64 * 2.0**-52


@struct.dataclass(repr=False)
class RelaxedMaxMargin(Brief):
    """The directions p_relax and v_mm, with a certificate of optimality for each, as float64 NumPy arrays.

    For a sequence X, y = ±1 is the label, s(X) is the selected token, and x_s is the point of a token s.

    Attributes:
        query: the solution for p; its support pairs (s, s') have a required margin of at most 1.
        head: the solution for v. Its pairs are (s, V) for a token s selected in a sequence with y = 1, and
            (V, s) for y = -1, where V is an extra token at the point 0. The multipliers satisfy
            v = Σ λ y x_s.
        support: (n,) bool; True for sequences X on the margin of v, y x_{s(X)}·v = 1 up to 1e-8 or to the
            rounding error. Closer margins are not distinguished, because a duality gap g determines them only
            up to √g ‖x‖ ‖v‖.
        clearance: (); smallest y x_{s(X)}·v - 1 over the other sequences; inf if there are none.
    """

    query: MaxMargin
    head: MaxMargin
    support: np.ndarray
    clearance: float

    def brief(self) -> str:
        """Return a one-line summary of the problems for p and v, including their margins."""
        tight = f"support {int(np.sum(self.support))} of {np.size(self.support)} sequences"
        margins = f"margins {float(self.head.margin):.4g} and {float(self.query.margin):.4g}"
        return f"{self.reason}; {margins} of v and p, duality_gap {self.duality_gap:.4g}, {tight}"

    @property
    def p(self) -> np.ndarray:
        """Relaxed max-margin vector, (D,); NaN if there is no such vector."""
        return self.query.p

    @property
    def v(self) -> np.ndarray:
        """Minimum-norm v, (e,), with y x·v ≥ 1 for each sequence; NaN if infeasible.

        y is the label of the sequence, and x is the point of its selected token.
        """
        return self.head.p

    @property
    def multipliers(self) -> np.ndarray:
        """Multipliers for p, (k,), in the order of `query.pairs`."""
        return self.query.multipliers

    @property
    def duality_gap(self) -> float:
        """The larger of the relative duality gaps of the problems for p and v; 1 if not feasible."""
        return float(max(self.query.duality_gap, self.head.duality_gap))

    @property
    def feasible(self) -> bool:
        """Whether both p and v were found. False does not prove that either problem is infeasible."""
        return bool(self.head.feasible and self.query.feasible)

    @property
    def infeasible(self) -> bool:
        """Whether the problem for p or the problem for v is proven infeasible."""
        return bool(self.head.infeasible or self.query.infeasible)

    @property
    def decided(self) -> float:
        """1 if feasible, 0 if infeasible, NaN if neither is proven."""
        return 1.0 if self.feasible else 0.0 if self.infeasible else np.nan

    @property
    def reason(self) -> str:
        """Description of the outcome of the problem for v and, if it is feasible, of the problem for p."""
        return f"v: {self.head.reason}" + (f"; p: {self.query.reason}" if self.head.feasible else "")


def relaxed_max_margin(
    scores: Scores,
    chosen: Selection,
    *,
    points: Float[Array | np.ndarray, "m e"] | None = None,
    tied: float = 1.0,
    tolerance: float = 1e-10,
) -> RelaxedMaxMargin:
    """Compute the relaxed max-margin direction of p and the max-margin direction of v for a selection.

        v_mm    = argmin ‖v‖²  s.t.  y x_{s(X)}·v ≥ 1  for all X,
        p_relax = argmin ‖p‖²  s.t.  p·(Φ_{s(X)} - Φ_s') ≥ 1  for X in the support of v_mm,
                                     p·(Φ_{s(X)} - Φ_s') ≥ 0  for all other X,

    where y = ±1 is the label of sequence X, s(X) its selected token, and s' any other token in X. Token s has
    the value γ_s = x_s·v. The points x default to the keys Φ. For embeddings, x = Φ = E.

    p and v converge to these directions along the regularisation path. It is a conjecture that they also do
    so under gradient flow on both if attention in every sequence converges to one token. The certificates
    show that p_relax and v_mm are optimal, not that a path converges to them.

    Only the sequences in the support of v_mm continue to move p. For all other sequences, p_relax need only
    preserve the selection. If no sequence in the support has an unselected token, p_relax = 0. An
    infeasible problem does not raise an error: `infeasible` is True, and `reason` states which of the two
    problems has no solution.

    Args:
        scores: keys Φ (m, D), and bags of n sequences from two classes; `Scores(E, corpus)` for
            embeddings.
        chosen: the selection, with exactly one token s(X) per sequence.
        points: x, (m, e) float; defaults to the keys.
        tied: required margin of a pair with X in the support if s' is also on the margin of v_mm, y
            x_s'·v_mm = 1. Such pairs do not occur on the regularisation path, or under Assumption 1 for
            generic embeddings. For gradient flow, where v separates the values of s(X) and s' only by a
            bounded amount, use 1/2; see docs/notes/joint_flow.md.
        tolerance: relative duality gap up to which a problem counts as solved.

    Raises:
        InputError: there are more than two classes, keys or points contain NaN or inf, a sequence does
            not have exactly one selected token, the shapes do not match, or `tied` is negative or not finite.

    Source:
        Tarzanagh et al. 2023 (arXiv 2306.13596), limit of the regularisation path of p and v.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> solution = ja.theory.relaxed_max_margin(ja.theory.Scores(np.eye(3), corpus), chosen)
        >>> solution.v.round(4).tolist(), solution.p.round(4).tolist()
        ([1.0, -1.0, 0.0], [0.3333, 0.3333, -0.6667])
    """
    corpus = scores.corpus
    if corpus.num_classes != 2:
        raise InputError(
            f"corpus: has {corpus.num_classes} classes, but the max-margin v requires two; use another corpus"
        )
    if not 0 <= tied < np.inf:
        raise InputError(f"tied: must be a finite number of at least 0, got {tied}")
    require_keys(scores.keys, corpus)
    keys = np.asarray(scores.keys, np.float64)
    points = keys if points is None else np.asarray(points, np.float64)
    require_finite(keys=keys, points=points)
    if points.ndim != 2 or len(points) != len(keys):
        raise InputError(f"points: expected shape ({len(keys)}, e), one row per token, got {points.shape}")
    token, labels = _selected_tokens(corpus, chosen), np.asarray(corpus.targets)
    head = max_margin_head(points, token, labels, tolerance=tolerance)
    if not head.feasible:
        query = unsolved(Status.INVALID, keys.shape[1])
        return RelaxedMaxMargin(query, head, np.zeros(len(token), bool), np.float64(np.nan))
    values = points @ head.p
    margins = labels * values[token]
    size = lengths(points)
    rounding = _ROUNDING * np.linalg.norm(head.p) * np.maximum(size, size[token].max())
    near = np.maximum(_ON_MARGIN, rounding)
    support = margins <= 1 + near[token]
    bags = corpus.bags
    owner = np.minimum(np.asarray(bags.owner), len(token) - 1)[:, None]
    index = np.asarray(bags.index)
    other = labels[owner] * values[index]
    required = np.where(np.abs(other - 1) <= near[index], tied, 1.0) * support[owner]
    found = constraints(corpus, chosen, required)
    query = max_margin_from_constraints(keys, found, tolerance=tolerance)
    clearance = np.min(margins[~support] - 1, initial=np.inf)
    return RelaxedMaxMargin(query, head, support, clearance)


def max_margin_head(E: np.ndarray, token: np.ndarray, labels: np.ndarray, *, tolerance: float) -> MaxMargin:
    """Find the minimum-norm v with y E_s·v ≥ 1 for the given tokens s and labels y.

    This is a max-margin problem with an extra token of index V, whose embedding is 0. The pairs are (s, V)
    for y = 1 and (V, s) for y = -1.

    Args:
        E: (V, d) float64.
        token: (n,) int; s.
        labels: (n,) int; y = ±1.
        tolerance: relative duality gap up to which the problem counts as solved.
    """
    origin = len(E)
    distinct = np.unique(np.stack([token, labels], axis=1), axis=0).astype(np.int32)
    positive = distinct[:, 1] > 0
    found = Constraints(
        better=np.where(positive, distinct[:, 0], origin).astype(np.int32),
        worse=np.where(positive, origin, distinct[:, 0]).astype(np.int32),
        ties=np.zeros((0, 2), np.int32),
        leader=np.arange(origin + 1, dtype=np.int32),
        required=np.ones(len(distinct)),
    )
    return max_margin_from_constraints(
        np.concatenate([E, np.zeros((1, E.shape[1]))]), found, tolerance=tolerance
    )


def _selected_tokens(corpus: Corpus, chosen: Selection) -> np.ndarray:
    (present, sequence, held), mask = distinct_tokens(corpus), np.asarray(chosen.mask)
    if mask.shape != present.shape:
        raise InputError(
            f"chosen: has shape {mask.shape}, but the bags of this corpus have shape {present.shape}; "
            "recompute it for this corpus"
        )
    picked = mask[present]
    count = np.bincount(sequence[picked], minlength=corpus.num_examples)
    if (count != 1).any():
        where = int(np.argmax(count != 1))
        raise InputError(
            f"chosen: sequence {where} has {count[where]} selected tokens; select exactly one per sequence"
        )
    token = np.zeros(corpus.num_examples, np.int64)
    token[sequence[picked]] = held[picked]
    return token
