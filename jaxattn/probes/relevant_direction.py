"""Probe of a whole phase: which way p moves while v moves too, where tokens 0 .. r - 1 are relevant."""

from typing import Any, ClassVar

import jax
import numpy as np

from jaxattn import data
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Loaded
from jaxattn.models.reference import padded_sequences
from jaxattn.probes.max_margin import Metrics
from jaxattn.spec import PositiveInt, Spec
from jaxattn.theory import MaxMargin, Selection, max_margin, one_minus_cosine

_FACTS = ("feasible", "duality_gap", "primal_residual")


class RelevantDirection(Spec, frozen=True, kw_only=True):
    """p and its movement against two max-margin directions that select the relevant tokens.

    One is that of all sequences. The other is that of those sequences on which the margin of the max-margin
    head is tight: the others lose their weight in the loss once v grows.

    Attributes:
        relevant: tokens 0 .. relevant - 1 are the relevant ones, odd ones positive.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "relevant_one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{mm})$, relevant tokens",
        "movement": r"$1-\cos(\Delta p,\,p_\mathrm{mm})$, relevant tokens",
        "tight_movement": r"$1-\cos(\Delta p,\,p_\mathrm{mm})$, tight sequences",
    }
    metrics: ClassVar[tuple[str, ...]] = (
        *labels,
        *(f"tight_{name}" for name in _FACTS),
    )

    relevant: PositiveInt

    def applies(self, model: Any, loss: Any, phase: Any) -> bool:
        """Tell whether a phase moves p and v, E fixed."""
        return getattr(model, "is_one_layer", False) and set(phase.train) == {"p", "v"}

    def observe(self, phase: Any, state: Any) -> Any:
        """Look up p of one seed, (d,)."""
        return phase.query(state)

    def conclude(self, history: np.ndarray, params: Any, loaded: Loaded) -> tuple[Metrics, Metrics]:
        """Find both directions of every seed and compare.

        Args:
            history: (S, k, d) float64; p of every seed at k probe steps.
            params: the parameters at the end; E (S, V, d) did not move meanwhile.
            loaded: corpora, shared by the seeds or one for each.

        Returns:
            1 - cos of p to the direction of all sequences, (S, k). 1 - cos of the movement in the phase to
            both, and the certificate of the second, (S,) each. NaN where there is no such direction.
        """
        E, corpora = jax.device_get((params.E, loaded.splits.train))
        directions, tight = [], []
        for seed, own in enumerate(E):
            corpus = corpora if loaded.shared else jax.tree.map(lambda x, seed=seed: x[seed], corpora)
            directions.append(relevant_direction(own, corpus, self.relevant).p)
            tight.append(
                relevant_direction(own, where_head_is_tight(own, corpus, self.relevant), self.relevant)
            )
        to, moved = np.stack(directions), history[:, -1] - history[:, 0]
        at_the_end = {
            "movement": one_minus_cosine(moved, to),
            "tight_movement": one_minus_cosine(moved, np.stack([mm.p for mm in tight])),
        }
        for name in _FACTS:
            at_the_end[f"tight_{name}"] = np.asarray([getattr(mm, name) for mm in tight], float)
        return {"relevant_one_minus_cosine": one_minus_cosine(history, to[:, None])}, at_the_end


def relevant_direction(E: np.ndarray, corpus: Corpus, relevant: int) -> MaxMargin:
    """Find the max-margin direction that selects tokens 0 .. relevant - 1 of every sequence."""
    # On the host: every seed may have another shape, for which JAX would compile anew.
    chosen = (np.asarray(corpus.bags.index) < relevant) & (np.asarray(corpus.bags.count) > 0)
    return max_margin(E, corpus, Selection(chosen))


def where_head_is_tight(E: np.ndarray, corpus: Corpus, relevant: int) -> Corpus:
    """Keep the sequences on which the max-margin head is tight, the shortest v with y E_s·v ≥ 1 for every
    relevant token s: the limit of v/‖v‖ once attention has settled on them.
    """
    ids, real = padded_sequences(corpus)
    sequences = [np.unique(row[mask]) for row, mask in zip(ids, real, strict=True)]
    tokens = np.unique(np.concatenate(sequences))
    tokens = tokens[tokens < relevant]
    # A head's margin is a max-margin problem of p beside a token whose embedding is 0.
    origin = len(E)
    beside = data.from_sequences(
        [[s, origin] for s in tokens.tolist()], [1] * len(tokens), vocab_size=origin + 1
    )
    above = tokens % 2 == 1
    head = max_margin(
        np.concatenate([E, np.zeros((1, E.shape[1]))]), beside, Selection(np.stack([above, ~above], axis=1))
    )
    tight = np.setdiff1d(head.pairs[head.multipliers > 0], origin)
    kept = [s.tolist() for s in sequences if np.isin(s, tight).any()]
    return data.from_sequences(kept, [1] * len(kept), vocab_size=len(E))
