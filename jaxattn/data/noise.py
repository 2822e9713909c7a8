"""Label noise."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.corpus import Corpus, class_labels


def flip_labels(key: Array, corpus: Corpus, label_noise: float | Array) -> Corpus:
    """Replace each label with some probability by another class, all others being equally likely.

    P(ỹ = y) = 1 - label_noise,  P(ỹ = k) = label_noise / (K-1) for every k ≠ y.

    Args:
        key: PRNG key.
        corpus: n sequences of K classes.
        label_noise: the probability, in [0, 1]; may be traced. 0 leaves every label as it is.

    Returns:
        The corpus with the labels ỹ, its tokens unchanged.

    Source:
        Label noise as in Sakamoto & Sato, arXiv 2409.17625; K > 2 classes chosen here.
    """
    classes = corpus.num_classes
    whether, which = jax.random.split(key)
    flipped = jax.random.uniform(whether, corpus.targets.shape) < label_noise
    shift = jax.random.randint(which, corpus.targets.shape, 1, classes)
    other = class_labels((corpus.class_index + shift) % classes, classes)
    return corpus.replace(targets=jnp.where(flipped, other, corpus.targets))
