"""Corpora: bags of token counts, vocabularies, generators, readers, importance."""

from jaxattn.data import readers, text
from jaxattn.data.corpus import Corpus, from_flat, from_sequences
from jaxattn.data.importance import (
    average_signed_frequency,
    class_counts,
    completely_relevant,
    irrelevant,
    posterior_difference,
    token_counts,
)
from jaxattn.data.interactions import negation, xor
from jaxattn.data.noise import flip_labels
from jaxattn.data.synthetic import assumption1, independent, multi_relevant, topics

__all__ = [
    "Corpus",
    "assumption1",
    "average_signed_frequency",
    "class_counts",
    "completely_relevant",
    "flip_labels",
    "from_flat",
    "from_sequences",
    "independent",
    "irrelevant",
    "multi_relevant",
    "negation",
    "posterior_difference",
    "readers",
    "text",
    "token_counts",
    "topics",
    "xor",
]
