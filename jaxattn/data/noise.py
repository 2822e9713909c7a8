"""Label noise."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base import D
from jaxattn.data.corpus import class_index, class_labels
from jaxattn.errors import InputError


def flip_labels(key: Array, data: D, label_noise: float | Array) -> D:
    """Replace each label with some probability by another class, all others being equally likely.

    P(ỹ = y) = 1 - label_noise,  P(ỹ = k) = label_noise / (K-1) for every k ≠ y.

    Args:
        key: PRNG key.
        data: n examples of K classes.
        label_noise: the probability, in [0, 1]; may be traced. 0 leaves every label as it is.

    Returns:
        The data with the labels ỹ, all else unchanged.

    Raises:
        InputError: the targets are no classes.

    Source:
        Label noise as in Sakamoto & Sato, arXiv 2409.17625; K > 2 classes chosen here.
    """
    classes, targets = data.num_classes, data.targets
    if classes is None:
        raise InputError("label_noise: the targets are no classes; leave it out")
    whether, which = jax.random.split(key)
    flipped = jax.random.uniform(whether, targets.shape) < label_noise
    shift = jax.random.randint(which, targets.shape, 1, classes)
    other = class_labels((class_index(targets, classes) + shift) % classes, classes)
    return data.replace(targets=jnp.where(flipped, other, targets).astype(targets.dtype))
