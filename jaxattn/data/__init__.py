"""Data: bags of tokens, ordered sequences, synthetic generators, and token importance.

Readers of labelled texts are in `jaxattn.lab.texts`.
"""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.data.corpus import Corpus, from_draws
    from jaxattn.data.generators import (
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
    from jaxattn.data.token_ids import from_flat, from_sequences

__all__ = [
    "Assumption1",
    "Corpus",
    "Independent",
    "Loaded",
    "MultiRelevant",
    "Negation",
    "Sequences",
    "Splits",
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
    "token_counts",
    "token_statistics",
    "topics",
    "xor",
]

_NAMES = {
    "Assumption1": "jaxattn.data.generators",
    "Corpus": "jaxattn.data.corpus",
    "Independent": "jaxattn.data.generators",
    "Loaded": "jaxattn.data.splits",
    "MultiRelevant": "jaxattn.data.generators",
    "Negation": "jaxattn.data.generators",
    "Sequences": "jaxattn.data.sequences",
    "Splits": "jaxattn.data.splits",
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
    "from_flat": "jaxattn.data.token_ids",
    "from_sequences": "jaxattn.data.token_ids",
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
__getattr__, __dir__ = lazy(__name__, _NAMES, {})
