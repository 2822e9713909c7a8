"""Whole-phase probes that compare parameters with certified limit directions."""

from functools import partial
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from jaxattn.base import Model, Phase, PhaseProbe, Task
from jaxattn.base.model import HasLinearScores, LinearScores, Params, linear_in
from jaxattn.core import backend
from jaxattn.core.loops import map_on_cores
from jaxattn.core.scales import COSINE_DISTANCE, ERROR, FRACTION, NOT_NEGATIVE, YES_NO, Scale
from jaxattn.core.settings import NotNegative, Static
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded
from jaxattn.lab.probes.requirements import require_one_layer_model
from jaxattn.lab.probes.selection import attended, attended_on_host
from jaxattn.theory import (
    MaxMargin,
    Scores,
    Selection,
    certify_limit,
    margin,
    max_margin,
    max_margin_batch,
    one_minus_cosine,
    relaxed_max_margin,
)

_Metrics = dict[str, np.ndarray]
_ON_THE_WAY_P = ("one_minus_cosine", "margin_ratio")
_AT_THE_END_P = (
    "certified_distance",
    "feasible",
    "max_margin",
    "duality_gap",
    "primal_residual",
    "support_pairs",
)


class MaxMarginDirection(PhaseProbe, frozen=True, kw_only=True):
    """Distance between p and the max-margin direction for the tokens selected at the end of the phase.

    The direction is computed at the end of the phase, because the selected tokens are not known earlier.

    Attributes:
        nats: a token counts as selected if its score is within `nats` of the highest score in its sequence;
            by default, only ties up to rounding error count.
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
    scales: ClassVar[dict[str, Scale]] = {
        "one_minus_cosine": COSINE_DISTANCE,
        "margin_ratio": Scale(high=1.0),
        "feasible": YES_NO,
        "support_pairs": NOT_NEGATIVE,
        **dict.fromkeys(("certified_distance", "duality_gap", "primal_residual"), ERROR),
    }
    metrics: ClassVar[tuple[str, ...]] = (*_ON_THE_WAY_P, *_AT_THE_END_P)

    nats: Static[NotNegative] | None = None

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped in this phase, or None if it applies.

        The probe requires a phase that trains only the parameter in which the scores are linear.
        """
        name = linear_in(task.model)
        if name is None:
            return "requires a model with scores that are linear in a parameter"
        return None if tuple(phase.train) == (name,) else f"requires a phase that trains {name} alone"

    def observe(self, phase: Phase, state: PyTree) -> Array:
        """Return p for one seed, flattened to (D,)."""
        return phase.parameter(state, phase.train[0]).reshape(-1)

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: Loaded
    ) -> tuple[_Metrics, _Metrics]:
        """Compute each seed's max-margin direction for the tokens selected at the end, and compare p with it.

        Args:
            history: (S, k, D) float64; p of each of S seeds at k probe steps.
            params: the final parameters. The parameters that determine the keys are not trained in the phase.
            model: the model, which computes the scores.
            loaded: the data, either shared by all seeds or separate for each seed.

        Returns:
            Two dictionaries. The first contains metrics at every probe step, (S, k) each: 1 - cos between p
            and the max-margin direction, and the margin of p for the selected tokens, divided by the maximum
            margin. The second contains metrics of the max-margin problem, (S,) each. The metrics are NaN if
            no direction separates the selected tokens from the others; `feasible` is NaN if this is
            undecided.
        """
        # Use one device, because the solver does not support arrays that are sharded over several devices.
        params, data = jax.device_get((params, loaded.splits.train))
        linear = cast(HasLinearScores, model)
        with backend.float64():
            params = jax.tree.map(_in_float64, params)
            if loaded.shared and isinstance(data, Corpus) and data.bags.is_large:
                each = (linear.scores(_of_seed(params, number), data) for number in range(len(history)))
                seeds = [_one(p, own, self.nats) for p, own in zip(history, each, strict=True)]
                away, ratio, *facts = (np.stack(x) for x in zip(*seeds, strict=True))
                return _by_name(away, ratio, *facts)
            axis = None if loaded.shared else 0
            # The bags are either shared by all seeds or sampled for each seed.
            parts = jax.vmap(partial(_keys_and_bags, model), (0, axis), (0, axis))
            keys, corpus = jax.jit(parts)(params, data)
            select = partial(_select, nats=self.nats)
            chosen = jax.jit(jax.vmap(select, (0, 0, axis)))(history[:, -1], keys, corpus)
            mm = max_margin_batch(Scores(keys, corpus), chosen)
            margins = jax.jit(jax.vmap(_margins, (0, 0, axis, 0)))(jnp.asarray(history), keys, corpus, chosen)
        away = np.asarray(one_minus_cosine(history, mm.p[:, None]))
        return _by_name(away, _relative(margins, np.asarray(mm.margin)[:, None]), *_facts(mm, away[:, -1]))


def certified_distance(away: Any, duality_gap: Any) -> np.ndarray:
    """Return an upper bound on 1 - cos between p and the exact max-margin direction; NaN if there is none.

    `away` is 1 - cos between p and the computed direction. The angle between p and the exact direction is at
    most the sum of two angles: between p and the computed direction, and between the computed and the exact
    direction. For the second angle, 1 - cos ≤ 1 - √(1 - gap), where gap is the relative duality gap.
    """
    gap = np.asarray(duality_gap)
    left_open = gap / (1 + np.sqrt(1 - gap))
    half_angle = sum(np.arcsin(np.minimum(np.sqrt(x / 2), 1)) for x in (np.asarray(away), left_open))
    return 2 * np.sin(np.minimum(half_angle, np.pi / 2)) ** 2


def _in_float64(x: Any) -> Any:
    return jnp.asarray(x, jnp.float64) if np.issubdtype(x.dtype, np.floating) else x


def _of_seed(params: Params, number: int) -> Any:
    return jax.tree.map(lambda x: x[number], params)


def _keys_and_bags(model: Model[Any], params: Params, data: Any) -> tuple[Any, Corpus]:
    scores = cast(HasLinearScores, model).scores(params, data)
    return scores.keys, scores.corpus


def _select(p: Any, keys: Any, corpus: Corpus, nats: float | None) -> Selection:
    return attended(jnp.matmul(keys, p, precision="highest"), corpus, nats)


def _one(history: np.ndarray, scores: LinearScores, nats: float | None) -> tuple[np.ndarray, ...]:
    keys, corpus = scores.keys, scores.corpus
    if not (np.isfinite(history[-1]).all() and np.isfinite(keys).all()):
        missing = np.full(len(history), np.nan)
        return missing, missing, *np.full(len(_AT_THE_END_P), np.nan)
    chosen = _select(history[-1], keys, corpus, nats)
    mm = max_margin(Scores(keys, corpus), chosen)
    margins = jax.jit(_margins)(jnp.asarray(history), keys, corpus, chosen)
    away = np.asarray(one_minus_cosine(history, mm.p))
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


def _by_name(away: Any, ratio: Any, *facts: Any) -> tuple[_Metrics, _Metrics]:
    on_the_way = {name: np.asarray(x) for name, x in zip(_ON_THE_WAY_P, (away, ratio), strict=True)}
    return on_the_way, {name: np.asarray(x) for name, x in zip(_AT_THE_END_P, facts, strict=True)}


_ON_THE_WAY_RELAXED = ("relaxed_one_minus_cosine", "unrelaxed_one_minus_cosine", "head_one_minus_cosine")
_AT_THE_END_RELAXED = (
    "relaxed_certified_distance",
    "relaxed_support",
    "relaxed_feasible",
    "relaxed_duality_gap",
    "relaxed_primal_residual",
)


class RelaxedDirection(PhaseProbe, frozen=True, kw_only=True):
    """Distances between p and the relaxed direction p_relax, and between v and the max-margin direction v_mm.

    Counterpart of `max_margin_direction` for phases that train both p and v. Both directions are computed for
    the highest-scoring token of each sequence at the end of the phase. The metrics are NaN if two tokens in a
    sequence tie for the highest score, or if no direction separates the highest-scoring tokens from the
    others.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "relaxed_one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{relax})$",
        "unrelaxed_one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{mm})$",
        "head_one_minus_cosine": r"$1-\cos(v,\,v_\mathrm{mm})$",
        "relaxed_certified_distance": r"$1-\cos$ to the true $p_\mathrm{relax}$, at most",
        "relaxed_support": "sequences with a tight margin of $v_\\mathrm{mm}$",
    }
    scales: ClassVar[dict[str, Scale]] = {
        **dict.fromkeys(_ON_THE_WAY_RELAXED, COSINE_DISTANCE),
        **dict.fromkeys(_AT_THE_END_RELAXED, ERROR),
        "relaxed_support": FRACTION,
        "relaxed_feasible": YES_NO,
    }
    metrics: ClassVar[tuple[str, ...]] = (*_ON_THE_WAY_RELAXED, *_AT_THE_END_RELAXED)

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped in this phase, or None if it applies.

        The probe requires a phase that trains p and v of the one-layer model with the logistic loss.
        """
        return require_one_layer_model(task, phase, ("p", "v"))

    def observe(self, phase: Phase, state: PyTree) -> Array:
        """Return p and v for one seed, (2, d)."""
        return jnp.stack([phase.parameter(state, "p"), state.params.v])

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: Loaded
    ) -> tuple[_Metrics, _Metrics]:
        """Compute the limit directions of p and v for each seed, and compare p and v with these limits.

        `history` contains p and v of each of S seeds at k probe steps, (S, k, 2, d) float64.

        Returns:
            Two dictionaries. The first contains metrics at every probe step, (S, k) each: 1 - cos between p
            and p_relax, between p and the max-margin direction for all sequences, and between v and v_mm. The
            second contains metrics per seed, (S,) each: the certificate of p_relax, and the fraction of
            sequences on the margin of v_mm.
        """
        # Run on the host, because shapes differ between seeds and JAX would compile the solver once per seed.
        E, corpora = jax.device_get((params.E, loaded.splits.train))

        def compare(seed: int, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            corpus = corpora if loaded.shared else _of_seed(corpora, seed)
            return _compare(np.asarray(E[seed], np.float64), corpus, path)

        away, ends = zip(*map_on_cores(compare, range(len(history)), history), strict=True)
        on_the_way = dict(zip(_ON_THE_WAY_RELAXED, np.stack(away, axis=1), strict=True))
        return on_the_way, dict(zip(_AT_THE_END_RELAXED, np.stack(ends, axis=1), strict=True))


def _compare(E: np.ndarray, corpus: Corpus, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nothing = (
        np.full((len(_ON_THE_WAY_RELAXED), len(path)), np.nan),
        np.full(len(_AT_THE_END_RELAXED), np.nan),
    )
    # A failed seed may still end with finite p and v.
    if corpus.num_classes != 2 or not (np.isfinite(path[-1]).all() and np.isfinite(E).all()):
        return nothing
    chosen, counts = attended_on_host(E @ path[-1, 0], corpus, 0.0)
    if (counts != 1).any():
        return nothing
    # The flow requires only half the margin for a pair of tokens that are both on the margin of v_mm.
    scores = Scores(E, corpus)
    relaxed, alone = relaxed_max_margin(scores, chosen, tied=0.5), max_margin(scores, chosen)
    solutions = (0, relaxed.query), (0, alone), (1, relaxed.head)
    away = [np.asarray(one_minus_cosine(path[:, i], x.p)) for i, x in solutions]
    query = relaxed.query
    facts = (
        certified_distance(away[0][-1:], query.duality_gap)[0],
        relaxed.support.mean(),
        relaxed.decided,
        query.duality_gap,
        query.primal_residual,
    )
    return np.stack(away), np.array(facts, float)


_AT_THE_END_LIMIT = (
    "limit_certified_distance",
    "limit_feasible",
    "limit_duality_gap",
    "limit_primal_residual",
    "tied_sequences",
)


class FlowLimit(PhaseProbe, frozen=True, kw_only=True):
    """Distance between p and the limit of gradient flow on p, in which the scores of several tokens may tie.

    If tokens tie in the limit, gradient flow converges to the direction certified by
    `ja.theory.certify_limit`, not to the max-margin direction.

    Attributes:
        nats: tokens count as tied if their scores are within `nats` of the highest score in their sequence.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "limit_one_minus_cosine": r"$1-\cos(p,\,p_*)$",
        "limit_certified_distance": r"$1-\cos$ to the true $p_*$, at most",
        "limit_feasible": "limit is certified",
        "tied_sequences": "sequences with tied tokens",
    }
    scales: ClassVar[dict[str, Scale]] = {
        "limit_one_minus_cosine": COSINE_DISTANCE,
        **dict.fromkeys(_AT_THE_END_LIMIT, ERROR),
        "limit_feasible": YES_NO,
        "tied_sequences": FRACTION,
    }
    metrics: ClassVar[tuple[str, ...]] = ("limit_one_minus_cosine", *_AT_THE_END_LIMIT)

    nats: NotNegative = 30.0

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped in this phase, or None if it applies.

        The probe requires a phase that trains p of the one-layer model with the logistic loss.
        """
        return require_one_layer_model(task, phase, ("p",))

    def observe(self, phase: Phase, state: PyTree) -> Array:
        """Return p for one seed, (d,)."""
        return phase.parameter(state, "p")

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: Loaded
    ) -> tuple[_Metrics, _Metrics]:
        """Certify the limit of gradient flow for each seed, and compare p with the limit.

        `history` contains p of each of S seeds at k probe steps, (S, k, d) float64.

        Returns:
            Two dictionaries. The first contains 1 - cos between p and the limit, (S, k). The second contains
            metrics per seed, (S,) each: the certificate of the limit, and the fraction of sequences with
            ties.
        """
        params, corpora = jax.device_get((params, loaded.splits.train))

        def compare(seed: int, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            own = jax.tree.map(lambda x: np.asarray(x[seed], np.float64), params)
            corpus = corpora if loaded.shared else _of_seed(corpora, seed)
            return self._compare(own, corpus, path)

        away, ends = zip(*map_on_cores(compare, range(len(history)), history), strict=True)
        at_the_end = dict(zip(_AT_THE_END_LIMIT, np.stack(ends, axis=1), strict=True))
        return {"limit_one_minus_cosine": np.stack(away)}, at_the_end

    def _compare(self, params: Params, corpus: Corpus, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # A failed seed may still end with a finite p.
        finite = all(np.isfinite(x).all() for x in (path[-1], params.E, params.v))
        if not finite:
            return np.full(len(path), np.nan), np.full(len(_AT_THE_END_LIMIT), np.nan)
        chosen, counts = attended_on_host(params.E @ path[-1], corpus, self.nats)
        tied = float((counts > 1).mean())
        found = certify_limit(Scores(params.E, corpus, params.E @ params.v), path[-1], chosen)
        direction = found.direction
        away = np.asarray(one_minus_cosine(path, direction.p))
        bound = certified_distance(away[-1:], direction.duality_gap)[0]
        ends = bound, found.holds, direction.duality_gap, direction.primal_residual, tied
        return away, np.array(ends, float)
