"""Models: pure functions of parameters and a corpus."""

from jaxattn.models import mlp, one_layer, reference, two_layer, two_layer_weights

__all__ = ["mlp", "one_layer", "reference", "two_layer", "two_layer_weights"]
