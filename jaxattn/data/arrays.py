"""Arrays of FILE.npy, or tensors of FILE.safetensors."""

import os
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from jaxattn.core.errors import InputError, first_line, listed

FLOATS = ("F64", "F32", "F16", "BF16")


def read_array(place: str | Path) -> np.ndarray:
    """Return an array of floating-point numbers from a file.

    Args:
        place: FILE.npy, or FILE.safetensors:KEY, of which only the bytes of this array are read.

    Raises:
        InputError: the file or key does not exist, the file cannot be read or has a wrong size, or the
            numbers are not floating-point.
    """
    place = os.fspath(place)
    path, separator, key = place.rpartition(".safetensors:")
    if separator:
        path = f"{path}.safetensors"
    elif place.endswith((".npy", ".safetensors")):
        path = place
    else:
        raise InputError(f"{place}: expected FILE.npy or FILE.safetensors:KEY; save it with numpy.save")
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: there is no such file")
        with warnings.catch_warnings():
            # NumPy warns about unusual headers that it can read.
            warnings.simplefilter("ignore")
            return _npy(path) if path.endswith(".npy") else _tensor(path, key if separator else None)
    except InputError:
        raise
    # A flipped bit can surface as almost any exception of the header parsers.
    except Exception as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); write the file again") from error


def _npy(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        numbers = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"it has more than the {numbers.nbytes:,} bytes of its array")
    if not jnp.issubdtype(numbers.dtype, jnp.floating):
        raise InputError(f"{path}: contains {numbers.dtype}, not floating-point numbers; save it as float32")
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def _tensor(path: str, key: str | None) -> np.ndarray:
    with safe_open(path, framework="numpy") as file:
        names = sorted(file.keys())
        if key is None:
            raise InputError(f"{path}: give one of its arrays as {path}:KEY; it contains {listed(names)}")
        if key not in names:
            raise InputError(f"{path}: no array {key!r}; it contains {listed(names)}")
        kind = file.get_slice(key).get_dtype()
        if kind not in FLOATS:
            raise InputError(f"{path}:{key}: contains {kind}; expected one of {', '.join(FLOATS)}")
        return file.get_tensor(key)
