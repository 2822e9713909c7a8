"""Labelled texts as data: readers of files and datasets, the tokeniser, the vocabulary, and a cache.

A reader, such as `Csv`, is the data of a study. `load_text` returns its corpora without a study.
"""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.lab.texts.readers import Folder, Lines, Tfds
    from jaxattn.lab.texts.source import Source
    from jaxattn.lab.texts.table_files import Csv, Jsonl, Parquet
    from jaxattn.lab.texts.text import TextCorpora, Vocabulary, build_vocabulary, encode, load_text

__all__ = [
    "Csv",
    "Folder",
    "Jsonl",
    "Lines",
    "Parquet",
    "Source",
    "TextCorpora",
    "Tfds",
    "Vocabulary",
    "build_vocabulary",
    "encode",
    "load_text",
]

_NAMES = {
    **dict.fromkeys(("Folder", "Lines", "Tfds"), "jaxattn.lab.texts.readers"),
    **dict.fromkeys(("Csv", "Jsonl", "Parquet"), "jaxattn.lab.texts.table_files"),
    "Source": "jaxattn.lab.texts.source",
    **dict.fromkeys(
        ("TextCorpora", "Vocabulary", "build_vocabulary", "encode", "load_text"), "jaxattn.lab.texts.text"
    ),
}
__getattr__, __dir__ = lazy(__name__, _NAMES, {})
