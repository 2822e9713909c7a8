"""The max-margin direction of a selection, for one problem or for many, small or large."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores
from jaxattn.core.errors import InputError
from jaxattn.core.mapping import map_on_cores
from jaxattn.theory.active_set import active_set
from jaxattn.theory.certificate import (
    LARGEST,
    SMALLEST,
    MaxMargin,
    Solution,
    Status,
    certify_max_margin,
    lengths,
    unsolved,
)
from jaxattn.theory.constraints import Constraints, circle, coinciding, constraints
from jaxattn.theory.normalised import solve_normalised
from jaxattn.theory.selection import Selection, require_finite, require_keys

# Entries of the matrix of differences up to which the normalised problem is tried too.
_MOST_NORMALISED = 10_000_000


class _Problem(NamedTuple):
    """One problem as its solver sees it.

    Attributes:
        E: (V, d) float64; the keys.
        constraints: the constraints.
        rows: (V, r); E in r = min(V, d) coordinates, longest row 1, orthogonal to the differences of ties.
    """

    E: np.ndarray
    constraints: Constraints
    rows: np.ndarray

    def solve(self, tolerance: float) -> MaxMargin:
        """Find the shortest p and certify it; where rounding leaves it open, solve the normalised problem."""
        better, worse, _, _, required = self.constraints
        dim = self.rows.shape[1]
        limits = {"tolerance": tolerance, "max_steps": 100 * dim + 1000}
        solution = active_set(self.rows, better, worse, required, **limits)
        answer = _conclude(self, solution, tolerance=tolerance)
        decided = answer.status in (Status.SOLVED, Status.INFEASIBLE)
        if decided or len(required) * self.E.shape[1] > _MOST_NORMALISED:
            return answer
        other = _conclude(self, *solve_normalised(self.E, self.constraints), tolerance=tolerance)
        is_better = (other.feasible, -other.duality_gap) > (answer.feasible, -answer.duality_gap)
        return other if other.infeasible or is_better else answer


def max_margin(
    scores: Scores,
    selection: Selection,
    *,
    tolerance: float = 1e-10,
) -> MaxMargin:
    """Find the shortest p that scores selected tokens higher by 1 than the others of their sequence.

        p_mm = argmin ‖p‖²  s.t.  p·(Φ_s - Φ_s') ≥ 1  for all X, s ∈ S_X, s' ∈ X \\ S_X,
                                  p·(Φ_s - Φ_s'') = 0  for s, s'' ∈ S_X.

    A selection that no direction separates is an answer, not an error: `infeasible` is True, `reason` says
    why, and the multipliers prove it. Where rounding leaves it open, neither that nor `feasible` is True.
    The certificate is computed from Φ, p and the multipliers alone, in float64 whether or not JAX has x64
    enabled, and whatever the lengths of the differences are.

    Args:
        scores: keys Φ (m, D), and bags of n sequences; `Scores(E, corpus)` for embeddings.
        selection: the selected tokens of each sequence, at least one.
        tolerance: largest relative duality gap of a solved problem.

    Returns:
        The direction, its margin and its certificate.

    Raises:
        InputError: Φ holds NaN or inf, a sequence without selected token, shapes that do not fit.

    Source: Wu et al. 2025 (arXiv 2505.17282), §4, the max-margin problem; ties as in Tarzanagh et al. 2023
        (arXiv 2308.16898).
    """
    require_finite(keys=scores.keys)
    problem = _prepare(scores, selection)
    return problem if isinstance(problem, MaxMargin) else problem.solve(tolerance)


def max_margin_from_constraints(
    keys: Float[Array | np.ndarray, "V d"], constraints: Constraints, *, tolerance: float = 1e-10
) -> MaxMargin:
    """Find the shortest p whose scores Φ p meet given constraints, with a certificate.

        p = argmin ‖p‖²  s.t.  p·(Φ_s - Φ_s') ≥ required for all pairs,  p·(Φ_s - Φ_s'') = 0 for all ties.

    `max_margin` is this problem with the constraints of a selection.

    Args:
        keys: (V, d) float; Φ.
        constraints: m pairs and t ties of V tokens.
        tolerance: largest relative duality gap of a solved problem.

    Returns:
        The direction and its certificate, as `max_margin` returns them.

    Raises:
        InputError: Φ holds NaN or inf, or has not one row for each token of the constraints.
    """
    keys, tokens = np.asarray(keys, np.float64), len(constraints.leader)
    if keys.ndim != 2 or len(keys) != tokens:
        raise InputError(f"keys: shape {keys.shape} for {tokens} tokens; give (V, d)")
    require_finite(keys=keys)
    problem = _pose(keys, constraints)
    return problem if isinstance(problem, MaxMargin) else problem.solve(tolerance)


def max_margin_batch(
    scores: Scores,
    selection: Selection,
    *,
    tolerance: float = 1e-10,
) -> MaxMargin:
    """Solve one max-margin problem per seed, all at once.

    Seeds with NaN, with a sequence without selected token, or with an infeasible selection are reported in
    `status` and `reason` and do not stop the others.

    Args:
        scores: keys (S, m, D) of each seed; one corpus for all seeds, or one for each: arrays with a
            leading axis S.
        selection: the selection of each seed, mask (S, R, W).
        tolerance: largest relative duality gap of a solved problem.

    Returns:
        The answers; each array has a leading axis S, supports and ties are padded with multiplier 0.

    Raises:
        InputError: shapes that do not fit.
    """
    E, corpus, mask = np.asarray(scores.keys), scores.corpus, np.asarray(selection.mask)
    shared = corpus.targets.ndim == 1
    if mask.ndim != 3 or not 0 < len(E) == len(mask) or not (shared or len(corpus.targets) == len(E)):
        raise InputError(
            f"keys {E.shape}, selection {mask.shape}, labels {corpus.targets.shape}: "
            "give one of each per seed"
        )
    corpus = jax.tree.map(np.asarray, corpus)

    def solve(seed: int) -> MaxMargin:
        own = corpus if shared else jax.tree.map(lambda x: x[seed], corpus)
        present = (own.bags.count > 0) & mask[seed]
        selected = np.bincount(own.bags.owner, present.sum(axis=1), minlength=own.num_examples)
        if not np.isfinite(E[seed]).all() or (selected[: own.num_examples] == 0).any():
            return unsolved(Status.INVALID, E.shape[2])
        problem = _prepare(Scores(E[seed], own), Selection(mask[seed]))
        return problem if isinstance(problem, MaxMargin) else problem.solve(tolerance)

    return _stack(map_on_cores(solve, range(len(E))))


def _prepare(scores: Scores, selection: Selection) -> _Problem | MaxMargin:
    require_keys(scores.keys, scores.corpus)
    keys = np.asarray(scores.keys, np.float64)
    return _pose(keys, constraints(scores.corpus, selection))


def _pose(E: np.ndarray, found: Constraints) -> _Problem | MaxMargin:
    """Set up a problem, or answer it at once if the embeddings do not matter."""
    better, worse, ties, _, required = found
    largest = np.abs(E).max(initial=0)
    if largest > LARGEST or 0 < largest < SMALLEST:
        return unsolved(Status.INVALID, E.shape[1], ties=ties)
    if not required.any():
        return unsolved(Status.NOTHING, E.shape[1], ties=ties)
    same = coinciding(E, found)
    if same is not None:
        alone = 1.0 * (np.arange(len(better)) == same)
        return certify_max_margin(E, found, alone, np.zeros(len(ties)), tolerance=0.0)
    around = circle(found)
    if len(around):
        multipliers = np.zeros(len(better))
        multipliers[around] = 1
        # Moving the weight of each tied token to its leader makes the sum vanish exactly.
        weight = np.bincount(better[around], minlength=len(E)) - np.bincount(worse[around], minlength=len(E))
        answer = certify_max_margin(E, found, multipliers, 1.0 * weight[ties[:, 1]], tolerance=0.0)
        return replace(answer, status=np.int8(Status.CIRCLE))
    rows = np.asarray(np.linalg.qr(E.T, mode="r")).T if len(E) < E.shape[1] else E
    rows = rows / max(np.sqrt(np.square(rows).sum(axis=1).max()), np.finfo(float).tiny)
    return _Problem(E, found, _untie(rows, ties))


def _untie(rows: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Project the embeddings orthogonally to the differences of tied tokens.

    The shortest p that ties them lies in that subspace, so what is left is a problem without ties.
    """
    if len(ties) == 0:
        return rows
    _, size, vt = np.linalg.svd(rows[ties[:, 1]] - rows[ties[:, 0]], full_matrices=False)
    across = vt[size > 1e-12]
    rows = rows - (rows @ across.T) @ across
    rows[ties[:, 1]] = rows[ties[:, 0]]
    return rows


def _conclude(
    problem: _Problem,
    solution: Solution,
    p: np.ndarray | None = None,
    *,
    tolerance: float,
) -> MaxMargin:
    E, (better, worse, ties, *_) = problem.E, problem.constraints
    multipliers = np.maximum(solution.multipliers, 0)
    support = np.flatnonzero(multipliers)
    apart = E[ties[:, 0]] - E[ties[:, 1]]
    size = lengths(apart)
    size[size == 0] = 1.0
    tie_multipliers = np.zeros(len(ties))
    if len(ties):
        w = multipliers[support] @ (E[better[support]] - E[worse[support]])
        tie_multipliers = -np.linalg.lstsq((apart / size[:, None]).T, w, rcond=1e-12)[0] / size
    return certify_max_margin(
        E,
        problem.constraints,
        multipliers,
        tie_multipliers,
        p=p,
        tolerance=tolerance,
        iterations=solution.iterations,
    )


def _stack(answers: list[MaxMargin]) -> MaxMargin:
    def pad(x: np.ndarray, size: int) -> np.ndarray:
        return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])

    support = max(len(answer.multipliers) for answer in answers)
    ties = max(len(answer.tie_multipliers) for answer in answers)
    answers = [
        replace(
            answer,
            pairs=pad(answer.pairs, support),
            multipliers=pad(answer.multipliers, support),
            ties=pad(answer.ties, ties),
            tie_multipliers=pad(answer.tie_multipliers, ties),
        )
        for answer in answers
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *answers)


# Smaller singular values, relative to the largest, mean normalised differences that depend on others.
_DEPENDENT = 1e-10


def differentiable_direction(E: Float[Array | np.ndarray, "V d"], answer: MaxMargin) -> Float[Array, " d"]:
    """Write the p of an answer as a function of E, which can be differentiated. Pure: jit, grad and vmap it.

        p(E) = N⁺ b,   N = (E_s - E_s' of the support, E_s - E_s'' of the ties),   b = (1, ..., 1, 0, ..., 0)

    While E stays near the one of the answer, the same pairs are tight, and by the implicit function theorem
    p(E) is the max-margin direction there too:

        dp = -N⁺ dN p + (1 - N⁺ N) dNᵀ (λ, μ).

    So `jax.jacobian(differentiable_direction)(E, answer)` says how the limit of gradient flow on p,
    `certify_limit(...).direction`, moves with the embeddings. Where a tight pair has multiplier 0 the
    direction has a kink, and this is its derivative on one side.

    Args:
        E: (V, d) float64; embeddings, equal or close to those of the answer.
        answer: one problem that was solved, every pair with margin 1.

    Returns:
        (d,); the answer's own p at its own E.

    Raises:
        InputError: a batch of answers, a problem that has no solution, one with other margins than 1, another
            number of tokens.

    Source: Fiacco, Introduction to Sensitivity and Stability Analysis in Nonlinear Programming (1983).
    """
    if np.ndim(answer.margin) != 0:
        raise InputError("answer: a batch; take one seed's with jax.tree.map(lambda x: x[seed], answer)")
    if not answer.feasible or len(answer.pairs) == 0:
        raise InputError(f"answer: no direction to follow ({answer.reason})")
    # λ·b = ‖p‖², whatever b is.
    if not np.isclose(answer.multipliers.sum(), answer.p @ answer.p, rtol=1e-6):
        raise InputError("answer: of some of its pairs less than 1 is required, and it does not say of which")
    ends = np.concatenate([answer.pairs, answer.ties])
    if ends.max() >= E.shape[0]:
        raise InputError(
            f"E: {E.shape[0]} tokens, but the answer is of more; give the E that it was found for"
        )
    required = np.repeat([1.0, 0.0], [len(answer.pairs), len(answer.ties)])
    E = jnp.asarray(E)
    rows = E[ends[:, 0]] - E[ends[:, 1]]
    # Rows of any lengths count alike; the lengths cancel, and have no part in the derivative.
    size = jax.lax.stop_gradient(jnp.linalg.norm(rows, axis=1))
    size = jnp.where(size > 0, size, 1.0)
    return jnp.linalg.pinv(rows / size[:, None], rtol=_DEPENDENT) @ (required / size)
