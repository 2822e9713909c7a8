"""Models: settings with pure functions of parameters and a corpus."""

from typing import Any

from jaxattn.base import Model
from jaxattn.models import (
    key_query,
    mlp,
    multi_head,
    one_layer,
    reference,
    span,
    two_layer,
    two_layer_weights,
)
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

__all__ = [
    "MODELS",
    "KeyQuery",
    "Mlp",
    "MultiHead",
    "OneLayer",
    "TwoLayer",
    "TwoLayerWeights",
    "key_query",
    "mlp",
    "multi_head",
    "one_layer",
    "reference",
    "span",
    "two_layer",
    "two_layer_weights",
]
