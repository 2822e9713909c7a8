"""Probe of a whole phase: the query on its way, held against the max-margin direction it should end in."""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.base import Model, Phase, PhaseProbe, Task
from jaxattn.core import backend
from jaxattn.core.settings import NotNegative, Static
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded
from jaxattn.probes.selection import attended
from jaxattn.theory import (
    MaxMargin,
    Scores,
    Selection,
    margin,
    max_margin,
    max_margin_batch,
    one_minus_cosine,
)

Metrics = dict[str, np.ndarray]
_ON_THE_WAY = ("one_minus_cosine", "margin_ratio")
_AT_THE_END = (
    "certified_distance",
    "feasible",
    "max_margin",
    "duality_gap",
    "primal_residual",
    "support_pairs",
)


class MaxMarginDirection(PhaseProbe, frozen=True, kw_only=True):
    """The history of p against the max-margin direction of the selection that the phase ends with.

    A probe of a phase: `observe` is taken of every seed at every probe step, and `conclude` is told all of
    it when the phase has ended.

    Attributes:
        nats: tokens with a score so close to the top one of their sequence count as selected; None for ties
            up to rounding.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{mm})$",
        "margin_ratio": "margin of $p$ / largest margin",
        "margin_shortfall": "1 - margin of $p$ / largest margin",
        "certified_distance": r"$1-\cos$ to the true direction, at most",
        "feasible": "selection can be separated (1) or cannot (0)",
        "max_margin": "largest margin",
        "duality_gap": "relative duality gap",
        "primal_residual": "primal residual",
        "support_pairs": "pairs with a positive multiplier",
    }
    metrics: ClassVar[tuple[str, ...]] = (*_ON_THE_WAY, *_AT_THE_END)

    nats: Static[NotNegative] | None = None

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants a phase that moves nothing but the parameter that scores are linear in."""
        name = task.model.linear_in
        if name is None:
            return "wants a model with scores that are linear in a parameter"
        return None if tuple(phase.train) == (name,) else f"wants a phase that moves {name} alone"

    def observe(self, phase: Phase, state: Any) -> Any:
        """Look up p of one seed, the parameter in one row, (D,)."""
        return phase.parameter(state, phase.train[0]).reshape(-1)

    def conclude(
        self, history: np.ndarray, params: Any, model: Model[Any], loaded: Loaded
    ) -> tuple[Metrics, Metrics]:
        """Find the max-margin direction of every seed's last selection and compare.

        Args:
            history: (S, k, D) float64; p of every seed at k probe steps.
            params: the parameters at the end; what scores are made of did not move meanwhile.
            model: makes the scores.
            loaded: data, shared by the seeds or those of each.

        Returns:
            What every probe step is worth, (S, k) each: 1 - cos to the max-margin direction, and the margin
            on the last selection relative to the largest one. What the max-margin problem says, (S,) each.
            NaN where no direction separates the selection; `feasible` is NaN where neither is proven.
        """
        # On one device: the solver is not written for arrays that lie on several.
        params, data = jax.device_get((params, loaded.splits.train))
        with backend.float64():
            params = jax.tree.map(_in_float64, params)
            if loaded.shared and isinstance(data, Corpus) and data.bags.is_large:
                each = (model.scores(_of_seed(params, number), data) for number in range(len(history)))
                seeds = [_one(p, own, self.nats) for p, own in zip(history, each, strict=True)]
                away, ratio, *facts = (np.stack(x) for x in zip(*seeds, strict=True))
                return _named(away, ratio, *facts)
            axis = None if loaded.shared else 0
            # Bags are those of the data: shared by the seeds, or those of each.
            parts = jax.vmap(partial(_keys_and_bags, model), (0, axis), (0, axis))
            keys, corpus = jax.jit(parts)(params, data)
            select = partial(_selected, nats=self.nats)
            chosen = jax.jit(jax.vmap(select, (0, 0, axis)))(history[:, -1], keys, corpus)
            mm = max_margin_batch(Scores(keys, corpus), chosen)
            margins = jax.jit(jax.vmap(_margins, (0, 0, axis, 0)))(jnp.asarray(history), keys, corpus, chosen)
        away = one_minus_cosine(history, mm.p[:, None])
        return _named(away, _relative(margins, mm.margin[:, None]), *_facts(mm, away[:, -1]))


def certified_distance(away: Any, duality_gap: Any) -> np.ndarray:
    """Bound 1 - cos of the angle to the true max-margin direction from above.

    The angle to the computed direction, plus the angle between that one and the true direction that its
    duality gap leaves open: 1 - cos ≤ 1 - √(1 - gap).

    Args:
        away: 1 - cos to the computed direction, (...).
        duality_gap: its relative duality gap, (...).

    Returns:
        (...) float64, NaN where there is no direction.
    """
    gap = np.asarray(duality_gap)
    left_open = gap / (1 + np.sqrt(1 - gap))
    half_angle = sum(np.arcsin(np.minimum(np.sqrt(x / 2), 1)) for x in (np.asarray(away), left_open))
    return 2 * np.sin(np.minimum(half_angle, np.pi / 2)) ** 2


def _in_float64(x: Any) -> Any:
    return jnp.asarray(x, jnp.float64) if np.issubdtype(x.dtype, np.floating) else x


def _of_seed(params: Any, number: int) -> Any:
    return jax.tree.map(lambda x: x[number], params)


def _keys_and_bags(model: Model[Any], params: Any, data: Any) -> tuple[Any, Corpus]:
    scores = model.scores(params, data)
    return scores.keys, scores.corpus


def _selected(p: Any, keys: Any, corpus: Corpus, nats: float | None) -> Selection:
    return attended(jnp.matmul(keys, p, precision="highest"), corpus, nats)


def _one(history: np.ndarray, scores: Scores, nats: float | None) -> tuple[np.ndarray, ...]:
    keys, corpus = scores.keys, scores.corpus
    if not (np.isfinite(history[-1]).all() and np.isfinite(keys).all()):
        missing = np.full(len(history), np.nan)
        return missing, missing, *np.full(len(_AT_THE_END), np.nan)
    chosen = _selected(history[-1], keys, corpus, nats)
    mm = max_margin(Scores(keys, corpus), chosen)
    margins = jax.jit(_margins)(jnp.asarray(history), keys, corpus, chosen)
    away = one_minus_cosine(history, mm.p)
    return away, _relative(margins, mm.margin), *_facts(mm, away[-1])


def _margins(history: Any, keys: Any, corpus: Corpus, chosen: Selection) -> Any:
    return jax.lax.map(lambda p: margin(p, Scores(keys, corpus), chosen), history)


def _relative(margins: Any, largest: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(margins) / np.where(largest > 0, largest, np.nan)


def _facts(mm: MaxMargin, away: Any) -> tuple[Any, ...]:
    bound, feasible = certified_distance(away, mm.duality_gap), np.asarray(mm.decided)
    support = 1.0 * (mm.multipliers > 0).sum(axis=-1)
    return bound, feasible, mm.margin, mm.duality_gap, mm.primal_residual, support


def _named(away: Any, ratio: Any, *facts: Any) -> tuple[Metrics, Metrics]:
    on_the_way = {name: np.asarray(x) for name, x in zip(_ON_THE_WAY, (away, ratio), strict=True)}
    return on_the_way, {name: np.asarray(x) for name, x in zip(_AT_THE_END, facts, strict=True)}
