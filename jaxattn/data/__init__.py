"""Corpora: bags of token counts, vocabularies, generators, readers, importance."""

from jaxattn.data import readers, text
from jaxattn.data.corpus import Corpus, from_draws, from_flat, from_sequences
from jaxattn.data.generators import (
    GENERATORS,
    Assumption1,
    Generator,
    Independent,
    MultiRelevant,
    Negation,
    Topics,
    Xor,
)
from jaxattn.data.importance import (
    average_signed_frequency,
    class_counts,
    completely_relevant,
    irrelevant,
    posterior_difference,
    token_counts,
)
from jaxattn.data.interactions import negation, xor
from jaxattn.data.readers import READERS, Folder, Lines, Tfds
from jaxattn.data.sequences import Sequences, Vectors
from jaxattn.data.source import Source
from jaxattn.data.splits import Loaded, Splits, TokenStatistics, flip_labels, token_statistics
from jaxattn.data.synthetic import assumption1, independent, multi_relevant, topics
from jaxattn.data.tables import Csv, Jsonl, Parquet

__all__ = [
    "GENERATORS",
    "READERS",
    "Assumption1",
    "Corpus",
    "Csv",
    "Folder",
    "Generator",
    "Independent",
    "Jsonl",
    "Lines",
    "Loaded",
    "MultiRelevant",
    "Negation",
    "Parquet",
    "Sequences",
    "Source",
    "Splits",
    "Tfds",
    "TokenStatistics",
    "Topics",
    "Vectors",
    "Xor",
    "assumption1",
    "average_signed_frequency",
    "class_counts",
    "completely_relevant",
    "flip_labels",
    "from_draws",
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
    "token_statistics",
    "topics",
    "xor",
]
