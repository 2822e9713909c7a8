"""Softmax averages in token space: pure functions of a corpus, scores and values."""

from jaxattn.attention.pooling import pool
from jaxattn.attention.self_attention import two_layer_attention
from jaxattn.attention.softmax import attend

__all__ = ["attend", "pool", "two_layer_attention"]
