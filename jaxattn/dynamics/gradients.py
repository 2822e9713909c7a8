"""The mean loss of a model on a corpus, and its gradients by named parameters."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
from jax import Array

from jaxattn import losses, trees
from jaxattn.data.corpus import Corpus
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer

P = TypeVar("P")
Outputs = Callable[[P, Corpus], Array]


def loss(
    params: P,
    corpus: Corpus,
    outputs: Outputs = one_layer.outputs,
    weights: Array | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Array:
    """Compute the mean loss of a model on a corpus.

    Args:
        params: the model's parameters.
        corpus: n sequences.
        outputs: the model.
        weights: of the sequences, (n,), instead of 1/n for each.
        per_sequence: (outputs, targets) -> (n,); logistic for two classes and cross-entropy for K by default.

    Returns:
        L, a scalar.
    """
    return losses.mean(per_sequence, outputs(params, corpus), corpus.targets, weights)


def loss_and_gradients(
    params: P,
    corpus: Corpus,
    train: Sequence[str],
    outputs: Outputs = one_layer.outputs,
    weights: Array | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> tuple[Array, dict[str, Array]]:
    """Differentiate the loss by the named parameters only.

    Args:
        params: a frozen dataclass, NamedTuple or dict of arrays.
        corpus: n sequences.
        train: names of the parameters to differentiate by.
        outputs: the model.
        weights: of the sequences, (n,), instead of 1/n for each.
        per_sequence: see `loss`.

    Returns:
        The loss and ∂L/∂θ for every named θ.

    Raises:
        InputError: a name that the parameters do not have.
    """

    def of_trained(trained: dict[str, Array]) -> Array:
        return loss(trees.replaced(params, **trained), corpus, outputs, weights, per_sequence)

    return jax.value_and_grad(of_trained)({name: trees.get(params, name) for name in train})
