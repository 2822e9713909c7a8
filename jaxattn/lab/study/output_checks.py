"""Validation of the values that custom code returns; failed checks raise an InputError with a remedy."""

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.base import Dataset, Model
from jaxattn.base.model import HasTokenScores
from jaxattn.core.errors import InputError, at, shown
from jaxattn.data.corpus import Corpus, class_labels
from jaxattn.data.sequences import Sequences
from jaxattn.losses import PerSequence

NOT_REAL = "metrics must be real; return its real and imaginary parts, or its absolute value"


def check_examples(data: Dataset, name: str) -> None:
    """Raise InputError if shapes do not match or `take` changes more than the length of the first axis."""
    with at(name):
        data.check_shapes()
        size = min(2, data.num_examples)
        taken = data.take(jnp.arange(size))
        # Arrays of bags have one row per entry of a bag, not one row per example.
        pairs = [("targets", data.targets, taken.targets)]
        if not isinstance(data, Corpus):
            if _structure(data) != _structure(taken):
                raise InputError(
                    f"`take` returned a {shown(taken)} of another structure; return the same type of data"
                )
            pairs = [(field, x, y) for (field, x), (_, y) in zip(data.arrays(), taken.arrays(), strict=True)]
        for field, x, y in pairs:
            if (y.shape, y.dtype) != ((size, *x.shape[1:]), x.dtype):
                raise InputError(
                    f"{field}: `take` returned {shown(y)} for {size} rows of {shown(x)}; only the length of "
                    "the first axis may change"
                )


def check_vocabulary(data: Dataset, vocab_size: int | None) -> None:
    """Raise InputError unless the data have the vocabulary size given in their settings."""
    found = data.vocab_size if isinstance(data, Corpus | Sequences) else None
    if found != vocab_size:
        raise InputError(
            f"vocab_size: the padded vocabulary has V = {vocab_size}, but the sampled data have V = {found}; "
            "return data with V = vocab_size, of which only the first `used` tokens occur"
        )


def check_scores(model: Model[Any], params: Any, corpus: Corpus) -> None:
    """Raise InputError unless token scores have shape (V,) and token values (V,), (V, K) or (V, 1)."""
    name = f"{model.kind or type(model).__name__}.scores_and_values"
    vocab, classes = corpus.vocab_size, corpus.num_classes
    columns = () if classes == 2 else (classes,)
    found: Any = cast(HasTokenScores, model).scores_and_values(params)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise InputError(f"{name} returns {shown(found)}; return a tuple (scores, values)")
    check_floats(name, found[0], [(vocab,)], "the score of every token")
    check_floats(name, found[1], [(vocab, *columns), (vocab, 1)], "the values of every token")


def check_floats(name: str, value: Any, shapes: Sequence[tuple[int, ...]], why: str) -> None:
    """Raise InputError unless `value` is a float array with one of `shapes`; the message asks for the first.

    `why` explains the shape.
    """
    if not is_floats(value) or value.shape not in shapes:
        raise InputError(f"{name} returns {shown(value)}; return {shapes[0]} floats, {why}")


def is_floats(value: Any) -> bool:
    """Return True if `value` is a float array."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)


def check_like(wanted: Any, found: Any, what: str) -> None:
    """Raise InputError unless the tree `found` has the structure, shapes and dtypes of the tree `wanted`."""
    if _structure(wanted) != _structure(found):
        raise InputError(f"{what} a {shown(found)}; return the same structure as its input, {shown(wanted)}")
    for (path, x), y in zip(jax.tree.leaves_with_path(wanted), jax.tree.leaves(found), strict=True):
        if (jnp.shape(x), jnp.result_type(x)) != (jnp.shape(y), jnp.result_type(y)):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise InputError(
                f"{what} {shown(y)}{f' for {name}' if name else ''}; return {shown(x)}, like its input"
            )


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def metric_names(what: str, metrics: Any, axes: int) -> list[str]:
    """Return the names of metrics; raise InputError if a metric is not real or has more than `axes` axes.

    A vector adds one numbered name per entry. `what` names the function in error messages, and `axes` is 0
    or 1.
    """
    if not isinstance(metrics, dict):
        raise InputError(f"{what} returns {shown(metrics)}; return a dictionary of numbers keyed by name")
    names = []
    for name, value in metrics.items():
        number = isinstance(value, int | float | complex | np.ndarray | np.generic | Array)
        number = number and jnp.ndim(value) <= axes
        if number and jnp.issubdtype(jnp.result_type(value), jnp.complexfloating):
            raise InputError(f"{what} returns {shown(value)} for {name!r}; {NOT_REAL}")
        if not (isinstance(name, str) and number):
            kinds = "a number, or numbers of shape (m,)" if axes else "a number"
            raise InputError(f"{what} returns {shown(value)} for {name!r}; return {kinds}")
        names += [name, *(f"{name}_{k:02d}" for k in range(len(value) if jnp.ndim(value) else 0))]
    return names


def couples(loss: PerSequence, sequences: int, classes: int) -> bool:
    """Return whether, on random data, the loss of a sequence depends on the other sequences.

    The loss, (outputs, targets) -> (n,), is called with n = 8, or with n = `sequences` if it does not accept
    8 sequences.
    """

    def moves(n: int) -> bool:
        rng = np.random.default_rng(0)
        outputs = 2 * rng.standard_normal((2, n) if classes == 2 else (2, n, classes))
        labels = class_labels(rng.integers(0, classes, (2, n)), classes)
        compute = jax.jit(lambda f, y: loss(f.astype(jnp.result_type(float)), y.astype(jnp.int32)))
        before, location = np.asarray(compute(outputs[0], labels[0])), np.arange(n)
        for others in (location % 2 == 0, location % 2 == 1, location < n // 2, location >= n // 2):
            mixed = [
                np.where(others.reshape(-1, *(1,) * (x.ndim - 2)), x[1], x[0]) for x in (outputs, labels)
            ]
            after = np.asarray(compute(*mixed))
            # Losses subtract the largest logit, which cancels only up to rounding error.
            same = np.isclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True)
            if not same[~others].all():
                return True
        return False

    try:
        return moves(8)
    except Exception:  # The loss may require the actual number of examples.
        return moves(sequences)
