"""Windows of frequent words from reviews, sampled for each seed, and the next-word loss."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences


@cache
def frequent_words(data_dir: str, length: int) -> tuple[np.ndarray, int]:
    """Cut the training reviews into windows of `length` + 1 frequent words.

    Returns:
        Word ids with one row per window, and the vocabulary size.
    """
    source = ja.texts.Tfds(dataset="imdb_reviews", data_dir=data_dir, min_count=4000, order="kept")
    # JAX calls this function while it traces the sampling of windows, but concrete arrays are needed here.
    with jax.ensure_compile_time_eval():
        reviews, span = source.load().splits.train, length + 1
        rows, sizes = np.asarray(reviews.ids), np.asarray(reviews.lengths)
    cuts = [
        row[start : start + span]
        for row, n in zip(rows, sizes, strict=True)
        for start in range(0, n - span + 1, span)
    ]
    return np.stack(cuts).astype(np.int32), reviews.vocab_size


@ja.declare(inert=frozenset({"data_dir"}))
def windows(key: Array, *, data_dir: ja.FilePath, number: int, words: int | None = None) -> Sequences:
    """Sample `number` windows of 32 words. The target at each position is the next word.

    If `words` is given, all but the `words` most frequent words are replaced by a single further token.
    """
    cuts, vocab = frequent_words(data_dir, 32)
    if words is not None:
        frequency = np.bincount(cuts.ravel(), minlength=vocab)
        rank = np.argsort(np.argsort(-frequency))
        cuts, vocab = np.minimum(rank[cuts], words).astype(np.int32), words + 1
    rows = jnp.asarray(cuts)[jax.random.choice(key, len(cuts), (number,), replace=False)]
    ids = rows[:, :-1]
    return Sequences(targets=rows[:, 1:], ids=ids, mask=jnp.ones(ids.shape, bool), vocab_size=vocab)


def next_word(outputs: Array, targets: Array) -> Array:
    """Compute the cross-entropy of the next word, averaged over positions, as an (n,) array."""
    own = jnp.take_along_axis(outputs, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(outputs, axis=-1) - own).mean(axis=-1)
