"""Where parameters start: what every model draws, and the starts that a study may name instead."""

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
    """Draw E_s, p ~ N(0, I/d) and v uniform on the unit sphere: one key gives all models the same start.

    Args:
        key: PRNG key; a model that draws more takes it from `jax.random.fold_in(key, i)`.
        vocab_size: V. A larger V leaves the rows of a smaller one unchanged.
        dim: d.
        num_classes: K; two classes share one head.
        dtype: of all parameters.

    Returns:
        E (V, d), p (d,) and v, (d,) or (d, K).

    Raises:
        InputError: a size below 1, or fewer than two classes.

    Source:
        Section on the model in arXiv 2505.17282; the direction of v is not published and drawn here.
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
    # Drawing and dividing in one kernel of float64 takes XLA very long to compile for a GPU where d is small.
    v = jax.lax.optimization_barrier(jax.random.normal(v_key, shape, dtype))
    return (
        scale * jax.random.normal(e_key, (vocab_size, dim), dtype),
        scale * jax.random.normal(p_key, (dim,), dtype),
        v / jnp.linalg.norm(v, axis=0),
    )


def sizes(like: Corpus) -> dict[str, int]:
    """Tell V and K of a corpus by the names that every `init` gives them."""
    return {"vocab_size": like.vocab_size, "num_classes": like.num_classes}


def square(key: Array, dim: int, dtype: DTypeLike, weights: Weights = "normal") -> Array:
    """Make a (d, d) matrix: entries N(0, 1/d), which on average keep the length of what they map, or 1.

    Raises:
        InputError: another start than "identity" or "normal".
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
        """Make the start of one parameter."""
        return jnp.zeros_like(drawn)


class Scaled(Start, frozen=True, kw_only=True):
    """θ_0 = scale · (the model's own initial value).

    Attributes:
        scale: the factor.
    """

    rotation_invariant: ClassVar[bool] = True

    scale: float

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Make the start of one parameter."""
        return jnp.asarray(self.scale, drawn.dtype) * drawn


class FromFile(Start, frozen=True, kw_only=True):
    """θ_0 from an array in a file: `.npy`, or `FILE.safetensors:KEY`.

    With `vocabulary`, a text with one token per line, row k of the array is that of the token in line k + 1;
    tokens of the corpus that it does not name keep what the model draws.

    Attributes:
        file: path of the file, relative to the sweep file.
        vocabulary: path of a text file that lists the token of each row; by default, the rows must follow the
            order of the corpus vocabulary.
    """

    file: str
    vocabulary: str | None = None

    def located(self, names: Places) -> "FromFile":
        """Return it with paths that start from the sweep file's folder."""
        place, colon, key = self.file.partition(":")
        file = f"{names.path(place)}{colon}{key}"
        lines = self.vocabulary and str(names.path(self.vocabulary))
        return msgspec.structs.replace(self, file=file, vocabulary=lines)

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Make the start of one parameter."""
        rows = read_array(self.file)
        if self.vocabulary is None:
            if rows.shape != drawn.shape:
                raise InputError(f"{self.file}: {rows.shape}; the model wants {drawn.shape}")
            return jnp.asarray(rows, drawn.dtype)
        lines = _lines(Path(self.vocabulary))
        if rows.shape != (len(lines), *drawn.shape[1:]):
            wanted = (len(lines), *drawn.shape[1:])
            raise InputError(f"{self.file}: {rows.shape}; the model and the vocabulary want {wanted}")
        place = {token: k for k, token in enumerate(lines)}
        index = np.array([place.get(token, -1) for token in tokens])
        if (index < 0).all():
            raise InputError(f"{self.vocabulary}: it names no token of the corpus; one token per line")
        known = jnp.asarray((index >= 0).reshape(-1, *(1,) * (drawn.ndim - 1)))
        return jnp.where(known, jnp.asarray(rows[np.maximum(index, 0)], drawn.dtype), drawn)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); give one token per line") from None


def kind_of(table: dict[str, Any]) -> str | None:
    """Tell the kind of a start that names none: by its keys."""
    return "file" if "file" in table else "scaled" if "scale" in table else None


STARTS: dict[str, type[Start]] = {"zero": Zero, "scaled": Scaled, "file": FromFile}
