"""Max-margin directions for selected tokens, for a single problem or a batch."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores
from jaxattn.core.arithmetic import lengths, power_of_two
from jaxattn.core.errors import InputError
from jaxattn.core.loops import map_on_cores
from jaxattn.theory.active_set import active_set, orthogonal_to, solve_normalised
from jaxattn.theory.certificate import LARGEST, SMALLEST, Solution, certify_max_margin, require_margins
from jaxattn.theory.constraints import (
    Constraints,
    constraints,
    find_cycle,
    find_equal_keys,
    near_ties,
)
from jaxattn.theory.selection import Selection, require_finite, require_keys
from jaxattn.theory.solution import MaxMargin, Status, in_unit, unsolved

# Maximum number of entries of the difference matrix for which the normalised problem is also tried.
_MAX_NORMALISED = 10_000_000


class _Problem(NamedTuple):
    """Max-margin problem in the form required by the solver.

    Attributes:
        E: (V, d) float64; the keys.
        constraints: the constraints.
        rows: (V, r); E in r = min(V, d) coordinates, projected orthogonally to the differences of ties and
            scaled to a maximum row norm of 1.
    """

    E: np.ndarray
    constraints: Constraints
    rows: np.ndarray

    def solve(self, tolerance: float) -> MaxMargin:
        """Return the minimum-norm p and its certificate.

        If the result is undecided, retry with normalised differences.
        """
        better, worse, _, _, required = self.constraints
        dim = self.rows.shape[1]
        limits = {"tolerance": tolerance, "max_steps": 100 * dim + 1000}
        found = active_set(self.rows, better, worse, required, **limits)
        solution = _conclude(self, found, tolerance=tolerance)
        decided = solution.status in (Status.SOLVED, Status.INFEASIBLE)
        if decided or len(required) * self.E.shape[1] > _MAX_NORMALISED:
            return solution
        other = _conclude(self, *solve_normalised(self.E, self.constraints), tolerance=tolerance)
        is_better = (other.feasible, -other.duality_gap) > (solution.feasible, -solution.duality_gap)
        return other if other.infeasible or is_better else solution


def max_margin(
    scores: Scores,
    selection: Selection,
    *,
    tolerance: float = 1e-10,
) -> MaxMargin:
    """Find the minimum-norm p that scores selected tokens at least 1 above the others in their sequence.

        p_mm = argmin ‖p‖²  s.t.  p·(Φ_s - Φ_s') ≥ 1  for all X, s ∈ S_X, and s' ∈ X with s' ∉ S_X,
                                  p·(Φ_s - Φ_s'') = 0  for s, s'' ∈ S_X.

    If no direction separates the selected tokens, no error is raised: `infeasible` is True, `reason` states
    the cause, and the multipliers prove it. If rounding prevents a decision, both `feasible` and `infeasible`
    are False. The certificate is computed only from Φ, p and the multipliers, in float64 even if x64 is
    disabled in JAX.

    Args:
        scores: keys Φ (m, D), and bags of n sequences; `Scores(E, corpus)` for embeddings.
        selection: the selected tokens S_X in each sequence X, at least one.
        tolerance: relative duality gap up to which the problem counts as solved.

    Returns:
        The direction, its margin and its certificate.

    Raises:
        InputError: Φ contains NaN or inf, a sequence has no selected token, or the shapes do not match.

    Source:
        Wu et al. 2025 (arXiv 2505.17282), §4, the max-margin problem; ties as in Tarzanagh et al. 2023 (arXiv
        2308.16898).

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> mm = ja.theory.max_margin(ja.theory.Scores(np.eye(3), corpus), chosen)
        >>> mm.p.round(4).tolist(), mm.feasible
        ([0.3333, 0.3333, -0.6667], True)
    """
    require_keys(scores.keys, scores.corpus)
    require_finite(keys=scores.keys)
    return _solve(np.asarray(scores.keys, np.float64), constraints(scores.corpus, selection), tolerance)


def max_margin_from_constraints(
    keys: Float[Array | np.ndarray, "V d"], constraints: Constraints, *, tolerance: float = 1e-10
) -> MaxMargin:
    """Find the minimum-norm p whose scores Φ p satisfy the given constraints, and certify it.

        p = argmin ‖p‖²  s.t.  p·(Φ_s - Φ_s') ≥ required for all pairs,  p·(Φ_s - Φ_s'') = 0 for all ties.

    `max_margin` solves this problem with the constraints imposed by a selection.

    Args:
        keys: (V, d) float; Φ.
        constraints: m pairs (s, s') and t ties (s, s'') of V tokens.
        tolerance: relative duality gap up to which the problem counts as solved.

    Raises:
        InputError: Φ or a required margin contains NaN or inf, a required margin is negative, or Φ does not
            have one row per token.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> found = ja.theory.constraints(corpus, chosen)
        >>> ja.theory.max_margin_from_constraints(np.eye(3), found).p.round(4).tolist()
        [0.3333, 0.3333, -0.6667]
    """
    keys, tokens = np.asarray(keys, np.float64), len(constraints.leader)
    if keys.ndim != 2 or len(keys) != tokens:
        raise InputError(f"keys: expected shape ({tokens}, d), one row per token, got {keys.shape}")
    require_finite(keys=keys)
    require_margins(constraints.required)
    return _solve(keys, constraints, tolerance)


def max_margin_batch(
    scores: Scores,
    selection: Selection,
    *,
    tolerance: float = 1e-10,
) -> MaxMargin:
    """Solve one max-margin problem per seed.

    If a seed contains NaN, lacks a selected token in some sequence, or is infeasible, its `status` and
    `reason` record this, and the other seeds are not affected.

    Args:
        scores: keys (S, m, D), one set per seed; and either one corpus for all seeds, or a stack of corpora
            with a leading axis S.
        selection: the selection for each seed, with mask (S, R, W).
        tolerance: relative duality gap up to which a problem counts as solved.

    Returns:
        The results, with a leading axis S for each array. Support pairs and ties are padded with zero
        multipliers.

    Raises:
        InputError: the shapes do not match.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> keys = np.stack([np.eye(3), 2 * np.eye(3)])
        >>> pair = jax.tree.map(lambda x: jnp.stack([x, x]), chosen)
        >>> ja.theory.max_margin_batch(ja.theory.Scores(keys, corpus), pair).p.round(4).tolist()
        [[0.3333, 0.3333, -0.6667], [0.1667, 0.1667, -0.3333]]
    """
    E, corpus, mask = np.asarray(scores.keys), scores.corpus, np.asarray(selection.mask)
    shared = corpus.targets.ndim == 1
    if mask.ndim != 3 or not 0 < len(E) == len(mask) or not (shared or len(corpus.targets) == len(E)):
        raise InputError(
            f"seed axes do not match: keys {E.shape}, selection {mask.shape}, labels {corpus.targets.shape}; "
            "pass one of "
            "each per seed"
        )
    corpus = jax.tree.map(np.asarray, corpus)

    def solve(seed: int) -> MaxMargin:
        own = corpus if shared else jax.tree.map(lambda x: x[seed], corpus)
        present = (own.bags.count > 0) & mask[seed]
        selected = np.bincount(own.bags.owner, present.sum(axis=1), minlength=own.num_examples)
        if not np.isfinite(E[seed]).all() or (selected[: own.num_examples] == 0).any():
            return unsolved(Status.INVALID, E.shape[2])
        require_keys(E[seed], own)
        return _solve(np.asarray(E[seed], np.float64), constraints(own, Selection(mask[seed])), tolerance)

    return _stack(map_on_cores(solve, range(len(E))))


def _solve(keys: np.ndarray, found: Constraints, tolerance: float) -> MaxMargin:
    largest = np.abs(keys).max(initial=0)
    if largest > LARGEST or 0 < largest < SMALLEST:
        return unsolved(Status.INVALID, keys.shape[1], ties=found.ties)
    if not found.required.any():
        return unsolved(Status.NO_PAIRS, keys.shape[1], ties=found.ties)
    # Solve in a unit of length next to the largest entry, so that the solution is the same in any unit.
    unit = float(power_of_two(largest))
    problem = _problem(keys / unit, found)
    solution = problem if isinstance(problem, MaxMargin) else problem.solve(tolerance)
    return in_unit(solution, unit)


def _problem(E: np.ndarray, found: Constraints) -> _Problem | MaxMargin:
    better, worse, ties, *_ = found
    same = find_equal_keys(E, found)
    if same is not None:
        alone = 1.0 * (np.arange(len(better)) == same)
        return certify_max_margin(E, found, alone, np.zeros(len(ties)), tolerance=0.0)
    around = find_cycle(found)
    if len(around):
        multipliers = np.zeros(len(better))
        multipliers[around] = 1
        # Move the weight of each tied token to the first token in its group; the sum then vanishes exactly.
        weight = np.bincount(better[around], minlength=len(E)) - np.bincount(worse[around], minlength=len(E))
        solution = certify_max_margin(E, found, multipliers, 1.0 * weight[ties[:, 1]], tolerance=0.0)
        return replace(solution, status=np.int8(Status.CYCLE))
    found = found._replace(ties=near_ties(E, found.leader)[0])
    rows = np.asarray(np.linalg.qr(E.T, mode="r")).T if len(E) < E.shape[1] else E
    rows = rows / max(np.sqrt(np.square(rows).sum(axis=1).max()), np.finfo(float).tiny)
    rows = orthogonal_to(rows, rows[found.ties[:, 1]] - rows[found.ties[:, 0]])
    return _Problem(E, found, rows[found.leader])


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


def _stack(solutions: list[MaxMargin]) -> MaxMargin:
    def pad(x: np.ndarray, size: int) -> np.ndarray:
        return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])

    support = max(len(solution.multipliers) for solution in solutions)
    ties = max(len(solution.tie_multipliers) for solution in solutions)
    solutions = [
        replace(
            solution,
            pairs=pad(solution.pairs, support),
            multipliers=pad(solution.multipliers, support),
            ties=pad(solution.ties, ties),
            tie_multipliers=pad(solution.tie_multipliers, ties),
        )
        for solution in solutions
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *solutions)


# Relative singular value below which normalised differences count as linearly dependent.
_DEPENDENT = 1e-10


def differentiable_direction(E: Float[Array | np.ndarray, "V d"], solution: MaxMargin) -> Float[Array, " d"]:
    """Return p of a solved problem, (d,), as a differentiable function of E. Works under jit, grad and vmap.

        p(E) = N⁺ b,   b = (1, ..., 1, 0, ..., 0),

    where N⁺ is the pseudoinverse of N. The rows of N are the differences E_s - E_s' of the support pairs,
    with b = 1, and E_s - E_s'' of the ties, with b = 0. Near the E for which the problem was solved, the same
    pairs are active. By the implicit function theorem, p(E) is also the max-margin direction there:

        dp = -N⁺ dN p + (1 - N⁺ N) dNᵀ (λ, μ).

    `jax.jacobian(differentiable_direction)(E, solution)` is therefore the derivative of
    `certify_limit(...).direction`, the limit of gradient flow on p, with respect to the embeddings. If an
    active pair has a zero multiplier, the direction is not differentiable, and the result is a one-sided
    derivative.

    Args:
        E: (V, d) float64; embeddings, equal or close to those for which the problem was solved.
        solution: the solution of a single problem in which every pair has required margin 1.

    Raises:
        InputError: `solution` is a batch, is not an exact solution, has required margins other than 1, or
            refers to tokens for which E has no row.

    Source: Fiacco, Introduction to Sensitivity and Stability Analysis in Nonlinear Programming (1983).

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> mm = ja.theory.max_margin(ja.theory.Scores(np.eye(3), corpus), chosen)
        >>> print(ja.theory.differentiable_direction(jnp.eye(3), mm).round(4))
        [ 0.3333  0.3333 -0.6667]
    """
    if np.ndim(solution.margin) != 0:
        raise InputError(
            "solution: is a batch; select one seed with jax.tree.map(lambda x: x[seed], solution)"
        )
    if not solution.feasible or len(solution.pairs) == 0:
        raise InputError(
            f"solution: has no direction ({solution.reason}); pass a solution of a feasible problem"
        )
    # λ·b = ‖p‖² for any required margins b, so the multipliers sum to ‖p‖² if every required margin is 1.
    if not np.isclose(solution.multipliers.sum(), solution.p @ solution.p, rtol=1e-6, atol=0.0):
        raise InputError(
            "solution: is inexact, or some required margin is not 1; pass a solved problem with "
            "a required margin of 1 for every pair"
        )
    ends = np.concatenate([solution.pairs, solution.ties])
    if ends.max() >= E.shape[0]:
        raise InputError(
            f"E: has {E.shape[0]} rows, but `solution` refers to more tokens; "
            "pass the E used to compute `solution`"
        )
    required = np.repeat([1.0, 0.0], [len(solution.pairs), len(solution.ties)])
    E = jnp.asarray(E)
    rows = E[ends[:, 0]] - E[ends[:, 1]]
    # Normalised rows have equal influence on the pseudoinverse. The norms cancel in the result, so they need
    # no gradient.
    size = jax.lax.stop_gradient(jnp.linalg.norm(rows, axis=1))
    size = jnp.where(size > 0, size, 1.0)
    return jnp.linalg.pinv(rows / size[:, None], rtol=_DEPENDENT) @ (required / size)
