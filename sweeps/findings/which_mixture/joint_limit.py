"""Certify the limit of joint gradient flow on p and v, with sequence weights and directions."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from joint_direction import ON_MARGIN, Program, merged_classes
from joint_head import Entries, NotCertified, solve_head, weights_of_sequences
from two_sided import TwoSided

import jaxattn as ja
from jaxattn.theory import Scores, distinct_tokens, tie_classes

# Relative size up to which a force counts as zero, and above which a curvature counts as nonzero.
_ZERO = 1e-8
# Minimum value of log min y f at which different powers of min y f can be distinguished.
_LONG = 12.0
# Relative rounding error in y f.
_ROUNDING = 1e-13


@dataclass(frozen=True, repr=False)
class JointLimit:
    """Limit of p and v, with a local certificate. All arrays are NumPy arrays.

    Attributes:
        p: (D,); p_*, such that scores separate like (2 log r) · Φ p_* for a head r v; NaN without a limit.
        v: (D,); the shortest v with y x_X·v ≥ 1 at the points x_X that attention forms in the limit.
        heavy: (n,) bool; True for sequences whose weight is of order one. The other sequences are light.
        weight: (n,); the weight w of heavy sequences in Σ_X w_X y_X x_X = v, and 0 for light sequences.
        finite: () int; number of dimensions in which scores remain finite.
        gradient: (); magnitude of the force in these dimensions relative to its terms; 0 if there are none.
        curvature: (); smallest curvature of max min_X y x_X·v in directions that the margins do not fix,
            relative to the largest, or inf if no score remains finite.
        head_gap: (); relative duality gap of v at the points x_X.
        direction: solution of the program for p_*; None without a limit.
        spare: (); smallest slack of the strict conditions; inf if there are none.
        reason: reason why there is no certificate; "" if there is one.
    """

    p: np.ndarray
    v: np.ndarray
    heavy: np.ndarray
    weight: np.ndarray
    finite: int
    gradient: float
    curvature: float
    head_gap: float
    direction: TwoSided | None
    spare: float
    reason: str = ""

    @property
    def holds(self) -> bool:
        """True if every condition of the certificate holds."""
        return self.reason == ""

    def __repr__(self) -> str:
        """Return the outcome, with the numbers of heavy sequences and finite scores, and the slack."""
        kinds = f"{int(np.sum(self.heavy))} of {np.size(self.heavy)} sequences heavy"
        outcome = "certified" if self.holds else self.reason
        text = f"{outcome}; {kinds}, {int(self.finite)} scores finite, spare {float(self.spare):.3g}"
        return f"JointLimit({text})"


def certify_joint_limit(
    scores: Scores,
    p: jax.Array | np.ndarray,
    v: jax.Array | np.ndarray,
    *,
    tolerance: float = 1e-10,
) -> JointLimit:
    """Certify the limit of gradient flow on p and v, for fixed E and logistic loss, from a point of its path.

    In the limit v = r v_mm, log r → ∞, with v_mm the max-margin head of the points that attention forms,
    and p = (2 log r) · (p_* + o(1)). A sequence is heavy if its weight e^(-y f) is of the order of the
    largest weight, and light if its weight is smaller by a power of r. The given point determines which
    sequences are heavy, and which attention in them remains finite. Everything else is recomputed:

        p_* = argmin ‖p‖²  s.t.  a_top - a_s = 0     tokens of finite attention in a heavy sequence,
                                 a_top - a_s ≥ 1     s of a heavy sequence with y γ_s < 1,
                                 a_top - a_s ≥ 1/2   the same with y γ_s = 1, if its γ is the lower one,
                                 a_h - a_s ≥ 0       s of a light sequence with y γ_s < 1,
                                 a_h - a_s ≥ -1/2    the same with y γ_s = 1,

    where a = Φ p, γ = Φ v_mm, and h is the highest token of the sequence with y γ_h > 1. If multiple such
    tokens are tied at p_*, the vector p_* must be the shortest for each choice of h. There are also strict
    conditions. In a heavy sequence, tokens with y γ_s > 1 must be lower than the top by κ = 1, and tokens
    with y γ_s = 1 and the higher γ by κ = 1/2, with slack for the force that attracts them,

        a_top - a_s - κ > ½ (E_s - E_top)·u,    u = Σ_X w_X r^(2κ) q_s c (E_s - E_top),

    where the sum is over all such pairs, q and r are taken at the given point, and c is y γ_s - 1, or
    β_s - β_top if y γ_s = 1. Otherwise, the score of s rises from the given point on, although p_* is a limit
    for points closer to it. At the given point, light sequences must also have y x_X·v_mm ≥ 1, up to 1/√r.
    The finite scores and v_mm must be a strict local maximum of min_X y x_X·v over ‖v‖ ≤ 1. The certificate
    is local, because neither program is convex as a whole. Its conditions concern only the leading powers of
    r, and are not proven to be sufficient.

    Args:
        scores: keys Φ (V, D), which are also the inputs of v, and bags of n sequences of two classes.
        p: (D,); a point far along the path.
        v: (D,); the head at this point, with large ‖v‖.
        tolerance: largest relative duality gap of either program.

    Returns:
        The limit, whose `reason` states the condition that fails, if any.

    Raises:
        InputError: there are more than two classes, an array contains NaN or inf, or shapes do not match.

    Source:
        docs/notes/which_mixture.md.
    """
    corpus = scores.corpus
    if corpus.num_classes != 2:
        raise ja.InputError(f"corpus: {corpus.num_classes} classes; a max-margin head is defined for two")
    E, p, v = (np.asarray(x, np.float64) for x in (scores.keys, p, v))
    if E.shape != (corpus.vocab_size, p.size) or p.ndim != 1 or v.shape != p.shape:
        raise ja.InputError(
            f"shapes do not fit: keys {E.shape}, p {p.shape}, v {v.shape}; give (V, D), (D,), (D,)"
        )
    if not all(np.isfinite(x).all() for x in (E, p, v)):
        raise ja.InputError("keys, p, v: they contain NaN or inf; give an earlier point of the path")
    present, sequence, token = distinct_tokens(corpus)
    entries = Entries(
        sequence=sequence.astype(int),
        token=token,
        times=np.asarray(corpus.bags.count)[present].astype(float),
        labels=np.asarray(corpus.targets).astype(float),
    )
    # Use the power of two next to the largest entry as the unit of length. This is exact, so the result is
    # the same in any unit.
    unit = np.ldexp(1.0, np.frexp(np.abs(E).max(initial=0.0))[1])
    found = _certify(E / unit, p * unit, v * unit, entries, tolerance)
    return replace(
        found,
        p=found.p / unit,
        v=found.v / unit,
        weight=found.weight / unit / unit,
        direction=found.direction and found.direction.in_unit(unit),
    )


def _certify(E: np.ndarray, p: np.ndarray, v: np.ndarray, entries: Entries, tolerance: float) -> JointLimit:
    n, nan = len(entries.labels), np.full(E.shape[1], np.nan)
    found: dict[str, Any] = {
        "p": nan,
        "v": nan,
        "heavy": np.zeros(n, bool),
        "weight": np.zeros(n),
        "finite": 0,
    }
    found |= {"gradient": np.nan, "curvature": np.nan, "head_gap": np.nan, "direction": None, "spare": np.nan}
    try:
        heavy, mixed = _kinds(E, p, v, entries)
        found |= {"heavy": heavy}
        leader, normals = _ties(E, entries, heavy, mixed)
        head = solve_head(E, p, entries, heavy, mixed, normals)
        weight = weights_of_sequences(entries, heavy, head)
        found |= {"v": head.v, "weight": weight, "finite": len(normals), "gradient": head.gradient}
        found |= {"curvature": head.curvature, "head_gap": head.gap}
        if head.gap > tolerance or head.gradient > _ZERO or not head.curvature > _ZERO:
            raise NotCertified("the points of finite attention are not a strict maximum of the margin of v")
        r = v @ head.v / (head.v @ head.v)
        if not _agreement(E @ p, E @ head.v, entries).min() >= 1 - max(1 / np.sqrt(max(r, 1)), ON_MARGIN):
            raise NotCertified("a sequence is below the margin of the heavy ones")
        classes = merged_classes(E, p, head, entries, leader)
        flat = E - E @ normals.T @ normals
        program = Program(flat, np.log(r), classes, heavy, weight, tolerance)
        direction, spare = program.solve(flat @ p)
        found |= {"p": direction.p, "direction": direction, "spare": spare}
    except NotCertified as refused:
        return JointLimit(**found, reason=str(refused))
    return JointLimit(**found)


def _kinds(E: np.ndarray, p: np.ndarray, v: np.ndarray, entries: Entries) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of heavy sequences, and a mask of their entries with finite attention.

    The cut-off for attention, and for weights relative to the largest weight, is 1/√(min y f).
    """
    log_q, agreement = entries.attention(E @ p), _agreement(E @ p, E @ v, entries)
    if not agreement.min() > np.exp(_LONG):
        raise NotCertified("v is not large yet, or no v separates the labels")
    half = np.log(agreement.min()) / 2
    # For ‖v‖ above about e^36, the rounding error in y f exceeds the differences in y f between the sequences
    # with the largest weights.
    rounding = _ROUNDING * np.abs(E @ v).max()
    heavy = agreement < agreement.min() + max(half, rounding)
    return heavy, heavy[entries.sequence] & (log_q > -half)


def _agreement(scores: np.ndarray, values: np.ndarray, entries: Entries) -> np.ndarray:
    """Compute y x_X·v for each sequence as an (n,) array."""
    parts = np.exp(entries.attention(scores)) * values[entries.token]
    return entries.labels * np.bincount(entries.sequence, parts, len(entries.labels))


def _ties(
    E: np.ndarray, entries: Entries, heavy: np.ndarray, mixed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest token tied with each token by finite attention, and a (k, D) basis of 𝒯."""
    first = np.full(len(heavy), len(E))
    np.minimum.at(first, entries.sequence[mixed], entries.token[mixed])
    one, other = first[entries.sequence[mixed]], entries.token[mixed]
    leader = tie_classes(one, other, len(E))
    tied = one != other
    if not tied.any():
        return leader, np.zeros((0, E.shape[1]))
    _, size, vt = np.linalg.svd(E[one[tied]] - E[other[tied]], full_matrices=False)
    return leader, vt[size > 1e-10 * size[0]]
