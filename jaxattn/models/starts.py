"""Starts: initial parameter values that a study uses in place of those sampled by the model."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.base.from_function import declare, settings_class
from jaxattn.base.model import StartFromFunction
from jaxattn.core.errors import InputError
from jaxattn.core.settings import FilePath
from jaxattn.data.arrays import read_array, read_vocabulary


@declare(rotation_invariant=True)
def zero(key: Array, drawn: Array) -> Array:
    """Return zeros as the initial value.

    Example:
        >>> ja.models.starts.zero(jax.random.key(0), jnp.ones(2)).tolist()
        [0.0, 0.0]
    """
    return jnp.zeros_like(drawn)


@declare(rotation_invariant=True)
def scaled(key: Array, drawn: Array, *, scale: float | Array) -> Array:
    """Return the initial value sampled by the model, multiplied by `scale`.

    Args:
        key: PRNG key (unused).
        drawn: the value sampled by the model.
        scale: scaling factor.

    Example:
        >>> ja.models.starts.scaled(jax.random.key(0), jnp.ones(2), scale=0.5).tolist()
        [0.5, 0.5]
    """
    return jnp.asarray(scale, drawn.dtype) * drawn


def from_file(
    key: Array, drawn: Array, *, tokens: Sequence[str], file: FilePath, vocabulary: FilePath | None = None
) -> Array:
    """Read the initial value from a file: `FILE.npy` or `FILE.safetensors:KEY`.

    If `vocabulary` is given, row k of the array belongs to the token in line k + 1 of that file. Corpus
    tokens that are not in the file keep the value sampled by the model.

    Args:
        key: PRNG key (unused).
        drawn: the value sampled by the model.
        tokens: names of the V tokens.
        file: path of the file, relative to the sweep file.
        vocabulary: text file with one token per line; by default, the rows are in the order of `tokens`.

    Raises:
        InputError: a file cannot be read, the array has the wrong shape, or `vocabulary` contains none of the
            tokens.
    """
    rows = read_array(file)
    if vocabulary is None:
        if rows.shape != drawn.shape:
            raise InputError(f"{file}: has shape {rows.shape}, but the model requires {drawn.shape}")
        return jnp.asarray(rows, drawn.dtype)
    lines = read_vocabulary(vocabulary)
    if rows.shape != (wanted := (len(lines), *drawn.shape[1:])):
        raise InputError(f"{file}: has shape {rows.shape}, but the model and vocabulary require {wanted}")
    place = {token: k for k, token in enumerate(lines)}
    index = np.array([place.get(token, -1) for token in tokens])
    if (index < 0).all():
        raise InputError(f"{vocabulary}: contains none of the tokens in the corpus; write one token per line")
    known = jnp.asarray((index >= 0).reshape(-1, *(1,) * (drawn.ndim - 1)))
    return jnp.where(known, jnp.asarray(rows[np.maximum(index, 0)], drawn.dtype), drawn)


def kind_of(table: Mapping[str, object]) -> str | None:
    """Infer the kind of a start from the keys of its table; return None if they do not determine the kind.

    Example:
        >>> ja.models.starts.kind_of({"scale": 0.5})
        'scaled'
    """
    return "file" if "file" in table else "scaled" if "scale" in table else None


Zero = settings_class(zero, StartFromFunction, "Zero")
Scaled = settings_class(scaled, StartFromFunction, "Scaled")
FromFile = settings_class(from_file, StartFromFunction, "FromFile")
