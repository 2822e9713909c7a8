"""Read arrays from FILE.npy, tensors from FILE.safetensors, and vocabularies from text files."""

import os
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxattn.core.errors import InputError, first_line, listed

FLOATS = ("F64", "F32", "F16", "BF16")


def read_array(location: str | Path) -> np.ndarray:
    """Read a floating-point array from a file.

    Args:
        location: FILE.npy, or FILE.safetensors:KEY. From a safetensors file, only this array is read.

    Raises:
        InputError: the file or key does not exist, the file cannot be read or has the wrong size, or the
            array is not floating-point.
    """
    location = os.fspath(location)
    path, separator, key = location.rpartition(".safetensors:")
    if separator:
        path = f"{path}.safetensors"
    elif location.endswith((".npy", ".safetensors")):
        path = location
    else:
        raise InputError(
            f"{location}: expected FILE.npy or FILE.safetensors:KEY; save the array with numpy.save"
        )
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file")
        with warnings.catch_warnings():
            # NumPy warns about unusual headers even if it can read them.
            warnings.simplefilter("ignore")
            return _npy(path) if path.endswith(".npy") else _tensor(path, key if separator else None)
    except InputError:
        raise
    # The header parsers may raise almost any exception for a corrupted file.
    except Exception as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); save the file again") from error


def read_vocabulary(path: str | Path) -> list[str]:
    """Read a UTF-8 file, with or without a byte order mark, with one token per line.

    Raises:
        InputError: the file cannot be read, or is not UTF-8 text.
    """
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    # Split only at line feeds, because other line separators, such as U+2028, may be tokens.
    return content.removesuffix("\n").split("\n")


def _npy(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        numbers = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"the file contains extra data after the {numbers.nbytes:,} bytes of its array")
    if not jnp.issubdtype(numbers.dtype, jnp.floating):
        raise InputError(
            f"{path}: unsupported dtype {numbers.dtype}; "
            "save the array in a floating-point dtype, such as float32"
        )
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def _tensor(path: str, key: str | None) -> np.ndarray:
    try:
        from safetensors import safe_open
    except ImportError:
        raise InputError(
            f"{path}: safetensors is not installed; run pip install 'jaxattn[safetensors]'"
        ) from None
    with safe_open(path, framework="numpy") as file:
        names = sorted(file.keys())
        if key is None:
            raise InputError(f"{path}: missing key; use {path}:KEY, where KEY is one of {listed(names)}")
        if key not in names:
            raise InputError(f"{path}: contains no array {key!r}; choose one of {listed(names)}")
        kind = file.get_slice(key).get_dtype()
        if kind not in FLOATS:
            raise InputError(
                f"{path}:{key}: unsupported dtype {kind}; save the array as one of {', '.join(FLOATS)}"
            )
        return file.get_tensor(key)
