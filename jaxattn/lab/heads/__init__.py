"""Attention heads of trained transformers: their selections, margins and max-margin directions."""

from jaxattn.lab.heads.measure import Settings
from jaxattn.lab.heads.run import Heads, heads, read_texts

__all__ = ["Heads", "Settings", "heads", "read_texts"]
