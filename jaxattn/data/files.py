"""Files of users: texts in their encodings, arrays of models, and what is wrong with one in one line."""

import codecs
import csv
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from jaxattn.core.errors import InputError

_UNREADABLE = (OSError, ValueError, RuntimeError, csv.Error)


def listed(names: Iterable[str]) -> str:
    """Join names with commas in one line, the first twenty of them."""
    first = [f"{name:.40}" for name in itertools.islice(names, 21)]
    first[20:] = ["..."] * len(first[20:])
    return " ".join(", ".join(first).split()) or "none"


def first_line(error: Exception) -> str:
    """First line of a library's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(" .:")


@contextmanager
def reading(where: str, remedy: str = "save it as UTF-8") -> Iterator[None]:
    """Turn what libraries raise over unreadable data into one line, with a remedy for another encoding."""
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise InputError(f"data: {where} is not {encoding} text ({error.reason}); {remedy}") from error
    except _UNREADABLE as error:
        raise InputError(
            f"data: cannot read {where}: {first_line(error)}; is it whole, and what it should be?"
        ) from error


REMEDY = 'save it as UTF-8, or name its encoding, such as data.encoding = "cp1252" for files of Windows'
# The first bytes of compressed files.
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh91AY&SY": "bzip2",
    b"PK\x03\x04": "zip",
}


def refuse_compressed(path: str) -> None:
    """Raise InputError if a file is compressed as a whole; in some encodings its bytes pass for text."""
    with open(path, "rb") as file:
        start = file.read(10)
    for first, name in _COMPRESSED.items():
        if start.startswith(first):
            raise InputError(f"data: {path} is compressed with {name}; decompress it first")


def codec(encoding: str | None) -> str:
    """Return Python's name of an encoding: UTF-8 with or without a byte order mark if it is None.

    Latin-1 is read as Windows-1252, as browsers do. They differ in the control characters of Latin-1, which
    texts do not hold and which are curly quotes and dashes in Windows-1252.

    Raises:
        InputError: Python does not know it.
    """
    try:
        " ".encode(encoding or "utf-8")
        name = codecs.lookup(encoding or "utf-8").name
    except (LookupError, ValueError):
        raise InputError(f'encoding: {encoding!r:.40} is not known; name one such as "cp1252"') from None
    return {"utf-8": "utf-8-sig", "iso8859-1": "cp1252"}.get(name, name)


@contextmanager
def decoding(path: str, encoding: str | None) -> Iterator[str]:
    """Give the codec to read a file with, and turn what is raised over its bytes into one line.

    Args:
        path: the file.
        encoding: the setting; see `codec`.

    Yields:
        Python's name of the encoding.

    Raises:
        InputError: the file cannot be read, or is in another encoding: names the first such line and how many
            there are, and how to mend them.
    """
    name = codec(encoding)
    with reading(path, REMEDY):
        refuse_compressed(path)
        try:
            yield name
        except UnicodeDecodeError:
            # The error knows neither the line nor, of a file that is read in parts, the byte.
            if said := _undecodable(path, name):
                raise InputError(said) from None
            raise


def _undecodable(path: str, name: str) -> str:
    """Say which lines of a file are not in an encoding; nothing where bytes do not tell lines apart."""
    if "\n".encode(name) != b"\n" and name != "utf-8-sig":
        return ""
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return f'data: {path} is UTF-16 text; set data.encoding = "utf-16", or save it as UTF-8'
    wrong: list[tuple[int, str]] = []
    number = beyond_ascii = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            beyond_ascii += not line.isascii()
            try:
                line.decode(name)
            except UnicodeDecodeError as error:
                wrong.append((number, error.reason))
    if not wrong:
        return ""
    (first, reason), encoding = wrong[0], name.removesuffix("-sig").upper()
    said = f"data: line {first} of {path} is not {encoding} text ({reason}), as {len(wrong):,} of {number:,}"
    if name == "utf-8-sig" and 2 * len(wrong) < beyond_ascii:
        good = f"{beyond_ascii - len(wrong):,} with other letters than those of ASCII are"
        return f"{said} are not; {good}: it mixes encodings, so save those that are not as UTF-8"
    return f"{said} are not; {REMEDY}"


FLOATS = ("F64", "F32", "F16", "BF16")


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
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: there is no such file")
        with warnings.catch_warnings():
            # Of headers that are odd and can be read all the same.
            warnings.simplefilter("ignore")
            return _npy(path) if path.endswith(".npy") else _tensor(path, key if separator else None)
    except InputError:
        raise
    # A flipped bit can surface as almost any exception of the parsers of headers.
    except Exception as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); write the file again") from error


def _npy(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        numbers = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"it goes on after the {numbers.nbytes:,} bytes of its array")
    if not jnp.issubdtype(numbers.dtype, jnp.floating):
        raise InputError(f"{path}: holds {numbers.dtype}, not floating-point numbers; save it as float32")
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def _tensor(path: str, key: str | None) -> np.ndarray:
    with safe_open(path, framework="numpy") as file:
        names = sorted(file.keys())
        if key is None:
            raise InputError(f"{path}: name one of its arrays, {path}:KEY; it holds {listed(names)}")
        if key not in names:
            raise InputError(f"{path}: no array {key!r}; it holds {listed(names)}")
        kind = file.get_slice(key).get_dtype()
        if kind not in FLOATS:
            raise InputError(f"{path}:{key}: holds {kind}; expected one of {', '.join(FLOATS)}")
        return file.get_tensor(key)
