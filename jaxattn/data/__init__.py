"""Corpora: bags of token counts, vocabularies, generators, readers, importance."""

import importlib
from typing import TYPE_CHECKING, Any

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
from jaxattn.data.sequences import Sequences, Vectors
from jaxattn.data.splits import Loaded, Splits, TokenStatistics, flip_labels, token_statistics
from jaxattn.data.synthetic import assumption1, independent, multi_relevant, topics

if TYPE_CHECKING:
    from jaxattn.lab.texts import readers, text
    from jaxattn.lab.texts.readers import READERS, Folder, Lines, Tfds
    from jaxattn.lab.texts.source import Source
    from jaxattn.lab.texts.tables import Csv, Jsonl, Parquet

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

# Readers of texts belong to the lab, and are imported when they are asked for.
_LAB = {
    "READERS": "readers",
    "Csv": "tables",
    "Folder": "readers",
    "Jsonl": "tables",
    "Lines": "readers",
    "Parquet": "tables",
    "Source": "source",
    "Tfds": "readers",
}


def __getattr__(name: str) -> Any:
    """Import a reader of texts."""
    if name in ("readers", "text"):
        return importlib.import_module(f"jaxattn.lab.texts.{name}")
    if name not in _LAB:
        raise AttributeError(f"module 'jaxattn.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"jaxattn.lab.texts.{_LAB[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
