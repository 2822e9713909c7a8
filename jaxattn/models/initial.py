"""Initial values of parameters: those of all models, and the starts that a study can choose instead."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jaxattn.base import Start
from jaxattn.core.errors import InputError
from jaxattn.core.settings import Places
from jaxattn.data.arrays import read_array
from jaxattn.data.corpus import Corpus

Weights = Literal["identity", "normal"]


def embeddings_query_head(
    key: Array, *, vocab_size: int, dim: int, num_classes: int, dtype: DTypeLike
) -> tuple[Array, Array, Array]:
    """Sample E_s, p ~ N(0, I/d) and v uniform on the unit sphere, the same for all models with one key.

    Args:
        key: PRNG key. A model with more parameters samples them with `jax.random.fold_in(key, i)`.
        vocab_size: V. A larger V does not change the rows of a smaller one.
        dim: d.
        num_classes: K; two classes share one head.
        dtype: dtype of all parameters.

    Returns:
        E (V, d), p (d,) and v, (d,) or (d, K).

    Raises:
        InputError: a size is below 1, or there are fewer than two classes.

    Source:
        Section on the model in arXiv 2505.17282; the direction of v is not published and sampled here.
    """
    for name, size, least in (
        ("vocab_size", vocab_size, 1),
        ("dim", dim, 1),
        ("num_classes", num_classes, 2),
    ):
        if size < least:
            raise InputError(f"{name}: {size}; it must be at least {least}")
    e_key, p_key, v_key = jax.random.split(key, 3)
    scale = dim**-0.5
    shape = (dim,) if num_classes == 2 else (dim, num_classes)
    # With small d, XLA takes very long to compile sampling and division in one float64 kernel for a GPU.
    v = jax.lax.optimization_barrier(jax.random.normal(v_key, shape, dtype))
    return (
        scale * jax.random.normal(e_key, (vocab_size, dim), dtype),
        scale * jax.random.normal(p_key, (dim,), dtype),
        v / jnp.linalg.norm(v, axis=0),
    )


def sizes(like: Corpus) -> dict[str, int]:
    """Return V and K of a corpus as keyword arguments of `init`."""
    return {"vocab_size": like.vocab_size, "num_classes": like.num_classes}


def square(key: Array, dim: int, dtype: DTypeLike, weights: Weights = "normal") -> Array:
    """Return a (d, d) matrix: the identity, or entries N(0, 1/d), which preserve length on average.

    Raises:
        InputError: `weights` is neither "identity" nor "normal".
    """
    if weights not in ("identity", "normal"):
        raise InputError(f"weights: {weights!r}; it must be 'identity' or 'normal'")
    if weights == "identity":
        return jnp.eye(dim, dtype=dtype)
    return dim**-0.5 * jax.random.normal(key, (dim, dim), dtype)


class Zero(Start, frozen=True, kw_only=True):
    """θ_0 = 0."""

    rotation_invariant: ClassVar[bool] = True

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Return the initial value of a parameter."""
        return jnp.zeros_like(drawn)


class Scaled(Start, frozen=True, kw_only=True):
    """θ_0 = scale · (the model's own initial value).

    Attributes:
        scale: the factor.
    """

    rotation_invariant: ClassVar[bool] = True

    scale: float

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Return the initial value of a parameter."""
        return jnp.asarray(self.scale, drawn.dtype) * drawn


class FromFile(Start, frozen=True, kw_only=True):
    """θ_0 from an array in a file: `.npy`, or `FILE.safetensors:KEY`.

    With `vocabulary`, a text file with one token per line, row k of the array belongs to the token in line
    k + 1. Other tokens of the corpus keep the value that the model samples.

    Attributes:
        file: path of the file, relative to the sweep file.
        vocabulary: path of a text file that lists the token of each row; by default, the rows must follow the
            order of the corpus vocabulary.
    """

    file: str
    vocabulary: str | None = None

    def located(self, names: Places) -> "FromFile":
        """Return the settings with paths relative to the sweep file resolved."""
        place, colon, key = self.file.partition(":")
        file = f"{names.path(place)}{colon}{key}"
        lines = self.vocabulary and str(names.path(self.vocabulary))
        return msgspec.structs.replace(self, file=file, vocabulary=lines)

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Return the initial value of a parameter."""
        rows = read_array(self.file)
        if self.vocabulary is None:
            if rows.shape != drawn.shape:
                raise InputError(f"{self.file}: shape {rows.shape}; the model requires {drawn.shape}")
            return jnp.asarray(rows, drawn.dtype)
        lines = _lines(Path(self.vocabulary))
        if rows.shape != (len(lines), *drawn.shape[1:]):
            wanted = (len(lines), *drawn.shape[1:])
            raise InputError(
                f"{self.file}: shape {rows.shape}; the model and the vocabulary require {wanted}"
            )
        place = {token: k for k, token in enumerate(lines)}
        index = np.array([place.get(token, -1) for token in tokens])
        if (index < 0).all():
            raise InputError(f"{self.vocabulary}: has no token of the corpus; write one token per line")
        known = jnp.asarray((index >= 0).reshape(-1, *(1,) * (drawn.ndim - 1)))
        return jnp.where(known, jnp.asarray(rows[np.maximum(index, 0)], drawn.dtype), drawn)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); give one token per line") from None


def kind_of(table: dict[str, Any]) -> str | None:
    """Return the kind of a start whose table has no kind, from its keys."""
    return "file" if "file" in table else "scaled" if "scale" in table else None


STARTS: dict[str, type[Start]] = {"zero": Zero, "scaled": Scaled, "file": FromFile}
