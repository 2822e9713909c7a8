"""Probe of a whole phase that moves p and v: both against the directions they tend to together."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.base import Model, Phase, PhaseProbe, Task
from jaxattn.core.mapping import map_on_cores
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded
from jaxattn.probes.max_margin import Metrics, certified_distance
from jaxattn.probes.seen import wants_one_layer
from jaxattn.probes.selection import attended_on_host
from jaxattn.theory import Scores, max_margin, one_minus_cosine, relaxed_max_margin

_ON_THE_WAY = ("relaxed_one_minus_cosine", "unrelaxed_one_minus_cosine", "head_one_minus_cosine")
_AT_THE_END = (
    "relaxed_certified_distance",
    "relaxed_support",
    "relaxed_feasible",
    "relaxed_duality_gap",
    "relaxed_primal_residual",
)


class RelaxedDirection(PhaseProbe, frozen=True, kw_only=True):
    """The history of p and v against p_relax and v_mm of the selection that the phase ends with.

    A probe of a phase, as `max_margin_direction` is for p alone. Of every sequence the token with the
    highest score counts as selected. NaN where two share it, or there is no direction.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "relaxed_one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{relax})$",
        "unrelaxed_one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{mm})$",
        "head_one_minus_cosine": r"$1-\cos(v,\,v_\mathrm{mm})$",
        "relaxed_certified_distance": r"$1-\cos$ to the true $p_\mathrm{relax}$, at most",
        "relaxed_support": "sequences on which $v_\\mathrm{mm}$ is tight",
    }
    metrics: ClassVar[tuple[str, ...]] = (*_ON_THE_WAY, *_AT_THE_END)

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants a phase that moves p and v alone by the logistic loss, and scores E·p."""
        return wants_one_layer(task, phase, ("p", "v"))

    def observe(self, phase: Phase, state: Any) -> Any:
        """Look up p and v of one seed, (2, d)."""
        return jnp.stack([phase.parameter(state, "p"), state.params.v])

    def conclude(
        self, history: np.ndarray, params: Any, model: Model[Any], loaded: Loaded
    ) -> tuple[Metrics, Metrics]:
        """Find the directions of every seed and compare.

        Args:
            history: (S, k, 2, d) float64; p and v of every seed at k probe steps.
            params: the parameters at the end; E (S, V, d) did not move meanwhile.
            model: the one-layer model.
            loaded: corpora, shared by the seeds or one for each.

        Returns:
            1 - cos of p to p_relax and to the max-margin direction of all sequences, and of v to v_mm,
            (S, k). The certificate of p_relax, and the share of sequences on which v_mm is tight, (S,).
        """
        # On the host: every seed may have another shape, for which JAX would compile anew.
        E, corpora = jax.device_get((params.E, loaded.splits.train))

        def compare(seed: int, path: np.ndarray) -> tuple[Metrics, Metrics]:
            corpus = corpora if loaded.shared else jax.tree.map(lambda x: x[seed], corpora)
            return _compare(np.asarray(E[seed], np.float64), corpus, path)

        on_the_way, at_the_end = zip(*map_on_cores(compare, range(len(history)), history), strict=True)
        return _stacked(on_the_way), _stacked(at_the_end)


def _compare(E: np.ndarray, corpus: Corpus, path: np.ndarray) -> tuple[Metrics, Metrics]:
    """Compare the path (k, 2, d) of one seed."""
    missing = np.full(len(path), np.nan)
    nothing = dict.fromkeys(_ON_THE_WAY, missing), dict.fromkeys(_AT_THE_END, np.asarray(np.nan))
    # The path of a seed that failed may end at finite p and v.
    if corpus.num_classes != 2 or not (np.isfinite(path[-1]).all() and np.isfinite(E).all()):
        return nothing
    chosen, counts = attended_on_host(E @ path[-1, 0], corpus, 0.0)
    if (counts != 1).any():
        return nothing
    # Of pairs that v tells from each other by a bounded amount only the flow wants half.
    scores = Scores(E, corpus)
    relaxed, alone = relaxed_max_margin(scores, chosen, tied=0.5), max_margin(scores, chosen)
    away = [one_minus_cosine(path[:, i], x.p) for i, x in ((0, relaxed.query), (0, alone), (1, relaxed.head))]
    query = relaxed.query
    facts = (
        certified_distance(away[0][-1:], query.duality_gap)[0],
        relaxed.support.mean(),
        relaxed.decided,
        query.duality_gap,
        query.primal_residual,
    )
    at_the_end = {name: np.asarray(x, float) for name, x in zip(_AT_THE_END, facts, strict=True)}
    return dict(zip(_ON_THE_WAY, away, strict=True)), at_the_end


def _stacked(found: Sequence[Metrics]) -> Metrics:
    return {name: np.stack([one[name] for one in found]) for name in found[0]}
