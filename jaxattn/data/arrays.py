"""Arrays of a trained model, from .npy files and from single keys of .safetensors files."""

import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxattn.data.messages import first_line, listed
from jaxattn.errors import InputError

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
}


class _Stored(NamedTuple):
    """What a file says of an array: its numbers are those from one byte to another."""

    dtype: Any
    shape: Any
    first: Any
    last: Any
    order: Any = "C"


def read_array(place: str | Path) -> np.ndarray:
    """Read an array of floating-point numbers.

    Args:
        place: FILE.npy, or FILE.safetensors:KEY.

    Returns:
        The array; that of a .safetensors file is read from its own bytes alone, however large the file.

    Raises:
        InputError: no such file or key, a file that cannot be read or whose size is not what it says, numbers
            that are not floating-point.
    """
    place = os.fspath(place)
    path, separator, key = place.rpartition(".safetensors:")
    if separator:
        path = f"{path}.safetensors"
    elif place.endswith((".npy", ".safetensors")):
        path = place
    else:
        raise InputError(f"{place}: expected FILE.npy or FILE.safetensors:KEY; save it with numpy.save")
    with _damages(path), open(path, "rb") as file:
        if path.endswith(".npy"):
            return _numbers(file, _npy(file, place), place)
        header, start = _header(file)
        if not separator:
            raise InputError(f"{place}: name one of its arrays, {place}:KEY; it holds {listed(header)}")
        return _numbers(file, _tensor(header, start, path, key), place)


@contextmanager
def _damages(path: str) -> Iterator[None]:
    """Say in one line what is wrong with a file."""
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: there is no such file")
        with warnings.catch_warnings():
            # Of headers that are odd and can be read all the same.
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    # A flipped bit can surface as almost any exception of the parsers of headers.
    except Exception as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); write the file again") from error


def _npy(file: BinaryIO, place: str) -> _Stored:
    versions = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, fortran_order, dtype = versions[np.lib.format.read_magic(file)](file)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"{place}: holds {dtype}, not floating-point numbers; save it as float32")
    return _Stored(dtype, shape, file.tell(), os.path.getsize(file.name), "F" if fortran_order else "C")


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Read the names, types, shapes and places of a file's arrays, and where the numbers begin."""
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= os.path.getsize(file.name) - 8:
        raise ValueError("it has no header")
    header = json.loads(file.read(size), object_pairs_hook=_distinct)
    if not isinstance(header, dict):
        raise ValueError("its header is not a table")
    header.pop("__metadata__", None)
    return header, 8 + size


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("its header names something twice")
    return found


def _tensor(header: dict[str, Any], start: int, path: str, key: str) -> _Stored:
    if key not in header:
        raise InputError(f"{path}: no array {key!r}; it holds {listed(header)}")
    try:
        kind, shape, (first, last) = (header[key][name] for name in ("dtype", "shape", "data_offsets"))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the header says no dtype, shape and data_offsets of {key!r}") from None
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise InputError(f"{path}:{key}: holds {kind!s:.40}; expected one of {', '.join(_DTYPES)}")
    if not all(type(x) is int and x >= 0 for x in (first, last)):
        raise ValueError(f"the data_offsets of {key!r} are {[first, last]!r:.40}")
    return _Stored(np.dtype(_DTYPES[kind]), shape, start + first, start + last)


def _numbers(file: BinaryIO, stored: _Stored, place: str) -> np.ndarray:
    shape, held = stored.shape, min(stored.last, os.path.getsize(file.name)) - stored.first
    if not isinstance(shape, list | tuple) or not all(type(x) is int and x >= 0 for x in shape):
        raise InputError(f"{place}: its shape is {shape!r:.60}; write the file again")
    if (wanted := math.prod(shape) * stored.dtype.itemsize) != held or stored.last - stored.first != held:
        raise InputError(
            f"{place}: {max(held, 0):,} bytes for {wanted:,} of a {stored.dtype} array of shape "
            f"{list(shape)!r:.60}; write the file again"
        )
    file.seek(stored.first)
    numbers = np.frombuffer(file.read(held), stored.dtype)
    return numbers.reshape(shape, order=stored.order).astype(stored.dtype.newbyteorder("="), copy=False)
