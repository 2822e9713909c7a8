"""Data splits for one seed, label noise, and token statistics."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base import D, Dataset
from jaxattn.base.data import Loaded as Loaded
from jaxattn.base.data import Splits as Splits
from jaxattn.base.data import TokenStatistics as TokenStatistics
from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus, class_index, class_labels
from jaxattn.data.importance import average_signed_frequency, posterior_difference, token_counts


def flip_labels(key: Array, data: D, label_noise: float | Array) -> D:
    """Return data with each label replaced, with a given probability, by another class chosen at random.

        P(ỹ = y) = 1 - label_noise,  P(ỹ = k) = label_noise / (K-1) for every k ≠ y.

    Args:
        key: PRNG key.
        data: n examples from K classes.
        label_noise: the probability, in [0, 1]; may be traced.

    Raises:
        InputError: the targets are not classes.

    Source:
        Label noise as in Sakamoto & Sato, arXiv 2409.17625. The extension to K > 2 classes is original to
        this library.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.flip_labels(jax.random.key(0), corpus, 1.0).targets.tolist()
        [-1, 1]
    """
    classes, targets = data.num_classes, data.targets
    if classes is None:
        raise InputError("label_noise: the targets are not classes; remove this setting")
    whether, which = jax.random.split(key)
    flipped = jax.random.uniform(whether, targets.shape) < label_noise
    shift = jax.random.randint(which, targets.shape, 1, classes)
    other = class_labels((class_index(targets, classes) + shift) % classes, classes)
    return data.replace(targets=jnp.where(flipped, other, targets).astype(targets.dtype))


def token_statistics(corpus: Corpus) -> TokenStatistics:
    """Compute the count, α and posterior difference of each token in a corpus.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.token_statistics(corpus).count.tolist()
        [1.0, 1.0, 2.0]
    """

    def columns(x: Array) -> Array:
        return x[:, None] if x.ndim == 1 else x

    return TokenStatistics(
        count=token_counts(corpus),
        alpha=columns(average_signed_frequency(corpus)),
        posterior_difference=columns(posterior_difference(corpus)),
    )


def splits_of(
    train: Dataset,
    test: Dataset | None = None,
    validation: Dataset | None = None,
    task_key: Array | None = None,
) -> Splits:
    """Build the `Splits` for one seed, with token statistics if the training data are bags of tokens."""
    tokens = token_statistics(train) if isinstance(train, Corpus) else None
    shared = None if task_key is None else jax.random.key_data(task_key)
    return Splits(train, tokens, test, validation, shared)
