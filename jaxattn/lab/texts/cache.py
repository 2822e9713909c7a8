"""Cache for arrays, keyed by a hash of their source files and settings. Cache errors never stop a run."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np

from jaxattn.core.errors import InputError

Note = Callable[[str], None]


def source_digest(files: Mapping[str, str], settings: bytes) -> str:
    """Return the hash of files and settings as 40 hexadecimal digits, independent of the files' location.

    Raises:
        InputError: a file cannot be read.
    """
    state = hashlib.blake2b(settings, digest_size=20)
    for name, path in files.items():
        try:
            with open(path, "rb", buffering=0) as file:
                # Hash the file sizes too, so that the hash depends on where each file ends.
                state.update(
                    f"\0{name}\0{os.fstat(file.fileno()).st_size}\0".encode(errors="surrogateescape")
                )
                hashlib.file_digest(file, lambda: state)
        except OSError as error:
            raise InputError(f"data: cannot read {path}: {error.strerror}") from error
    return state.hexdigest()


def read_cached(path: Path, names: Iterable[str], note: Note) -> dict[str, np.ndarray] | None:
    """Read the named arrays from a .npz file, or return None if they must be recomputed.

    A damaged file is renamed, and `note` is called with a one-line message.
    """
    try:
        # Open the file here, because np.load does not close the file if loading fails.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    # After a bit flip, zipfile, zlib and NumPy's header parser can raise almost any exception.
    except Exception:
        aside = path.with_name(path.name + ".damaged")
        with suppress(OSError):
            os.replace(path, aside)
        note(f"cache: {path.name} is damaged and was renamed to {aside}; reading the texts again")
        return None


def write_cached(path: Path, arrays: Mapping[str, np.ndarray], note: Note) -> None:
    """Write arrays to a .npz file atomically. On failure, call `note` with a one-line message."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(temporary, path)
    except OSError as error:
        note(f"cache: nothing stored in {path.parent}: {error.strerror}; set JAXATTN_CACHE to another folder")
    finally:
        with suppress(OSError):
            temporary.unlink()
