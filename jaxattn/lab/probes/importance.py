"""Probes that compare E·v and E·p with token importance, and trained embeddings with the one-step law."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxattn.base import Phase, Probe, Task
from jaxattn.base.model import Params
from jaxattn.base.probe import ProbeContext
from jaxattn.core.fractions import bin_numbers
from jaxattn.core.scales import CORRELATION, ERROR, Scale
from jaxattn.core.settings import Count
from jaxattn.lab.probes.requirements import require_one_layer_model, require_token_scores
from jaxattn.theory import one_step_error, predicted_values

# Quantities to correlate with the posterior difference or with its absolute value.
_PAIRS = ("Ev", "Ep_signed", "Ep_absolute")


class Importance(Probe, frozen=True, kw_only=True):
    """Dependence of E·v and E·p on token importance.

    The metrics are means of E·v and E·p in bins of the posterior difference, rank correlations with the
    posterior difference, and the correlation of E·v with the average signed frequency α. In a trained model,
    E·p is a U-shaped function of the posterior difference: its correlation with the absolute value
    (`absolute`) is close to 1, and its correlation with the signed value (`signed`) is close to 0. For K > 2
    classes, E·v_k is compared with the posterior difference for class k, and E·p with the largest absolute
    posterior difference; the results are averaged over classes.

    Attributes:
        bins: number of equal-width bins between `low` and `high` for the posterior difference; 0 for none.
        low: lower end of the first bin.
        high: upper end of the last bin.
        min_count: minimum number of occurrences for a token to be included in correlations over tokens.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "spearman_Ev_bins": r"Spearman of $E_s^\top v$, bins",
        "spearman_Ev_tokens": r"Spearman of $E_s^\top v$, tokens",
        "spearman_Ep_signed_bins": r"Spearman of $E_s^\top p$ and posterior difference, bins",
        "spearman_Ep_signed_tokens": r"Spearman of $E_s^\top p$ and posterior difference, tokens",
        "spearman_Ep_absolute_bins": r"Spearman of $E_s^\top p$ and |posterior difference|, bins",
        "spearman_Ep_absolute_tokens": r"Spearman of $E_s^\top p$ and |posterior difference|, tokens",
        "correlation_Ev_alpha": r"correlation of $E_s^\top v$ and $\alpha_s$",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, CORRELATION)

    bins: Count = 20
    low: float = -1.0
    high: float = 1.0
    min_count: Count = 50

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if it applies.

        The probe requires bags of tokens, and a model that defines token scores and values.
        """
        return require_token_scores(task)

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
        tokens, (scores, values) = context.data.tokens, context.columns
        difference, found = tokens.posterior_difference, {}
        size = jnp.broadcast_to(jnp.abs(difference).max(axis=1, keepdims=True), difference.shape)
        # Concatenate the columns so that they are sorted only once, because sorting dominates the compile
        # time.
        columns = jnp.concatenate([values, scores, scores], axis=1)
        against = jnp.concatenate([difference, difference, size], axis=1)
        frequent = tokens.count >= max(self.min_count, 1)

        def note(of: str, every: Array) -> None:
            for name, each in zip(_PAIRS, every.reshape(len(_PAIRS), -1), strict=True):
                found[f"spearman_{name}_{of}"] = each.mean()

        if self.bins:
            ends = [(self.low, self.high)] * 2 + [(0.0, max(-self.low, self.high))]
            parts = zip(*(jnp.split(x, len(_PAIRS), axis=1) for x in (columns, against)), ends, strict=True)
            means = jnp.concatenate(
                [
                    jax.vmap(partial(bin_means_array, bins=self.bins, low=low, high=high), 1, 1)(x, y)
                    for x, y, (low, high) in parts
                ],
                axis=1,
            )
            numbers = jnp.arange(self.bins, dtype=scores.dtype)
            for name, each in zip(("Ev", "Ep"), jnp.split(means, len(_PAIRS), axis=1), strict=False):
                found[f"{name}_bin"] = each.mean(axis=1)
            note("bins", jax.vmap(spearman_array, (1, None, 1))(means, numbers, jnp.isfinite(means)))
        note("tokens", jax.vmap(spearman_array, (1, 1, None))(columns, against, frequent))
        present = tokens.count > 0
        found["correlation_Ev_alpha"] = jax.vmap(pearson_array, (1, 1, None))(
            values, tokens.alpha, present
        ).mean()
        return found


def token_columns(context: ProbeContext) -> dict[str, Array]:
    """Return the token table for one seed: E·p (V,), E·v (V, C), and the token statistics."""
    tokens = context.data.tokens
    return {
        "count": tokens.count,
        "alpha": tokens.alpha,
        "posterior_difference": tokens.posterior_difference,
        "Ep": context.scores_and_values[0],
        "Ev": context.columns.values,
    }


def bin_means_array(
    values: Float[Array, " V"],
    difference: Float[Array, " V"],
    bins: int,
    low: float | Array,
    high: float | Array,
) -> Float[Array, " bins"]:
    """Average token values over equal-width bins of the posterior difference between `low` and `high`.

    The bins are those of `jaxattn.core.fractions.bin_numbers`. Tokens whose posterior difference is NaN or
    outside [low, high] are ignored. The mean of an empty bin is NaN.
    """
    edges = low + (high - low) * jnp.arange(bins + 1, dtype=values.dtype) / bins
    number = bin_numbers(difference, edges, dtype=difference.dtype)
    member = number == jnp.arange(bins)[:, None]
    return jnp.where(member, values, 0).sum(axis=1) / member.sum(axis=1)


def spearman_array(x: Float[Array, " N"], y: Float[Array, " N"], use: Bool[Array, " N"]) -> Float[Array, ""]:
    """Compute Spearman's rank correlation over the entries where `use` is True, with average ranks for ties.

    The result is NaN if there are fewer than two such entries, or if x or y is constant.
    """
    # Rank x and y in a single sort, because sorting is slow to compile.
    ranks = jax.vmap(_ranks, (0, None))(jnp.stack([x, y]), use)
    return pearson_array(ranks[0], ranks[1], use)


def pearson_array(x: Float[Array, " N"], y: Float[Array, " N"], use: Bool[Array, " N"]) -> Float[Array, ""]:
    """Compute Pearson's correlation over the entries where `use` is True; NaN if x or y is constant."""
    number = use.sum()
    x = jnp.where(use, x, 0)
    y = jnp.where(use, y, 0)
    x = jnp.where(use, x - x.sum() / number, 0)
    y = jnp.where(use, y - y.sum() / number, 0)
    return (x * y).sum() / (jnp.sqrt((x * x).sum()) * jnp.sqrt((y * y).sum()))


def _ranks(x: Array, use: Bool[Array, " N"]) -> Array:
    ordered = jnp.sort(jnp.where(use, x, jnp.inf))
    below = jnp.searchsorted(ordered, x, side="left")
    up_to = jnp.searchsorted(ordered, x, side="right")
    return (below + up_to).astype(x.dtype) / 2


class OneStepError(Probe, frozen=True, kw_only=True):
    """Deviation of E·v from the one-step law, divided by the step size η0.

        max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0

    Here E_s⁰ and E_s¹ are the embeddings of token s before and after the step, and α_s is the average signed
    frequency of the token. The deviation is recorded after a single step on E, for the one-layer model with
    the logistic loss.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"one_step_error": r"one-step error per unit $\eta_0$"}
    scales: ClassVar[dict[str, Scale]] = {"one_step_error": ERROR}
    from_step: ClassVar[int] = 1

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the one-step law does not apply, or None if it applies."""
        return (
            require_one_layer_model(task, phase, ("E",))
            if phase.one_step
            else "requires a phase of one full step"
        )

    def remember(self, params: Params) -> Array:
        """Return E·v at the start of the phase."""
        return params.E @ params.v

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metric for one seed after the step."""
        change = context.params.E @ context.params.v - context.memory
        train, alpha = context.data.train, context.data.tokens.alpha
        # With two classes, α has a single column.
        alpha = alpha[:, 0] if train.num_classes == 2 else alpha
        return {"one_step_error": one_step_error(change, train, context.phase.step_size, alpha)}


class OneStepEmbeddings(OneStepError, frozen=True, kw_only=True):
    """Deviation of E from the one-step law, divided by the step size η0.

        max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0

    Here E_s⁰ and E_s¹ are the embeddings of token s before and after the step, and α_s is the average signed
    frequency of the token. For K classes, the law is E_s¹ - E_s⁰ = η0 Σ_k α_{s,k} v_k.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"embedding_error": r"one-step error of $E$ per unit $\eta_0$"}
    scales: ClassVar[dict[str, Scale]] = {"embedding_error": ERROR}

    def remember(self, params: Params) -> Array:
        """Return E at the start of the phase."""
        return params.E

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metric for one seed after the step."""
        E, v, step_size = context.params.E, context.params.v, context.phase.step_size
        predicted = predicted_values(context.data.train, step_size)
        law = jnp.outer(predicted, v) if predicted.ndim == 1 else predicted @ v.T
        return {"embedding_error": jnp.linalg.norm(E - context.memory - law, axis=1).max() / step_size}
