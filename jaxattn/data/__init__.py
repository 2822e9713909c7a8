"""Data: bags of tokens, ordered sequences, synthetic generators, text readers, and token importance."""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.data.corpus import Corpus, from_draws, from_flat, from_sequences
    from jaxattn.data.generators import (
        GENERATORS,
        Assumption1,
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

_NAMES = {
    "Assumption1": "jaxattn.data.generators",
    "Corpus": "jaxattn.data.corpus",
    "Csv": "jaxattn.lab.texts.tables",
    "Folder": "jaxattn.lab.texts.readers",
    "GENERATORS": "jaxattn.data.generators",
    "Independent": "jaxattn.data.generators",
    "Jsonl": "jaxattn.lab.texts.tables",
    "Lines": "jaxattn.lab.texts.readers",
    "Loaded": "jaxattn.data.splits",
    "MultiRelevant": "jaxattn.data.generators",
    "Negation": "jaxattn.data.generators",
    "Parquet": "jaxattn.lab.texts.tables",
    "READERS": "jaxattn.lab.texts.readers",
    "Sequences": "jaxattn.data.sequences",
    "Source": "jaxattn.lab.texts.source",
    "Splits": "jaxattn.data.splits",
    "Tfds": "jaxattn.lab.texts.readers",
    "TokenStatistics": "jaxattn.data.splits",
    "Topics": "jaxattn.data.generators",
    "Vectors": "jaxattn.data.sequences",
    "Xor": "jaxattn.data.generators",
    "assumption1": "jaxattn.data.synthetic",
    "average_signed_frequency": "jaxattn.data.importance",
    "class_counts": "jaxattn.data.importance",
    "completely_relevant": "jaxattn.data.importance",
    "flip_labels": "jaxattn.data.splits",
    "from_draws": "jaxattn.data.corpus",
    "from_flat": "jaxattn.data.corpus",
    "from_sequences": "jaxattn.data.corpus",
    "independent": "jaxattn.data.synthetic",
    "irrelevant": "jaxattn.data.importance",
    "multi_relevant": "jaxattn.data.synthetic",
    "negation": "jaxattn.data.interactions",
    "posterior_difference": "jaxattn.data.importance",
    "token_counts": "jaxattn.data.importance",
    "token_statistics": "jaxattn.data.splits",
    "topics": "jaxattn.data.synthetic",
    "xor": "jaxattn.data.interactions",
}
# Text readers are part of `jaxattn.lab`.
_MODULES = {"readers": "jaxattn.lab.texts.readers", "text": "jaxattn.lab.texts.text"}
__getattr__, __dir__ = lazy(__name__, _NAMES, _MODULES)
