"""Models, as settings classes and as pure functions of parameters and data."""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.models import (
        key_query,
        mlp,
        multi_head,
        one_layer,
        reference,
        sampling,
        span,
        starts,
        two_layer,
        two_layer_weights,
    )
    from jaxattn.models.activations import activation
    from jaxattn.models.adapters import from_equinox, from_linen, from_nnx
    from jaxattn.models.key_query import KeyQuery
    from jaxattn.models.mlp import Mlp
    from jaxattn.models.multi_head import MultiHead
    from jaxattn.models.one_layer import OneLayer
    from jaxattn.models.token_model import TokenModel
    from jaxattn.models.two_layer import TwoLayer
    from jaxattn.models.two_layer_weights import TwoLayerWeights

__all__ = [
    "KeyQuery",
    "Mlp",
    "MultiHead",
    "OneLayer",
    "TokenModel",
    "TwoLayer",
    "TwoLayerWeights",
    "activation",
    "from_equinox",
    "from_linen",
    "from_nnx",
    "key_query",
    "mlp",
    "multi_head",
    "one_layer",
    "reference",
    "sampling",
    "span",
    "starts",
    "two_layer",
    "two_layer_weights",
]

_NAMES = {
    "KeyQuery": "jaxattn.models.key_query",
    "Mlp": "jaxattn.models.mlp",
    "MultiHead": "jaxattn.models.multi_head",
    "OneLayer": "jaxattn.models.one_layer",
    "TokenModel": "jaxattn.models.token_model",
    "TwoLayer": "jaxattn.models.two_layer",
    "TwoLayerWeights": "jaxattn.models.two_layer_weights",
    "activation": "jaxattn.models.activations",
}
_NAMES |= dict.fromkeys(("from_equinox", "from_linen", "from_nnx"), "jaxattn.models.adapters")
_MODULES = {name: f"jaxattn.models.{name}" for name in __all__ if name not in _NAMES}
__getattr__, __dir__ = lazy(__name__, _NAMES, _MODULES)
