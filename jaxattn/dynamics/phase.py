"""What phases that follow the theory ask of a setting."""

from typing import Any

from jaxattn.core.errors import InputError


def require_linear_scores(parameter: str, *context: Any) -> None:
    """Raise InputError unless the model has scores linear in the parameter and the loss is logistic."""
    for setting in context:
        if (found := setting.model.linear_in) != parameter:
            linear = f"this model's are linear in {found!r}" if found else "this model has none"
            raise InputError(
                f"it follows {parameter!r} of models with scores linear in it (linear_in), and {linear}; use "
                "kind = 'descent'"
            )
        _require_logistic(setting)


def require_one_layer(*context: Any) -> None:
    """Raise InputError unless the model is one-layer, the loss logistic and classes are two."""
    for setting in context:
        if not setting.model.is_one_layer:
            raise InputError("it follows p of model.kind = 'one_layer' only; use kind = 'descent'")
        _require_logistic(setting)
        if (classes := setting.data.num_classes) != 2:
            raise InputError(
                f"{classes} classes, but this is the flow of the logistic loss of two; use kind = 'descent'"
            )


def _require_logistic(setting: Any) -> None:
    if not setting.loss.is_logistic:
        raise InputError("it is the flow of the logistic loss, without smoothing; use kind = 'descent'")
