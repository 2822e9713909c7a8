"""One batch of a search, as a pure function of its description.

Half of a batch is new, and half are mutations of the best instances so far. The batch depends only on the
claim's file, the seed, the number of the batch, and these parents, so any process can compute it.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxattn.core import backend
from jaxattn.core.errors import InputError, from_user_code
from jaxattn.lab.refute import space as spaces
from jaxattn.lab.refute.claim import Claim, read_claim, split
from jaxattn.lab.refute.evolution import evolve
from jaxattn.lab.refute.flows import in_parts
from jaxattn.lab.refute.space import Instance

# Number of parents per size, and number of instances per batch whose sides are computed exactly.
POOL, CHECKED = 64, 12


class Batch(NamedTuple):
    """Description of a batch.

    Attributes:
        claim: name of the claim; see `read_claim`.
        seed: seed of the search.
        number: number of the batch.
        size: index of the size in the claim's space.
        parents: best instances of this size so far, as nested lists, before `Space.repair`.
        evolution: whether differential evolution chooses the instances, from a population of this kind.
    """

    claim: str
    seed: int
    number: int
    size: int
    parents: list[Any]
    evolution: bool = False

    def run(self) -> "Outcome":
        """Compute the batch in this process, with JAX in float64."""
        with from_user_code(frozenset({str(split(self.claim)[0])}), self.claim):
            return compute(read_claim(self.claim), self)


class Outcome(NamedTuple):
    """Result of a batch.

    Attributes:
        tried: number of distinct instances in the batch.
        inside: number of them inside the assumptions, as far as the score determines it.
        best: the (score, instance) pairs with the largest scores, in descending order, before `repair`.
        found: instances for which the statement is violated exactly, best first.
        boundary: the same for degenerate cases, with the reason.
        checked: number of instances whose sides were computed exactly.
        refused: number of instances with a positive score whose violation the exact computation denied.
        undecided: number of instances with a positive score that were not decided exactly.
    """

    tried: int
    inside: int
    best: list[tuple[float, Any]]
    found: list[Any]
    boundary: list[tuple[str, Any]]
    checked: int
    refused: int
    undecided: int


def compute(claim: Claim, batch: Batch) -> Outcome:
    """Score the instances of a batch, and compute the sides of the most promising ones exactly."""
    rng = np.random.default_rng([batch.seed, batch.number])
    drawn = _instances(claim, batch, rng)
    built = spaces.repaired(claim.space, drawn)
    kept = _first_occurrences(built)
    drawn, built = ({name: x[kept] for name, x in one.items()} for one in (drawn, built))
    scores = score_batch(claim, built)
    order = np.argsort(-scores, kind="stable")
    inside = int(np.isfinite(scores).sum() + np.isposinf(scores).sum())
    found, boundary, checked, refused = [], [], 0, 0
    for index in order[:CHECKED]:
        if not scores[index] > 0:
            break
        instance = spaces.pick(built, index)
        checked += 1
        outcome = verdict(claim, instance)
        if outcome is None:
            refused += 1
        elif outcome:
            boundary.append((outcome, spaces.to_lists(instance)))
        else:
            found.append(spaces.to_lists(instance))
    top = [index for index in order[:POOL] if scores[index] > -np.inf]
    best = [(float(min(scores[i], 1e300)), spaces.to_lists(spaces.pick(drawn, i))) for i in top]
    undecided = int((scores > 0).sum()) - checked
    return Outcome(len(kept), inside, best, found, boundary, checked, refused, undecided)


def verdict(claim: Claim, instance: Instance) -> str | None:
    """Decide in exact arithmetic whether an instance with a positive score violates the statement.

    Without an exact target, `exact` computes the same flow as the score, which therefore decides.

    Returns:
        None if it does not, or if an assumption fails; the reason if it is a degenerate case; else "".
    """
    if claim.assumptions(instance):
        return None
    if not claim.exact_target:
        return ""
    sides = claim.exact(instance)
    return sides.boundary if sides.violated else None


def score_batch(claim: Claim, batch: Instance) -> np.ndarray:
    """Return the scores of a batch, (B,) float64. NaN becomes -inf."""
    count = len(next(iter(batch.values())))
    vectorised = _vectorised(claim.score)
    with backend.float64():
        if claim.batched:
            scores = np.asarray(claim.score(batch), np.float64)
        else:
            # A constant number of instances, so that a size is compiled once.
            scores = in_parts(lambda part: np.asarray(vectorised(part), np.float64), batch, claim.batch)
    if scores.shape != (count,):
        raise InputError(
            f"score: returned shape {scores.shape} for {count} instances; return one number each"
        )
    return np.where(np.isnan(scores), -np.inf, scores)


@cache
def _vectorised(score: Any) -> Any:
    """Return the compiled score of a batch; jit keeps its programs as long as this is the same object."""
    return jax.jit(jax.vmap(score))


def _instances(claim: Claim, batch: Batch, rng: np.random.Generator) -> Instance:
    if is_enumerated(claim, batch.size):
        return spaces.enumerate_all(claim.space, batch.size)
    half = claim.batch // 2 if batch.parents else 0
    new = spaces.sample(claim.space, batch.size, claim.batch - half, rng)
    if half:
        parents = spaces.stack([spaces.from_lists(one) for one in batch.parents])
        children = spaces.mutate(claim.space, batch.size, parents, half, rng)
        new = {name: np.concatenate([new[name], children[name]]) for name in new}
    if not batch.evolution:
        return new
    return evolve(claim.space, batch.size, lambda one: score_batch(claim, one), new, rng)


def is_enumerated(claim: Claim, size: int) -> bool:
    """Return whether one batch contains all instances of a size."""
    return claim.space.number(size) <= min(spaces.ENUMERABLE, claim.batch)


def _first_occurrences(batch: Instance) -> np.ndarray:
    flat = np.concatenate([x.reshape(len(x), -1) for x in batch.values()], axis=1)
    return np.sort(np.unique(flat, axis=0, return_index=True)[1])
