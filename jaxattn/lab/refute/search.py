"""One batch of a search, as a pure function, and the state of a search between batches.

Half of a batch is new, and half are mutations of the best instances so far. The batch depends only on the
claim's file, the seed, the number of the batch, and these parents, so any process can compute it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxattn.core import backend
from jaxattn.core.errors import InputError, from_user_code, writing
from jaxattn.lab.refute import space as spaces
from jaxattn.lab.refute.claim import Claim, read_claim, split
from jaxattn.lab.refute.evolution import evolve
from jaxattn.lab.refute.flows import in_parts
from jaxattn.lab.refute.space import Instance

# Number of parents per size, and number of instances per batch whose sides are computed exactly.
POOL, CHECKED = 64, 12
# Batches with the same parents. Workers share them, so results do not depend on the number of workers.
ROUND = 4


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


def _vectorised(score: Any) -> Any:
    if score not in _VECTORISED:
        _VECTORISED[score] = jax.jit(jax.vmap(score))
    return _VECTORISED[score]


# Compiled scores, by function: jit keeps its programs only as long as its result is the same object.
_VECTORISED: dict[Any, Any] = {}


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


@dataclass
class Progress:
    """State of a search: everything that the next batch depends on, and the counts.

    Attributes:
        seed: seed of the search.
        claim: SHA-256 of the claim's file; another file starts a new search.
        evolution: whether differential evolution chooses the instances.
        number: number of batches so far.
        pools: best (score, instance) pairs of each size.
        parents: the pools at the beginning of the current round.
        done: sizes all of whose instances were tried.
        tried: number of instances so far, by size.
        inside: number of them inside the assumptions, by size.
        checked: number of exact computations.
        refused: number of these that denied a positive score.
        undecided: number of instances with a positive score without an exact computation.
        found: violations, best first.
        unconfirmed: number of them that the evidence of a numerical claim did not confirm.
        boundary: degenerate violations, with the reason.
        seconds: time spent so far.
        cpu_seconds: processor time of this process so far, without workers.
    """

    seed: int
    claim: str
    evolution: bool = False
    number: int = 0
    pools: list[list[Any]] = field(default_factory=list)
    parents: list[list[Any]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)
    checked: int = 0
    refused: int = 0
    undecided: int = 0
    found: list[Any] = field(default_factory=list)
    unconfirmed: int = 0
    boundary: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def best(self) -> float:
        """Largest score so far; -inf if there is none."""
        return max((pool[0][0] for pool in self.pools if pool), default=-np.inf)

    def next_round(self, claim: Claim, name: str) -> list[Batch]:
        """Return the remaining batches of this round, or the first ones of the next round.

        Sizes take turns, except for those of which all instances were tried. The list is empty if no size
        is left.
        """
        if self.number % ROUND == 0:
            self.parents = [list(pool) for pool in self.pools]
        done, batches = set(self.done), []
        for number in range(self.number, self.number - self.number % ROUND + ROUND):
            # A size that is enumerated has its turn only once.
            left = [size for size in range(len(self.pools)) if size not in done]
            if not left:
                break
            size = left[number % len(left)]
            if is_enumerated(claim, size):
                done.add(size)
            parents = [instance for _, instance in self.parents[size]]
            batches.append(Batch(name, self.seed, number, size, parents, self.evolution))
        return batches

    def add(self, claim: Claim, batch: Batch, outcome: Outcome) -> None:
        """Add the outcome of the next batch."""
        size = batch.size
        self.number = batch.number + 1
        self.tried[size] += outcome.tried
        self.inside[size] += outcome.inside
        self.checked += outcome.checked
        self.refused += outcome.refused
        self.undecided += outcome.undecided
        self.found += outcome.found
        self.boundary += [list(one) for one in outcome.boundary]
        self.pools[size] = _merged(self.pools[size], outcome.best)
        if is_enumerated(claim, size):
            self.done.append(size)


def start(claim: Claim, seed: int, digest: str, evolution: bool = False) -> Progress:
    """Return the state of a search before its first batch."""
    count = len(claim.space.sizes)
    lists: tuple[list[list[Any]], list[list[Any]]] = ([[] for _ in range(count)], [[] for _ in range(count)])
    zeros = [0] * count
    return Progress(
        seed, digest, evolution, pools=lists[0], parents=lists[1], tried=zeros, inside=list(zeros)
    )  # fmt: skip


def save(progress: Progress, path: Path) -> None:
    """Write the state to a JSON file, which exists in full or not at all."""
    partial = path.with_suffix(".partial")
    with writing(path):
        partial.write_text(json.dumps(vars(progress)), encoding="utf-8")
        partial.replace(path)


def load(path: Path) -> Progress | None:
    """Read a state, or return None if there is none or the file is damaged."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Progress(**found)
    except (OSError, ValueError, TypeError):
        return None


def _merged(pool: list[Any], best: list[tuple[float, Any]]) -> list[Any]:
    """Return the best distinct instances of both lists, in descending order of their scores."""
    known, merged = set(), []
    for score, instance in sorted([*pool, *best], key=lambda pair: -pair[0]):
        text = json.dumps(instance, sort_keys=True)
        if text not in known:
            known.add(text)
            merged.append([score, instance])
    return merged[:POOL]
