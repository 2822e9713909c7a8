"""Probe: how far attention rests on one token, for models of any data, with one query or many."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jax.scipy.special import entr

from jaxattn.base import Phase, Probe, Task
from jaxattn.core.settings import Share
from jaxattn.probes.probe_context import ProbeContext


class Attended(Probe, frozen=True, kw_only=True):
    """Attention of every head and query, mean over the training data: one number each, in the model's order.

    A query selects a token if its largest attention is at least `above`. Attention q (n, ..., T) is the
    model's own, `Model.attention`; attended positions are the exponential of -Σ_t q_t log q_t.

    Attributes:
        above: the attention from which on a token is selected.
    """

    labels: ClassVar[dict[str, str]] = {
        "largest_attention": "largest attention",
        "attended_positions": "attended positions",
        "selects_one": "queries that select one token",
    }

    above: Share = 0.9

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants a model that shows its attention."""
        return None if task.model.shows_attention else "wants a model with attention"

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure one seed: (Q,) of all heads and queries, () of a single one; NaN where none is a query."""
        train = context.sampled.train
        q = context.model.attention(context.params, train)
        rows = jnp.asarray(q).reshape(train.num_examples, -1, q.shape[-1])
        found = {
            "largest_attention": rows.max(axis=-1),
            "attended_positions": jnp.exp(entr(rows).sum(axis=-1)),
            "selects_one": jnp.where(jnp.isnan(rows[..., 0]), jnp.nan, rows.max(axis=-1) >= self.above),
        }
        return {name: jnp.nanmean(x, axis=0).squeeze() for name, x in found.items()}
