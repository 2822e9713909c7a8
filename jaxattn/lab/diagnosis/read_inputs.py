"""Inputs for a diagnosis: a corpus described by a file, and model arrays in various common shapes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxattn.base import Dataset, Progress, silent
from jaxattn.core.errors import InputError, at
from jaxattn.data.arrays import read_vocabulary
from jaxattn.data.corpus import Corpus
from jaxattn.lab.results.correlations import Floats
from jaxattn.lab.study import toml
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.seed import seed_dataset
from jaxattn.lab.texts import text
from jaxattn.lab.texts.source import Source

# Maximum absolute value of an entry; products of squares of larger entries would overflow.
_LARGEST = 1e70
# Settings that a study requires but that do not affect the corpus.
REST = {
    "name": "corpus",
    "model": {"kind": "one_layer", "dim": 1},
    "phases": [{"name": "none", "kind": "one_step", "step_size": 1.0}],
}


def read_corpus(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    vocabulary: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Corpus, tuple[str, ...]]:
    """Read or sample the training corpus described by a [data] table.

    Args:
        path: a TOML file with a [data] table as in sweep files, or a file that extends one. Other tables are
            ignored.
        overrides: strings `data.key=value`, applied last.
        vocabulary: a UTF-8 file with one lower-case token per line; token k is on line k + 1. Defaults to
            the tokens in the training texts.
        seed: seed for a synthetic corpus, as in a study.
        progress: progress callback.

    Returns:
        The corpus and the V token names.

    Raises:
        InputError: a file is missing or malformed, a setting is invalid, or the data cannot be read.
    """
    setting = _study(Path(path), overrides).base
    if vocabulary is not None:
        if not isinstance(setting.data, Source):
            raise InputError(f"{path}: data.kind: this corpus does not contain text; omit the vocabulary")
        words = read_vocabulary(vocabulary)
        if note := _subwords(words):
            progress(f"{vocabulary}: {note}", 0, 0)
        read = text.load_text(setting.data, tokens=words, progress=progress)
        return _bags(read.train, path), read.vocabulary.tokens
    loaded = seed_dataset(setting.data, seed, setting.dtype, progress=progress, hold=setting.hold)
    return _bags(loaded.splits.train, path), tuple(loaded.tokens)


def _subwords(tokens: Sequence[str]) -> str:
    """Describe the vocabulary of a subword tokeniser, or return "" for a vocabulary of words."""
    for mark, name in (("##", "WordPiece"), ("Ġ", "byte-level BPE"), ("▁", "SentencePiece")):
        marked = [token for token in tokens if token.startswith(mark) and token != mark]
        if 20 * len(marked) > len(tokens):
            return (
                f"{len(marked):,} of {len(tokens):,} tokens begin with {mark!r}, such as {marked[0]!r:.30} "
                f"({name}). Texts are split into whole words, so these tokens never occur, and only rows of "
                "E whose token is a whole word are diagnosed. To include subwords, tokenise the texts with "
                "the model's tokeniser, build a corpus with ja.data.from_sequences, and call "
                "jaxattn.lab.diagnosis.diagnose"
            )
    return ""


def _bags(data: Dataset, path: str | Path) -> Corpus:
    if not isinstance(data, Corpus):
        raise InputError(f"{path}: expected bags of tokens with class labels, got {type(data).__name__} data")
    return data


def _study(path: Path, overrides: Sequence[str]) -> Definition:
    tree = {"data": toml.tables(path).get("data")}
    with at(str(path)):
        if tree["data"] is None:
            raise InputError("no [data] table; add one as in a sweep file")
        for override in overrides:
            if not override.strip().startswith("data."):
                raise InputError(f"--set {override}: expected data.KEY=VALUE")
        toml.change(tree, overrides)
        return Definition(REST | tree, ImportPaths(path.parent))


class ModelWeights(NamedTuple):
    """Arrays that determine token scores and values, in float64.

    Attributes:
        embedding: E, (V, d).
        queries: p, (H, d); one per attention head.
        heads: v, (H, d, C), or (1, d, C) if all attention heads use the same v. C = 1 for two classes, and
            C = K for K > 2.
    """

    embedding: Floats
    queries: Floats
    heads: Floats

    @property
    def shared(self) -> bool:
        """Return True if all attention heads share the same v."""
        return len(self.heads) == 1

    def scores(self, h: int) -> Floats:
        """Return E·p of attention head h, (V,)."""
        return self.embedding @ self.queries[h]

    def values(self, h: int) -> Floats:
        """Return E·v of attention head h, (V, C)."""
        return self.embedding @ self.heads[0 if self.shared else h]


def read_weights(embedding: Any, query: Any, head: Any, corpus: Corpus) -> ModelWeights:
    """Convert arrays to a common form; see `diagnose` for the accepted shapes.

    Raises:
        InputError: shapes do not match or are ambiguous, or arrays contain NaN or inf.
    """
    E, p, v = (np.asarray(x).astype(np.float64) for x in (embedding, query, head))
    if E.ndim != 2:
        raise InputError(f"embedding: expected shape (V, d), with one row per token, got {E.shape}")
    size, dim = E.shape
    if size != corpus.vocab_size:
        raise InputError(
            f"embedding {E.shape}: {size} rows, but the corpus has V = {corpus.vocab_size} tokens; row "
            "s must be the embedding of token s; use the model's vocabulary, or the corpus the model was "
            "trained on"
        )
    for name, x in (("embedding", E), ("query", p), ("head", v)):
        usable = np.abs(x) < _LARGEST
        if not usable.all():
            where = tuple(map(int, np.unravel_index(np.argmin(usable), x.shape)))
            what = f"{x[where]:g}" if np.isfinite(x[where]) else "NaN or inf"
            raise InputError(f"{name}: contains {what} at index {where}; use an earlier checkpoint")
    # Layers with a single output often store their weights with an extra axis of length 1.
    queries = p.reshape(1, -1) if p.size == dim else p
    if queries.ndim != 2 or queries.shape[1] != dim or not len(queries):
        raise InputError(
            f"query {p.shape}: expected ({dim},), or (H, {dim}) for H attention heads, because the embedding "
            f"has shape {E.shape}"
        )
    return ModelWeights(E, queries, _heads(v, E.shape, len(queries), corpus.num_classes))


def _heads(v: Floats, embedding: tuple[int, ...], number: int, classes: int) -> Floats:
    """Return v as (H, d, C), or as (1, d, C) if all attention heads share the same v."""
    dim = embedding[1]
    if v.ndim == 3 and len(v) == number:
        return np.stack([_one(x, embedding, classes) for x in v])
    if number > 1 and classes == 2 and v.shape == (number, dim):
        if number == 2:
            raise InputError(
                f"head {v.shape}: the first axis could index attention heads or classes; pass (2, "
                f"{dim}, 1) for attention heads, or ({dim}, 2) for classes"
            )
        return v[..., None]
    return _one(v, embedding, classes)[None]


def _one(v: Floats, embedding: tuple[int, ...], classes: int) -> Floats:
    """Convert v of one attention head to shape (d, C)."""
    dim = embedding[1]
    shape = v.shape
    v = v.reshape(-1) if v.size == dim and 1 in (*shape, v.ndim) else v
    if v.shape == (classes, dim) != (dim, classes):
        v = v.T
    if v.shape == (dim, 2) and classes == 2:
        v = v[:, 1] - v[:, 0]
    wanted = (dim,) if classes == 2 else (dim, classes)
    if v.shape != wanted:
        raise InputError(
            f"head {shape}: expected {wanted} for an embedding of shape {embedding} and {classes} classes"
        )
    return v.reshape(dim, -1)
