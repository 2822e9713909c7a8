"""Probe: which tokens attention selects."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.attention import attend
from jaxattn.base import Phase, Probe, Task
from jaxattn.core.settings import Count, Share
from jaxattn.data.corpus import Corpus
from jaxattn.probes.seen import Seen, wants_attention, wants_bags
from jaxattn.theory import Selection, selection_from_scores


class Selected(Probe, frozen=True, kw_only=True):
    """Attention on important tokens, and the tokens with the highest score of each sequence.

    A sequence selects an important token if the tokens with its highest score are all important, and not all
    of its tokens have that score. Where an important token has it together with one that is not, or with all
    others, they tie: under uniform attention every sequence with an important token does. NaN if there is no
    important token.

    Attributes:
        important: tokens with |posterior difference| of at least this are important,
        min_count: if they occur so often: the posterior difference of a rare token is noise.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "important_mass": "attention on important tokens",
        "important_selected": "sequences that select an important token",
        "important_tied": "sequences in which an important token ties on top",
        "selected_tokens": "tokens on top of a sequence",
    }

    important: Share = 0.5
    min_count: Count = 50

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants attention that is softmax over scores of the tokens of bags."""
        return wants_attention(task)

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed."""
        scores, train = seen.scores_and_values[0], seen.data.train
        important = self._important(seen)
        chosen = selection_from_scores(scores, train)
        selects, tied = chosen.selects(train, important)
        shares = {
            "important_mass": attend(train, scores, important.astype(scores.dtype)).mean(),
            "important_selected": selects.mean(),
            "important_tied": tied.mean(),
        }
        known = {name: jnp.where(important.any(), share, jnp.nan) for name, share in shares.items()}
        return known | {"selected_tokens": chosen.counts(train).mean()}

    def _important(self, seen: Seen) -> Array:
        return seen.data.tokens.important(self.important, self.min_count)


class HeadsSelected(Selected, frozen=True, kw_only=True):
    """What each of several heads or queries attends to and selects, as `Selected` says it of one.

    Settings are those of `Selected`. Heads share the work if each selects in some sequences only and some
    head does in all: `any_head_selected` then is above all of `head_selected`.
    """

    labels: ClassVar[dict[str, str]] = {
        "head_mass": "attention of a head on important tokens",
        "head_selected": "sequences in which a head selects an important token",
        "any_head_selected": "sequences in which some head selects an important token",
        "all_heads_selected": "sequences in which all heads select an important token",
    }

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants several heads over the tokens of bags."""
        return wants_bags(task) if task.model.has_heads else "wants a model with head_scores"

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed: (H,) of each head, () of all."""
        train, important = seen.data.train, self._important(seen)

        def of_head(scores: Array) -> tuple[Array, Array]:
            selects, _ = selection_from_scores(scores, train).selects(train, important)
            return attend(train, scores, important.astype(scores.dtype)).mean(), selects

        mass, selects = jax.vmap(of_head)(seen.model.head_scores(seen.params))
        shares = {
            "head_mass": mass,
            "head_selected": selects.mean(axis=1),
            "any_head_selected": selects.any(axis=0).mean(),
            "all_heads_selected": selects.all(axis=0).mean(),
        }
        return {name: jnp.where(important.any(), share, jnp.nan) for name, share in shares.items()}


def attended(scores: Array, corpus: Corpus, nats: float | None) -> Selection:
    """Select the tokens whose score is within some nats of their sequence's top one, ties alone if None.

    Scores that tie in the limit of a flow stay within a few nats of each other on the way, all others drift
    apart like margin · ‖p‖: 10 nats tell them apart at any ‖p‖ above about 20 / margin, and a token within
    them holds at least 5e-5 of the top one's attention.
    """
    if nats is None:
        return selection_from_scores(scores, corpus)
    return selection_from_scores(scores, corpus, tie=0.0, nats=nats)


def attended_on_host(scores: np.ndarray, corpus: Corpus, nats: float) -> tuple[Selection, np.ndarray]:
    """Select as `attended` does, in NumPy: where every seed has another shape, JAX would compile anew.

    Returns:
        The selection, and how many tokens of every sequence are selected, (n,).
    """
    bags = corpus.bags
    present = np.asarray(bags.count) > 0
    entries = np.where(present, scores[np.asarray(bags.index)], -np.inf)
    owner = np.minimum(np.asarray(bags.owner), corpus.num_examples - 1)
    top = np.full(corpus.num_examples, -np.inf)
    np.maximum.at(top, owner, entries.max(axis=1))
    chosen = present & (entries >= top[owner][:, None] - nats)
    counts = np.bincount(owner, chosen.sum(axis=1), corpus.num_examples)
    return Selection(chosen), counts
