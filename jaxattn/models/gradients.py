"""Mean loss of a model on data, and its gradients with respect to named parameters."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from jax import Array

from jaxattn import losses
from jaxattn.base.data import Dataset
from jaxattn.core.pytrees import gradients_by_name
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer

_P = TypeVar("_P")
# (params, data) -> (n, ...)
Outputs = Callable[..., Array]


def loss(
    params: _P,
    data: Dataset,
    outputs: Outputs = one_layer.outputs,
    weights: Array | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Array:
    """Return the mean loss of a model on data, a scalar.

    Args:
        params: parameters of the model.
        data: n examples.
        outputs: the model, a function (params, data) -> (n, ...).
        weights: (n,); weights of the examples, 1/n each by default.
        per_sequence: loss of each example, (outputs, targets) -> (n,). Default: logistic for two classes,
            cross-entropy for more.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4).replace(v=jnp.zeros(4))
        >>> round(float(ja.dynamics.loss(params, corpus)), 4)
        0.6931
    """
    return losses.mean(per_sequence, outputs(params, data), data.targets, weights)


def loss_and_gradients(
    params: _P,
    data: Dataset,
    train: Sequence[str],
    outputs: Outputs = one_layer.outputs,
    weights: Array | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> tuple[Array, dict[str, Array]]:
    """Return the mean loss and its gradients with respect to the named parameters.

    Args:
        params: a frozen dataclass, NamedTuple or dict of arrays.
        data: see `loss`.
        train: names or patterns of the parameters for which to compute gradients.
        outputs: see `loss`.
        weights: see `loss`.
        per_sequence: see `loss`.

    Raises:
        InputError: a name or pattern matches no parameter.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4).replace(v=jnp.zeros(4))
        >>> value, gradients = ja.dynamics.loss_and_gradients(params, corpus, train=["p"])
        >>> gradients['p'].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    def of_params(params: _P) -> Array:
        return loss(params, data, outputs, weights, per_sequence)

    return gradients_by_name(of_params, params, train)
