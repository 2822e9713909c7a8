"""The mean loss of a model on data, and its gradients by named parameters."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jax import Array

from jaxattn import losses
from jaxattn.core.pytrees import gradients_by_name
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer

P = TypeVar("P")
# (params, data) -> (n, ...)
Outputs = Callable[[Any, Any], Array]


def loss(
    params: P,
    data: Any,
    outputs: Outputs = one_layer.outputs,
    weights: Array | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Array:
    """Compute the mean loss of a model on data.

    Args:
        params: the model's parameters.
        data: n examples.
        outputs: the model.
        weights: of the sequences, (n,), instead of 1/n for each.
        per_sequence: (outputs, targets) -> (n,); logistic for two classes and cross-entropy for K by default.

    Returns:
        L, a scalar.
    """
    return losses.mean(per_sequence, outputs(params, data), data.targets, weights)


def loss_and_gradients(
    params: P,
    data: Any,
    train: Sequence[str],
    outputs: Outputs = one_layer.outputs,
    weights: Array | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> tuple[Array, dict[str, Array]]:
    """Differentiate the loss by the named parameters only.

    Args:
        params: a frozen dataclass, NamedTuple or dict of arrays.
        data: n examples.
        train: names of the parameters to differentiate by.
        outputs: the model.
        weights: of the sequences, (n,), instead of 1/n for each.
        per_sequence: see `loss`.

    Returns:
        The loss and ∂L/∂θ for every named θ.

    Raises:
        InputError: a name that the parameters do not have.
    """

    def of_params(params: P) -> Array:
        return loss(params, data, outputs, weights, per_sequence)

    return gradients_by_name(of_params, params, train)
