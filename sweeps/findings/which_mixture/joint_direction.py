"""Limit direction of p in the joint flow of p and v, determined by the tokens that must separate."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from joint_head import Entries, Head, NotCertified
from two_sided import TwoSided, two_sided

# A token counts as on the margin of v if y γ is within this distance of 1. The tolerance exceeds the rounding
# error.
ON_MARGIN = 1e-8
# Minimum slack with which a strict inequality counts as satisfied.
_STRICT = 1e-6
# Maximum number of updates to the top tokens of light sequences, whose weight in the loss is negligible.
_CHOICES = 20
# Maximum number of combinations of tied tokens to try as top tokens of light sequences, whose weight in the
# loss is negligible.
_LEVEL_CHOICES = 256
# Multipliers below this fraction of the largest multiplier count as zero.
_NO_MULTIPLIER = 1e-9


class StrictGap(NamedTuple):
    """Pair of tokens for which the score of `top` must exceed the score of `low` by more than `least`.

    A force r^(2 · least) · w q c attracts `low`, and `log_force` is log(w q c).
    """

    top: int
    low: int
    least: float
    log_force: float


class Classes(NamedTuple):
    """Classes of tied tokens: sequence, smallest token, y γ - 1, weight of the point, and log q of each."""

    sequence: np.ndarray
    leader: np.ndarray
    excess: np.ndarray
    own: np.ndarray
    log_q: np.ndarray


def merged_classes(E: np.ndarray, p: np.ndarray, head: Head, entries: Entries, leader: np.ndarray) -> Classes:
    """Merge the tied tokens of each sequence into classes.

    `own` is λ/N for a class that is a point of N sequences, else NaN.
    """
    key = entries.sequence * len(E) + leader[entries.token]
    distinct, group = np.unique(key, return_inverse=True)
    log_weight = head.scores[entries.token] + np.log(entries.times)
    top = np.full(len(distinct), -np.inf)
    np.maximum.at(top, group, log_weight)
    weight = np.exp(log_weight - top[group])
    moment = np.bincount(group, weight * (E @ head.v)[entries.token]) / np.bincount(group, weight)
    sequence = distinct // len(E)
    excess = entries.labels[sequence] * moment - 1
    excess[np.abs(excess) <= ON_MARGIN] = 0
    shared = np.bincount(head.point[head.point >= 0], minlength=len(head.multipliers))
    own = np.full(len(distinct), np.nan)
    weights = {}
    alone = np.bincount(leader, minlength=len(E))[leader] == 1
    for X in np.flatnonzero(head.point >= 0):
        (tokens,) = np.nonzero(entries.sequence == X)
        best = entries.token[tokens[log_weight[tokens].argmax()]]
        if alone[best]:
            j = head.point[X]
            weights[int(best), entries.labels[X]] = head.multipliers[j] / shared[j]
    for i in np.flatnonzero(excess == 0):
        own[i] = weights.get((int(distinct[i] % len(E)), entries.labels[sequence[i]]), np.nan)
    log_q = np.full(len(distinct), -np.inf)
    np.logaddexp.at(log_q, group, entries.attention(E @ p))
    return Classes(sequence, distinct % len(E), excess, own, log_q)


class Program(NamedTuple):
    """Program that determines the limit direction p_* of p.

    Attributes:
        E: (V, D); keys, projected orthogonally to 𝒯, the span of the differences of tied tokens.
        log_r: log of the length of v relative to the length of v_mm.
        classes: the classes of tied tokens.
        heavy: (n,) bool.
        weight: (n,); the weight of heavy sequences.
        tolerance: largest relative duality gap.
    """

    E: np.ndarray
    log_r: float
    classes: Classes
    heavy: np.ndarray
    weight: np.ndarray
    tolerance: float

    def solve(self, scores: np.ndarray) -> tuple[TwoSided, float]:
        """Return p_* and its slack, with the highest tokens as holders of light sequences.

        The holder h of a light sequence is its highest token with y γ_h > 1. A light sequence requires
        a_h ≥ a_s + least for its holder h. If multiple tokens are tied at p_*, the vector p_* must be the
        shortest for each choice of holder. If one choice gives a shorter p, the flow leaves p_*, and the
        given point is not far enough along the path.

        Args:
            scores: (V,); scores at a point of the path.

        Returns:
            The direction, and the smallest slack of its strict conditions.

        Raises:
            NotCertified: there is no direction, or the choice of holders is undecided.
        """
        holders = _holders(scores, self.classes, self.heavy)
        for _ in range(_CHOICES):
            found, spare = self._with(scores, holders)
            reached = self.E @ found.p
            highest = _holders(reached, self.classes, self.heavy)
            if all(reached[highest[X]] - reached[h] <= _STRICT for X, h in holders.items()):
                if any(self._shortens(found, scores, other) for other in self._level(found, scores, holders)):
                    raise NotCertified(
                        "several level tokens may hold a light sequence, and one of them gives a shorter p; "
                        "give a later point of the path"
                    )
                return found, spare
            scores, holders = reached, highest
        raise NotCertified("the holder of a light sequence is undecided")

    def _with(self, scores: np.ndarray, holders: dict[int, int]) -> tuple[TwoSided, float]:
        """Return p_* and its slack for given holders."""
        pairs, strict_gaps = _requirements(scores, self.classes, holders, self.heavy, self.weight)
        keys = sorted(pairs)
        better, worse = np.array(keys, int).reshape(-1, 2).T
        found = two_sided(self.E[better] - self.E[worse], np.array([pairs[key] for key in keys]))
        if not found.feasible or found.gap > self.tolerance:
            raise NotCertified("no direction of p meets the requirements")
        spare = _spare(self.E, self.E @ found.p, self.log_r, strict_gaps)
        if not spare > _STRICT:
            raise NotCertified("a token above the margin rises in a heavy sequence")
        return found, float(spare)

    def _level(
        self, found: TwoSided, scores: np.ndarray, holders: dict[int, int]
    ) -> Iterator[dict[int, int]]:
        """Yield every choice of holders in which each holder is tied with the current one.

        Sequences whose multipliers are zero keep their current holders, because p_* does not depend on their
        constraints.
        """
        pairs, _ = _requirements(scores, self.classes, holders, self.heavy, self.weight)
        tight = found.multipliers > _NO_MULTIPLIER * found.multipliers.max(initial=0)
        tops = {key[0] for key, counts in zip(sorted(pairs), tight, strict=True) if counts}
        held = {X: h for X, h in holders.items() if h in tops}
        level = _level(self.E @ found.p, self.classes, held)
        if math.prod(len(choices) for choices in level.values()) > _LEVEL_CHOICES:
            raise NotCertified("too many level tokens may hold a light sequence")
        for chosen in itertools.product(*level.values()):
            yield holders | dict(zip(level, chosen, strict=True))

    def _shortens(self, found: TwoSided, scores: np.ndarray, holders: dict[int, int]) -> bool:
        """Return True if the program with the given holders has a shorter solution than `found`."""
        try:
            other, _ = self._with(scores, holders)
        except NotCertified:
            return False
        return bool(np.linalg.norm(other.p) < (1 - _STRICT) * np.linalg.norm(found.p))


def _level(scores: np.ndarray, classes: Classes, holders: dict[int, int]) -> dict[int, list[int]]:
    """For each sequence, return the classes above the margin that are tied with its holder.

    Sequences with only one such class are omitted.
    """
    level: dict[int, list[int]] = {}
    for X, s, excess in zip(classes.sequence, classes.leader, classes.excess, strict=True):
        if int(X) in holders and excess > 0 and scores[holders[int(X)]] - scores[s] <= _STRICT:
            level.setdefault(int(X), []).append(int(s))
    return {X: tokens for X, tokens in level.items() if len(tokens) > 1}


def _spare(E: np.ndarray, reached: np.ndarray, log_r: float, strict_gaps: list[StrictGap]) -> float:
    """Compute the smallest slack a_top - a_s - κ - ½ (E_s - E_top)·u over all pairs, or inf without pairs."""
    apart = {(pair.top, pair.low): E[pair.low] - E[pair.top] for pair in strict_gaps}
    pull = np.zeros(E.shape[1])
    for pair in strict_gaps:
        pull += np.exp(pair.log_force + 2 * pair.least * log_r) * apart[pair.top, pair.low]
    return min(
        (
            float(reached[pair.top] - reached[pair.low] - pair.least - apart[pair.top, pair.low] @ pull / 2)
            for pair in strict_gaps
        ),
        default=np.inf,
    )


def _holders(scores: np.ndarray, classes: Classes, heavy: np.ndarray) -> dict[int, int]:
    """For each light sequence, return the class above the margin with the highest score."""
    best: dict[int, int] = {}
    for X, s, excess in zip(classes.sequence, classes.leader, classes.excess, strict=True):
        if not heavy[X] and excess > 0 and (X not in best or scores[s] > scores[best[X]]):
            best[int(X)] = int(s)
    return best


def _requirements(
    scores: np.ndarray, classes: Classes, holders: dict[int, int], heavy: np.ndarray, weight: np.ndarray
) -> tuple[dict[tuple[int, int], float], list[StrictGap]]:
    """Return the pairs with their minimum gaps, and the pairs whose gap must strictly exceed a bound."""
    pairs: dict[tuple[int, int], float] = {}
    strict_gaps: list[StrictGap] = []
    for X in range(len(heavy)):
        (own,) = np.nonzero(classes.sequence == X)
        tokens, excesses = classes.leader[own], classes.excess[own]
        if heavy[X]:
            top = int(tokens[scores[tokens].argmax()])
        elif X in holders:
            top = holders[X]
        else:
            raise NotCertified("a light sequence has no token above the margin")
        log_force = classes.log_q[own] + np.log(weight[X] if heavy[X] else 1.0)
        for s, excess, other, force in zip(
            tokens.tolist(), excesses, classes.own[own], log_force, strict=True
        ):
            if s == top:
                continue
            if heavy[X] and excess > 0:
                strict_gaps.append(StrictGap(top, s, 1.0, force + np.log(excess)))
            elif heavy[X] and excess == 0:
                if np.isnan(other) or other == weight[X]:
                    raise NotCertified("a token on the margin is not a point of v, or has the same weight")
                if other < weight[X]:
                    strict_gaps.append(StrictGap(top, s, 0.5, force + np.log(np.log(weight[X] / other))))
                    continue
                pairs[top, s] = max(pairs.get((top, s), -np.inf), 0.5)
            elif excess <= 0:
                least = 1.0 if heavy[X] else -0.5 if excess == 0 else 0.0
                pairs[top, s] = max(pairs.get((top, s), -np.inf), least)
    return pairs, strict_gaps
