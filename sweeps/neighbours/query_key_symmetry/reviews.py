"""Windows of film reviews for masked-token and next-token prediction, and the loss for both tasks."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

Mode = Literal["encoder", "decoder"]


@ja.declare(inert=frozenset({"data_dir"}))
def windows(*, data_dir: ja.FilePath, mode: Mode, length: int = 32, number: int = 8192) -> Sequences:
    """Cut training reviews into `number` windows of `length` frequent words.

    An encoder predicts 15 % of the words, of which 80 % are replaced by a mask token and 10 % by random
    words. A decoder predicts the next word at every position. Positions with target -1 are ignored.
    """
    source = ja.texts.Tfds(dataset="imdb_reviews", data_dir=data_dir, min_count=2000, order="kept")
    reviews = source.load().splits.train
    vocab, rng = reviews.vocab_size, np.random.default_rng(0)
    sizes, rows = np.asarray(reviews.lengths), np.asarray(reviews.ids)
    span = length + (mode == "decoder")
    cuts = [
        row[start : start + span]
        for row, n in zip(rows, sizes, strict=True)
        for start in range(0, n - span + 1, span)
    ]
    ids = np.stack(cuts)[rng.permutation(len(cuts))[:number]].astype(np.int32)
    targets = ids[:, 1:]
    if mode == "decoder":
        ids = ids[:, :-1]
    else:
        chosen, kind = rng.random(ids.shape) < 0.15, rng.random(ids.shape)
        targets = np.where(chosen, ids, -1)
        ids = np.where(chosen & (kind < 0.8), vocab, ids)
        ids = np.where(chosen & (kind > 0.9), rng.integers(0, vocab, ids.shape), ids)
    mask = jnp.ones(ids.shape, bool)
    return Sequences(targets=jnp.asarray(targets), ids=jnp.asarray(ids), mask=mask, vocab_size=vocab + 1)


def predicted_words(outputs: Array, targets: Array) -> Array:
    """Compute the cross-entropy of each window, summed over its predicted words, as an (n,) array.

    The sums are divided by the mean number of predicted words per window. The mean over windows is then the
    mean over all predicted words.
    """
    own = jnp.take_along_axis(outputs, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    each = jnp.where(targets >= 0, jax.nn.logsumexp(outputs, axis=-1) - own, 0).sum(axis=1)
    return each / ((targets >= 0).sum(axis=1).mean())
