"""Softmax averages in token space: pure functions of a corpus, token scores and token values."""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.attention.pooling import pool
    from jaxattn.attention.self_attention import two_layer_attention
    from jaxattn.attention.softmax import attend

__all__ = ["attend", "pool", "two_layer_attention"]

_NAMES = {
    "attend": "jaxattn.attention.softmax",
    "pool": "jaxattn.attention.pooling",
    "two_layer_attention": "jaxattn.attention.self_attention",
}
__getattr__, __dir__ = lazy(__name__, _NAMES, {})
