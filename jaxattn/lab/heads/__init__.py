"""Attention heads of trained transformers: their selections, margins and max-margin directions."""

from jaxattn.lab.heads.heads import Heads, heads, read_texts
from jaxattn.lab.heads.measure import Settings

__all__ = ["Heads", "Settings", "heads", "read_texts"]
