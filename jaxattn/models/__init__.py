"""Models: pure functions of parameters and a corpus."""

from jaxattn.models import attention, one_layer, reference

__all__ = ["attention", "one_layer", "reference"]
