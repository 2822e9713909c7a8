"""Probe: whether attention selects the relevant tokens of a synthetic corpus."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from jaxattn.base import Phase, Probe, Task
from jaxattn.core.settings import NotNegative, PositiveInt, Static
from jaxattn.probes.seen import Seen, wants_bags
from jaxattn.probes.selection import attended
from jaxattn.theory import Scores, margin, selection_of


class RelevantTokens(Probe, frozen=True, kw_only=True):
    """Shares of the sequences with relevant tokens that select one, select all, or in which they tie.

    A sequence selects a relevant token if the tokens on top of it are all relevant, and not all of its tokens
    are on top. Where a relevant token shares the top with one that is not, or with all others, they tie.

    Attributes:
        relevant: tokens 0 .. relevant - 1 are the relevant ones.
        nats: a token is on top if its score is so close to the highest one of its sequence.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "relevant_selected": "sequences that select a relevant token",
        "only_relevant_selected": "sequences that select just the relevant tokens",
        "relevant_tied": "sequences in which a relevant token ties on top",
        "relevant_margin": "margin of $p$ on the relevant tokens",
    }

    relevant: PositiveInt
    nats: Static[NotNegative] = 10.0

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants one query p, whose scores of the tokens of bags attention is softmax over."""
        return wants_bags(task) if task.model.is_one_layer else "wants the one-layer model"

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed."""
        corpus, scores = seen.data.train, seen.scores_and_values[0]
        relevant = jnp.arange(corpus.vocab_size) < self.relevant
        chosen, present = attended(scores, corpus, self.nats), selection_of(relevant, corpus)
        selects, tied = chosen.selects(corpus, relevant)
        every = present.counts(corpus)
        found = {
            "relevant_selected": selects,
            "only_relevant_selected": selects & (chosen.counts(corpus) == every),
            "relevant_tied": tied,
        }
        linear = Scores(seen.params.E, corpus)
        shares = {name: x.sum() / (every > 0).sum() for name, x in found.items()}
        return shares | {"relevant_margin": margin(seen.params.p, linear, present)}
