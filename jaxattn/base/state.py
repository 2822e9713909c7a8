"""State of gradient descent, which phases carry from step to step and studies store in checkpoints."""

from flax import struct
from jax import Array
from jaxtyping import PyTree

from jaxattn.base.model import Params


@struct.dataclass
class State:
    """State of gradient descent.

    Attributes:
        params: the model's parameters.
        optimizer: optax state.
        step: () int32; number of steps taken.
        failed_at: () int32; first step with a non-finite loss or gradient, or -1. Gradients of matrices
            are checked only if no vector is trained; otherwise, a non-finite entry makes the next step's
            loss non-finite.
        key: (2,) uint32; key data for sampling minibatches or new examples; None for full-batch training.
        early_stop: best parameters so far, and counts for early stopping; None without early stopping.
    """

    params: Params
    optimizer: PyTree
    step: Array
    failed_at: Array
    key: PyTree = None
    early_stop: PyTree = None
