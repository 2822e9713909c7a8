"""What a study measures on the way: pure functions of the parameters and the corpus."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxattn import attention, data, losses
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics import loss_and_gradients
from jaxattn.study.config import Probes
from jaxattn.study.models import Model
from jaxattn.theory import selection
from jaxattn.trees import Leaf


@struct.dataclass
class Corpora:
    """What a study runs on.

    Attributes:
        train: the training corpus.
        test: the test corpus, None if there is none.
        tokens: token statistics of the training corpus.
        validation: the validation corpus, None if there is none.
    """

    train: Leaf
    test: Leaf
    tokens: Leaf
    validation: Leaf = None


@struct.dataclass
class TokenStatistics:
    """Statistics of the V tokens of a corpus; arrays (V, C) have one column for two classes, else K.

    Attributes:
        count: (V,) occurrences.
        alpha: (V, C) average signed frequency.
        posterior_difference: (V, C), NaN where a token never occurs.
    """

    count: Leaf
    alpha: Leaf
    posterior_difference: Leaf


def token_statistics(corpus: Corpus) -> TokenStatistics:
    """Compute count, α and posterior difference of every token of a corpus."""
    as_columns = lambda x: x[:, None] if x.ndim == 1 else x  # noqa: E731
    return TokenStatistics(
        count=data.token_counts(corpus),
        alpha=as_columns(data.average_signed_frequency(corpus)),
        posterior_difference=as_columns(data.posterior_difference(corpus)),
    )


def probe_steps(steps: int, per_decade: int) -> list[int]:
    """List the steps to probe at: 0, log-spaced in between, and the last."""
    count = int(np.ceil(np.log10(max(steps, 1)) * per_decade)) + 1
    spaced = np.unique(np.rint(np.geomspace(1, steps, count)).astype(int))
    return sorted({0, *spaced.tolist(), steps})


def measure(
    params: Any, corpora: Corpora, train: Sequence[str], settings: Probes, model: Model
) -> dict[str, Array]:
    """Measure one seed.

    Args:
        params: the model's parameters.
        corpora: train and test corpus with token statistics.
        train: the parameters that the current phase moves; the gradient norm is over these.
        settings: bins and thresholds.
        model: what the parameters are of; where its attention is not over tokens, there is no selection.

    Returns:
        Scalars by metric name, and vectors (bins,) for the binned ones. For K > 2 classes E·v_k is held
        against class k and the results are averaged over classes.
    """
    tokens = corpora.tokens
    scores, values = model.scores_and_values(params)
    value_columns = values[:, None] if values.ndim == 1 else values
    score_columns = jnp.broadcast_to(scores[:, None], value_columns.shape)
    loss, gradients = loss_and_gradients(params, corpora.train, train, model.logits)
    logits = model.logits(params, corpora.train)
    difference = tokens.posterior_difference
    metrics = {
        "loss": loss,
        "train_accuracy": losses.accuracy(logits, corpora.train.labels),
        "p_norm": jnp.linalg.norm(params.p),
        "log_gradient_norm": jnp.log(optax.tree.norm(gradients)),
    }
    if model.attends_to_tokens:
        important = (jnp.abs(difference) >= settings.important).any(axis=1)
        mass = attention.attend(corpora.train, scores, important.astype(scores.dtype)).mean()
        chosen = selection(params.p, params.E, corpora.train)
        metrics |= {
            "important_mass": mass,
            "important_selected": (chosen.important_counts(corpora.train, important) > 0).mean(),
            "selected_tokens": chosen.counts(corpora.train).mean(),
        }
    for name, held_out in (("test", corpora.test), ("validation", corpora.validation)):
        if held_out is not None:
            found = model.logits(params, held_out)
            metrics |= {
                f"{name}_loss": losses.classification(found, held_out.labels),
                f"{name}_accuracy": losses.accuracy(found, held_out.labels),
            }
    frequent = tokens.count >= settings.min_count
    bin_numbers = jnp.arange(settings.bins, dtype=scores.dtype)
    for name, columns in (("Ev", value_columns), ("Ep", score_columns)):
        if settings.bins:
            by_class = jax.vmap(bin_means, in_axes=(1, 1, None), out_axes=1)(columns, difference, settings)
            metrics[f"{name}_bin"] = by_class.mean(axis=1)
            filled = jnp.isfinite(by_class)
            metrics[f"spearman_{name}_bins"] = _over_classes(
                lambda x, use: spearman(x, bin_numbers, use), by_class, filled
            )
        metrics[f"spearman_{name}_tokens"] = _over_classes(
            lambda x, y: spearman(x, y, frequent), columns, difference
        )
    present = tokens.count > 0
    metrics["correlation_Ev_alpha"] = _over_classes(
        lambda x, y: pearson(x, y, present), value_columns, tokens.alpha
    )
    return metrics


def bin_means(
    values: Float[Array, "V"], difference: Float[Array, "V"], settings: Probes
) -> Float[Array, "bins"]:
    """Average values of tokens within equal bins of the posterior difference.

    Args:
        values: one number per token.
        difference: posterior difference; tokens outside [low, high] or NaN are left out.
        settings: number and range of the bins.

    Returns:
        The mean of every bin, NaN for an empty one.
    """
    width = (settings.high - settings.low) / settings.bins
    number = jnp.clip(jnp.floor((difference - settings.low) / width), 0, settings.bins - 1)
    inside = (difference >= settings.low) & (difference <= settings.high)
    member = inside & (number == jnp.arange(settings.bins, dtype=values.dtype)[:, None])
    return jnp.where(member, values, 0).sum(axis=1) / member.sum(axis=1)


def spearman(x: Float[Array, "N"], y: Float[Array, "N"], use: Bool[Array, "N"]) -> Float[Array, ""]:
    """Compute Spearman's rank correlation over the entries in use, ties at their average rank.

    Returns:
        The coefficient; NaN if fewer than two entries are in use or one side is constant.
    """
    return pearson(_ranks(x, use), _ranks(y, use), use)


def pearson(x: Float[Array, "N"], y: Float[Array, "N"], use: Bool[Array, "N"]) -> Float[Array, ""]:
    """Compute Pearson's correlation over the entries in use; NaN if one side is constant."""
    number = use.sum()
    x = jnp.where(use, x, 0)
    y = jnp.where(use, y, 0)
    x = jnp.where(use, x - x.sum() / number, 0)
    y = jnp.where(use, y - y.sum() / number, 0)
    return (x * y).sum() / (jnp.sqrt((x * x).sum()) * jnp.sqrt((y * y).sum()))


def _ranks(x: Array, use: Bool[Array, "N"]) -> Array:
    ordered = jnp.sort(jnp.where(use, x, jnp.inf))
    below = jnp.searchsorted(ordered, x, side="left")
    up_to = jnp.searchsorted(ordered, x, side="right")
    return (below + up_to).astype(x.dtype) / 2


def _over_classes(function: Callable[..., Array], *columns: Array) -> Array:
    return jax.vmap(function, in_axes=1)(*columns).mean()


def token_columns(
    params: Any, corpora: Corpora, model: Model
) -> dict[str, Int[Array, "..."] | Float[Array, "..."]]:
    """Collect the token-level table of one seed: E·p (V,) and E·v (V, C) beside the statistics."""
    scores, values = model.scores_and_values(params)
    return {
        "count": corpora.tokens.count,
        "alpha": corpora.tokens.alpha,
        "posterior_difference": corpora.tokens.posterior_difference,
        "Ep": scores,
        "Ev": values[:, None] if values.ndim == 1 else values,
    }
