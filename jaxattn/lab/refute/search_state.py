"""State of a search between batches: the best instances, counts, and what was found; saved as JSON."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jaxattn.core.errors import writing
from jaxattn.lab.refute.batch import POOL, Batch, Outcome, is_enumerated
from jaxattn.lab.refute.claim import Claim
from jaxattn.lab.storage.files import replace

# Batches with the same parents. Workers share them, so results do not depend on the number of workers.
ROUND = 4


class Progress(msgspec.Struct):
    """State of a search: everything that the next batch depends on, and the counts.

    Attributes:
        seed: seed of the search.
        claim: "SHA-256:NAME" of the claim's file and of the claim in it; another one starts a new search.
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
    pools: list[list[Any]] = []
    parents: list[list[Any]] = []
    done: list[int] = []
    tried: list[int] = []
    inside: list[int] = []
    checked: int = 0
    refused: int = 0
    undecided: int = 0
    found: list[Any] = []
    unconfirmed: int = 0
    boundary: list[Any] = []
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
    sizes = range(len(claim.space.sizes))
    return Progress(
        seed,
        digest,
        evolution,
        pools=[[] for _ in sizes],
        parents=[[] for _ in sizes],
        tried=[0 for _ in sizes],
        inside=[0 for _ in sizes],
    )


def save(progress: Progress, path: Path) -> None:
    """Write the state to a JSON file, which exists in full or not at all."""
    with writing(path):
        replace(path, msgspec.json.encode(progress))


def load(path: Path) -> Progress | None:
    """Read a state, or return None if there is none or the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
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
