"""Corpora: bags of token counts, vocabularies, generators, readers, importance."""

from jaxattn.data.corpus import Corpus, from_flat, from_sequences

__all__ = ["Corpus", "from_flat", "from_sequences"]
