"""Registry of built-in models, keyed by their `kind` in sweep files."""

from typing import Any

from jaxattn.base import Model
from jaxattn.models.key_query import KeyQuery
from jaxattn.models.mlp import Mlp
from jaxattn.models.multi_head import MultiHead
from jaxattn.models.one_layer import OneLayer
from jaxattn.models.two_layer import TwoLayer
from jaxattn.models.two_layer_weights import TwoLayerWeights

MODELS: dict[str, type[Model[Any]]] = {
    "one_layer": OneLayer,
    "mlp": Mlp,
    "two_layer": TwoLayer,
    "two_layer_weights": TwoLayerWeights,
    "key_query": KeyQuery,
    "multi_head": MultiHead,
}
