"""Files that are there as a whole or not at all, and that tell when they are damaged."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxattn.errors import InputError

SEAL = "seal"


class Damaged(InputError):
    """A file is missing, or not what it was when it was written; the message names it."""


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step that outlives a crash of the machine.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path, sha256: str | None = None) -> bytes:
    """Read a file.

    Args:
        path: the file.
        sha256: checksum of what it should hold; not checked if None.

    Raises:
        Damaged: it is missing, or holds something else.
        InputError: it cannot be read.
    """
    with _reading(path), open(path, "rb") as file:
        content = file.read()
    _compare(path, digest(content), sha256)
    return content


def check(path: Path, sha256: str) -> None:
    """Compare a file with its checksum; raise as `read`."""
    with _reading(path), open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    _compare(path, found, sha256)


def names(folder: Path) -> list[str]:
    """List what is in a folder, nothing if there is none; InputError if it cannot be read."""
    try:
        with _reading(folder):
            return sorted(os.listdir(folder))
    except Damaged:
        return []


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Write a JSON object, whose keys are texts, with a checksum of all else in it."""
    text = json.dumps({**content, SEAL: _seal(content)}, indent=indent, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "surrogatepass")


def unsealed(content: Any) -> dict[str, Any]:
    """Check the seal of an object that `sealed` has written, and take it off.

    Raises:
        ValueError: it is not what was written.
    """
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    rest = {key: value for key, value in content.items() if key != SEAL}
    if content.get(SEAL) != _seal(rest):
        raise ValueError("its checksum differs")
    return rest


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file that holds what `sealed` has written; raise as `read`."""
    text = read(path)
    try:
        return unsealed(json.loads(text))
    except ValueError as error:
        raise Damaged(f"{path}: damaged ({error})") from None


def _seal(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return digest(canonical.encode())


def _compare(path: Path, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted:
        raise Damaged(f"{path}: damaged (its checksum differs)")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{path}: missing") from None
    except IsADirectoryError:
        raise Damaged(f"{path}: a folder is in its place") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; mend this and repeat") from None
