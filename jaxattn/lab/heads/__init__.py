"""Attention heads of trained transformers: their selected tokens, margins and max-margin directions."""

from jaxattn.lab.heads.measure import HeadSettings
from jaxattn.lab.heads.run import Heads, heads, read_texts

__all__ = ["HeadSettings", "Heads", "heads", "read_texts"]
