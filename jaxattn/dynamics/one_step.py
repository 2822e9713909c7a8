"""One full-batch gradient step: how training writes token importance into the embeddings."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
from jax import Array

from jaxattn import losses
from jaxattn.data.corpus import Corpus
from jaxattn.models import one_layer

P = TypeVar("P")
Logits = Callable[[P, Corpus], Array]


def loss(params: P, corpus: Corpus, logits: Logits = one_layer.logits, weights: Array | None = None) -> Array:
    """Compute the mean logistic loss (two classes) or cross-entropy (K heads) of a model on a corpus."""
    return losses.classification(logits(params, corpus), corpus.labels, weights)


def loss_and_gradients(
    params: P,
    corpus: Corpus,
    train: Sequence[str],
    logits: Logits = one_layer.logits,
    weights: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Differentiate the loss by the named parameters only.

    Args:
        params: a frozen dataclass of arrays.
        corpus: n sequences.
        train: names of the parameters to differentiate by.
        logits: the model.
        weights: of the sequences, (n,), instead of 1/n for each.

    Returns:
        The loss and ∂L/∂θ for every named θ.
    """

    def of_trained(trained: dict[str, Array]) -> Array:
        return loss(params.replace(**trained), corpus, logits, weights)  # type: ignore[attr-defined]

    return jax.value_and_grad(of_trained)({name: getattr(params, name) for name in train})


def one_step(
    params: P,
    corpus: Corpus,
    *,
    step_size: float | Array,
    train: Sequence[str] = ("E",),
    logits: Logits = one_layer.logits,
) -> P:
    """Take one full-batch gradient step, θ¹ = θ⁰ - η0 ∂L/∂θ, on E alone unless told otherwise.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K).
        corpus: n sequences over V tokens.
        step_size: η0.
        train: names of the parameters that move.
        logits: the model.

    Returns:
        The parameters after the step.

    Source:
        Lemma 4.1 of arXiv 2505.17282: then E_s ≈ E_s⁰ + (η0/2) α_s v.
    """
    _, gradients = loss_and_gradients(params, corpus, train, logits)
    moved = {name: getattr(params, name) - step_size * g for name, g in gradients.items()}
    return params.replace(**moved)  # type: ignore[attr-defined]
