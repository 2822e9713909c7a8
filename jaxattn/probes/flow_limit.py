"""Probe of a whole phase: the query on its way, held against the certified limit of gradient flow."""

from typing import Any, ClassVar

import jax
import numpy as np

from jaxattn.base import Model, Phase, PhaseProbe, Task
from jaxattn.core.mapping import map_on_cores
from jaxattn.core.settings import NotNegative
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded
from jaxattn.probes.max_margin import Metrics, certified_distance
from jaxattn.probes.seen import wants_one_layer
from jaxattn.probes.selection import attended_on_host
from jaxattn.theory import Scores, certify_limit, one_minus_cosine

_AT_THE_END = (
    "limit_certified_distance",
    "limit_feasible",
    "limit_duality_gap",
    "limit_primal_residual",
    "tied_sequences",
)


class FlowLimit(PhaseProbe, frozen=True, kw_only=True):
    """The history of p against the limit of gradient flow on p, tokens that tie included.

    `max_margin_direction` wants a margin over all tokens that are not selected. Where tokens tie, the flow
    does not: sequences with the same tokens on top push another one away together, or draw it near.

    Attributes:
        nats: tokens with a score so close to the top one of their sequence tie with it.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "limit_one_minus_cosine": r"$1-\cos(p,\,p_*)$",
        "limit_certified_distance": r"$1-\cos$ to the true $p_*$, at most",
        "limit_feasible": "limit is certified",
        "tied_sequences": "sequences with tied tokens",
    }
    metrics: ClassVar[tuple[str, ...]] = ("limit_one_minus_cosine", *_AT_THE_END)

    nats: NotNegative = 30.0

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants a phase that moves p alone by the logistic loss, and scores E·p."""
        return wants_one_layer(task, phase, ("p",))

    def observe(self, phase: Phase, state: Any) -> Any:
        """Look up p of one seed, (d,)."""
        return phase.parameter(state, "p")

    def conclude(
        self, history: np.ndarray, params: Any, model: Model[Any], loaded: Loaded
    ) -> tuple[Metrics, Metrics]:
        """Certify the limit of every seed and compare.

        Args:
            history: (S, k, d) float64; p of every seed at k probe steps.
            params: the parameters at the end; E (S, V, d) and v (S, d) or (S, d, K) did not move meanwhile.
            model: the one-layer model.
            loaded: corpora, shared by the seeds or one for each.

        Returns:
            1 - cos to the limit, (S, k). Its certificate, and the share of sequences with tied tokens, (S,).
        """
        params, corpora = jax.device_get((params, loaded.splits.train))

        def compare(seed: int, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            own = jax.tree.map(lambda x: np.asarray(x[seed], np.float64), params)
            corpus = corpora if loaded.shared else jax.tree.map(lambda x: x[seed], corpora)
            return self._compare(own, corpus, path)

        away, ends = zip(*map_on_cores(compare, range(len(history)), history), strict=True)
        at_the_end = dict(zip(_AT_THE_END, np.stack(ends, axis=1), strict=True))
        return {"limit_one_minus_cosine": np.stack(away)}, at_the_end

    def _compare(self, params: Any, corpus: Corpus, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compare the path (k, d) of one seed."""
        # The path of a seed that failed may end at a finite p.
        finite = all(np.isfinite(x).all() for x in (path[-1], params.E, params.v))
        if not finite:
            return np.full(len(path), np.nan), np.full(len(_AT_THE_END), np.nan)
        chosen, counts = attended_on_host(params.E @ path[-1], corpus, self.nats)
        tied = float((counts > 1).mean())
        found = certify_limit(Scores(params.E, corpus, params.E @ params.v), path[-1], chosen)
        direction, away = found.direction, one_minus_cosine(path, found.direction.p)
        bound = certified_distance(away[-1:], direction.duality_gap)[0]
        ends = bound, found.holds, direction.duality_gap, direction.primal_residual, tied
        return away, np.array(ends, float)
