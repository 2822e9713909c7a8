"""What phases that follow the theory ask of a setting."""

from typing import Any

from jaxattn.errors import InputError


def require_one_layer(*context: Any, two_classes: bool = True) -> None:
    """Raise InputError unless the model is one-layer, the loss logistic and, if asked, classes are two."""
    for setting in context:
        if not setting.model.is_one_layer:
            raise InputError("it follows p of model.kind = 'one_layer' only; use kind = 'descent'")
        if not setting.loss.is_logistic:
            raise InputError("it is the flow of the logistic loss, without smoothing; use kind = 'descent'")
        if two_classes and (classes := setting.data.num_classes) != 2:
            raise InputError(
                f"{classes} classes, but this is the flow of the logistic loss of two; use kind = 'descent'"
            )
