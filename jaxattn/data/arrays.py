"""Arrays of a trained model, from .npy files and from single keys of .safetensors files."""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxattn.data.messages import listed, reading
from jaxattn.errors import InputError

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
}


def read_array(place: str | Path) -> np.ndarray:
    """Read an array of floating-point numbers.

    Args:
        place: FILE.npy, or FILE.safetensors:KEY.

    Returns:
        The array; that of a .safetensors file is read from its own bytes alone, however large the file.

    Raises:
        InputError: no such file or key, a file that cannot be read, numbers that are not floating-point.
    """
    place = os.fspath(place)
    path, separator, key = place.rpartition(".safetensors:")
    if separator:
        array = _tensor(Path(f"{path}.safetensors"), key)
    elif place.endswith(".safetensors"):
        names = listed(_header(Path(place))[0])
        raise InputError(f"{place}: name one of its arrays, {place}:KEY; it holds {names}")
    elif place.endswith(".npy"):
        with reading(_existing(Path(place))):
            if not os.path.getsize(place):
                raise ValueError("it is empty")
            array = np.load(place, allow_pickle=False)
    else:
        raise InputError(f"{place}: expected FILE.npy or FILE.safetensors:KEY; save it with numpy.save")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(f"{place}: holds {array.dtype}, not floating-point numbers; save it as float32")
    return array


def _existing(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    return str(path)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Read the names, types, shapes and places of a file's arrays, and where the numbers begin."""
    with reading(_existing(path)), open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 2 <= size <= os.path.getsize(path) - 8:
            raise ValueError("it has no header")
        header = json.loads(file.read(size))
        if not isinstance(header, dict):
            raise ValueError("its header is not a table")
        header.pop("__metadata__", None)
        return header, 8 + size


def _tensor(path: Path, key: str) -> np.ndarray:
    header, start = _header(path)
    if key not in header:
        raise InputError(f"{path}: no array {key!r}; it holds {listed(header)}")
    try:
        kind, shape, (first, end) = (header[key][name] for name in ("dtype", "shape", "data_offsets"))
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}:{key}: the header is damaged; write the file again") from None
    if kind not in _DTYPES:
        raise InputError(f"{path}:{key}: holds {kind}; expected one of {', '.join(_DTYPES)}")
    with reading(f"{key} of {path}"), open(path, "rb") as file:
        file.seek(start + first)
        return np.frombuffer(file.read(end - first), _DTYPES[kind]).reshape(shape)
