"""Splits of one seed: sampling with separate keys, label noise, and token statistics."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base import D, Dataset
from jaxattn.base.data import Loaded as Loaded
from jaxattn.base.data import Splits as Splits
from jaxattn.base.data import TokenStatistics as TokenStatistics
from jaxattn.core.errors import InputError, shown
from jaxattn.data.corpus import Corpus, class_index, class_labels
from jaxattn.data.importance import average_signed_frequency, posterior_difference, token_counts


def flip_labels(key: Array, data: D, label_noise: float | Array) -> D:
    """Replace each label with some probability by another class, chosen uniformly.

    P(ỹ = y) = 1 - label_noise,  P(ỹ = k) = label_noise / (K-1) for every k ≠ y.

    Args:
        key: PRNG key.
        data: n examples of K classes.
        label_noise: the probability, in [0, 1]; may be traced. 0 changes no label.

    Returns:
        The data with the labels ỹ; everything else is unchanged.

    Raises:
        InputError: the targets are not classes.

    Source:
        Label noise as in Sakamoto & Sato, arXiv 2409.17625; K > 2 classes chosen here.
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
    """Compute count, α and posterior difference of every token of a corpus."""

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
    """Return the splits, with token statistics if the training data are bags."""
    tokens = token_statistics(train) if isinstance(train, Corpus) else None
    shared = None if task_key is None else jax.random.key_data(task_key)
    return Splits(train, tokens, test, validation, shared)


def task_key_of(key: Array) -> Array:
    """Derive the key that all samples of a seed share from the key of the seed's data."""
    return jax.random.fold_in(key, 5)


def takes_task_key(function: Callable[..., Any]) -> bool:
    """Return True if a sampling function takes a `task_key`."""
    return "task_key" in inspect.signature(function).parameters


def noisy(key: Array, data: Dataset, label_noise: float | Array) -> Dataset:
    """Flip labels, see `flip_labels`; without noise, targets need not be classes."""
    is_none = isinstance(label_noise, float) and label_noise == 0
    return data if is_none and data.num_classes is None else flip_labels(key, data, label_noise)


def draw_splits(
    generate: Callable[[Array, int], Dataset],
    key: Array,
    *,
    task_key: Array | None = None,
    sequences: int,
    test_sequences: int = 0,
    validation_sequences: int = 0,
    label_noise: float | Array = 0.0,
) -> Splits:
    """Sample training, test and validation data with separate keys.

    Args:
        generate: (key, number of examples) -> data with clean labels.
        key: PRNG key of the seed's data.
        task_key: PRNG key that all samples of the seed share, kept for fresh batches; None if there is none.
        sequences: number of training examples.
        test_sequences: number of test examples, with clean labels; 0 for none.
        validation_sequences: number of validation examples, with the label noise of training; 0 for none.
        label_noise: probability that a label is replaced by another class.

    Returns:
        The splits. The content of each does not depend on whether the others are sampled.

    Raises:
        InputError: `generate` does not return a dataset, or there is label noise but no classes.
    """

    def draw(key: Array, number: int) -> Dataset:
        data: object = generate(key, number)
        if not isinstance(data, Dataset):
            raise InputError(f"it returns {shown(data)}; return a jaxattn.Dataset, such as a Corpus")
        return data

    train_key, test_key = jax.random.split(key)
    validation_key, noise_key, other_noise_key = (jax.random.fold_in(key, place) for place in (2, 3, 4))
    train = noisy(noise_key, draw(train_key, sequences), label_noise)
    test = draw(test_key, test_sequences) if test_sequences else None
    validation = None
    if validation_sequences:
        clean = draw(validation_key, validation_sequences)
        validation = noisy(other_noise_key, clean, label_noise)
    return splits_of(train, test, validation, task_key)


def draw_batch(
    generate: Callable[[Array, int], Dataset], key: Array, examples: int, label_noise: float | Array
) -> Dataset:
    """Sample new examples, with the label noise of training."""
    batch_key, noise_key = jax.random.split(key)
    return noisy(noise_key, generate(batch_key, examples), label_noise)
