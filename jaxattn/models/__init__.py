"""Models: pure functions of parameters and a corpus."""

from jaxattn.models import (
    attention,
    mlp,
    one_layer,
    reference,
    self_attention,
    two_layer,
    two_layer_weights,
)

__all__ = ["attention", "mlp", "one_layer", "reference", "self_attention", "two_layer", "two_layer_weights"]
