"""Atomic writes and checked reads of files in a folder. Paths that lead outside the folder are rejected."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from jaxattn.core.errors import InputError, RunError

SEAL = "seal"
# Size limit for JSON files in bytes. A manifest for a million seeds uses a fifth of this size.
MAX_JSON = 2**28
# Maximum length of a file name in bytes. File systems allow 255, but temporary names are longer than the
# final names.
LONGEST_NAME = 200
# Name of this machine in names of files and folders.
HOST = re.sub(r"[^\w.]", "_", socket.gethostname())[:60] or "host"
TEMPORARY = re.compile(r"\..+-(\d+)")
# Maximum nesting depth of JSON files. This package uses fewer than ten levels; Python's parser fails at
# several hundred.
MAX_NESTED = 100
# Files that file managers and network file systems put into any folder.
FOREIGN = re.compile(r"\.DS_Store|\._.*|\.nfs.*|Thumbs\.db|desktop\.ini")


class Damaged(InputError):
    """Raised when a file is missing or differs from what was written. The message contains its path."""


def inside(path: Path, folder: Path) -> Path:
    """Return the path unchanged; raise Damaged if it leads outside the folder, for example via a link."""
    try:
        leads = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # The path is invalid.
        leads = False
    if leads:
        return path
    outside = f"leads out of {folder}; files outside it are neither read nor written"
    if Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        raise Damaged(f"{path}: a link that {outside}; remove the link")
    # The path was read from a file in the folder but leads outside the folder, so do not tell the user to
    # remove it.
    raise Damaged(f"{folder}: refers to a path that {outside}; use a folder written by a run")


def is_below(name: str) -> bool:
    """Return whether `name` is a valid relative path that stays inside its base folder."""
    parts = name.split("/")
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in parts)
    return "\0" not in name and not {"", ".", ".."} & set(parts) and longest <= LONGEST_NAME


def is_foreign(path: Path) -> bool:
    """Return whether a file manager or a network file system made a file, which is then ignored."""
    return FOREIGN.fullmatch(path.name) is not None


def check_links(folder: Path, *below: str) -> None:
    """Raise Damaged if a link in the folder, or in the given subfolders, leads outside the folder.

    Raises:
        InputError: the folder, or one of its parents, is a file.
    """
    first = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if first.is_file():
        raise InputError(f"{first}: is a file, not a folder; choose another results folder with --out")
    for location in (folder, *(folder / name for name in below)):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(inside(location, folder)) as entries:
            for entry in entries:
                if entry.is_symlink():
                    inside(Path(entry.path), folder)


def write_file(path: Path, content: bytes, folder: Path) -> None:
    """Replace a file in a folder atomically and durably.

    Raises:
        Damaged: the path leads outside the folder.
        OSError: the file cannot be written.
    """
    inside(path.parent, folder)
    replace(path, content)


def append_bytes(path: Path, content: bytes) -> None:
    """Append bytes to a file; raise the same errors as `open_owned`."""
    with open(path, "ab", opener=open_owned) as file:
        file.write(content)


def open_owned(path: str, mode: int) -> int:
    """Open a file for writing in place, creating it if necessary. Pass this function to `open` as `opener`.

    Raises:
        Damaged: the path is not a regular file, or is a hard link that another folder may also contain.
        OSError: the path is a symbolic link, or cannot be written.
    """
    handle = os.open(path, mode | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    kind = "a hard link, which other folders may share" if found.st_nlink > 1 else "not a regular file"
    raise Damaged(f"{path}: {kind}; remove it")


def replace(path: Path, content: bytes) -> None:
    """Replace any file atomically and durably; raise OSError on failure."""
    temporary = temporary_path(path)
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:
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


def temporary_path(path: Path) -> Path:
    """Return the path of the temporary file that this process writes before it replaces `path`."""
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}")


def remove_temporary(folder: Path, *below: str) -> None:
    """Delete temporary files that killed processes left behind in a folder and in the given subfolders."""
    for location in (folder, *(folder / name for name in below)):
        for name in file_names(location, folder):
            if TEMPORARY.fullmatch(name) and not is_being_written(name):
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    (location / name).unlink()


def is_being_written(name: str) -> bool:
    """Return whether a file name is that of a temporary file of another running process.

    Processes on other machines count as running.
    """
    found = TEMPORARY.fullmatch(name)
    if found is None:
        return False
    is_here = name.endswith(f".{HOST}-{found[1]}")
    return not is_here or (int(found[1]) != os.getpid() and is_alive(int(found[1])))


def is_alive(process: int) -> bool:
    """Return whether a process with this number exists on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_file(
    path: Path, folder: Path | None, sha256: str | None = None, maximum: int | None = None
) -> bytes:
    """Read a file.

    Args:
        path: the file.
        folder: folder that must contain the file once all links are resolved; None for a file specified by
            the user.
        sha256: expected checksum; not checked if None.
        maximum: maximum size in bytes; defaults to a quarter of the machine's memory.

    Raises:
        Damaged: the file is missing, too large, not a regular file, or outside the folder, or its content
            does not match the checksum.
        InputError: the file cannot be read.
    """
    with open_file(path, folder, maximum) as file:
        content = file.read()
    _compare(path, digest(content), sha256)
    return content


def check_file(path: Path, folder: Path, sha256: str) -> None:
    """Raise Damaged if a file does not match its checksum; other errors are those of `read_file`."""
    with open_file(path, folder) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    _compare(path, found, sha256)


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the cache folder.

    It is the first of `cache_dir`, $JAXATTN_CACHE and $XDG_CACHE_HOME/jaxattn that is set, or
    ~/.cache/jaxattn.
    """
    if chosen := cache_dir or os.environ.get("JAXATTN_CACHE"):
        return Path(os.path.expanduser(chosen))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jaxattn")


def memory() -> int:
    """Return the size of the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def file_names(location: Path, folder: Path) -> list[str]:
    """Return the sorted file names in a directory, or [] if it is missing.

    Raises:
        InputError: the directory is unreadable.
    """
    inside(location, folder)
    try:
        with _reading(location):
            return sorted(os.listdir(location))
    except Damaged:
        return []


def digest(content: bytes) -> str:
    """Return the SHA-256 digest of bytes."""
    return hashlib.sha256(content).hexdigest()


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Serialise a JSON object with string keys, together with a checksum of its content."""
    rest = {key: value for key, value in content.items() if key != SEAL}
    text = json.dumps({**rest, SEAL: _seal(rest)}, indent=indent, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "surrogatepass")


def unsealed(content: Any) -> dict[str, Any]:
    """Return the content of an object written by `sealed`; raise ValueError if the object is damaged."""
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    rest = {key: value for key, value in content.items() if key != SEAL}
    if content.get(SEAL) != _seal(rest):
        raise ValueError("its checksum differs")
    return rest


def read_json(path: Path, folder: Path) -> Any:
    """Read a JSON file; raise the same errors as `read_file`."""
    text = read_file(path, folder, maximum=MAX_JSON)
    try:
        return parse_json(text)
    except ValueError as error:
        raise Damaged(f"{path}: damaged ({error})") from None


def read_sealed(path: Path, folder: Path) -> dict[str, Any]:
    """Read a JSON file written by `sealed`; raise the same errors as `read_file`."""
    content = read_json(path, folder)
    try:
        return unsealed(content)
    except ValueError as error:
        raise Damaged(f"{path}: damaged ({error})") from None


def parse_json(text: bytes) -> Any:
    """Parse JSON; raise ValueError if it is invalid or nested too deeply."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    level = [content]
    for _ in range(MAX_NESTED):
        inner = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list))
        level = [x for each in inner for x in each if isinstance(x, dict | list)]
        if not level:
            return content
    raise ValueError("the JSON is nested too deeply")


def check_texts(content: Any) -> None:
    """Raise UnicodeError if JSON contains lone surrogates, which tables cannot contain."""
    json.dumps(content, ensure_ascii=False).encode()


def _seal(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return digest(canonical.encode())


def _compare(path: Path, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted:
        raise Damaged(f"{path}: damaged (its checksum differs)")


@contextmanager
def open_file(path: Path, folder: Path | None, maximum: int | None = None) -> Iterator[BufferedReader]:
    """Open a file for reading; raise the same errors as `read_file`."""
    if folder is not None:
        inside(path, folder)
    # Without O_NONBLOCK, opening a FIFO that has no writer would block.
    with (
        _reading(path),
        open(path, "rb", opener=lambda name, mode: os.open(name, mode | os.O_NONBLOCK)) as file,
    ):
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{path}: not a regular file{'' if folder is None else '; remove it'}")
        maximum = memory() // 4 if maximum is None else maximum
        if found.st_size > maximum:
            raise Damaged(f"{path}: too large: {found.st_size:,} bytes, with a limit of {maximum:,} bytes")
        yield file


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{path}: missing") from None
    except IsADirectoryError:
        raise Damaged(f"{path}: is a folder, not a file") from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror or error}; fix this and try again"
        ) from None


@contextmanager
def saving(path: Path, folder: Path) -> Iterator[None]:
    """Inside the `with` block, convert write errors to RunError; the message reports a full disk."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        number, cause = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        # Orbax reports a full disk as a ValueError.
        full = "No space left" in str(error) or number in (errno.ENOSPC, errno.EDQUOT)
        if not (full or isinstance(error, OSError)):
            raise
        gone = path != folder and not folder.is_dir()
        if gone and isinstance(error, FileNotFoundError):
            raise RunError(f"{folder}: was deleted; run the same command again to start over") from None
        raise RunError(
            f"{path}: cannot be written: {_fullness(path) if full else cause or error}; finished "
            "results are kept; fix this and run the same command again to resume"
        ) from None


def _fullness(path: Path) -> str:
    disk = os.statvfs(next(parent for parent in (path, *path.parents) if parent.exists()))
    if disk.f_files and not disk.f_favail:
        return "the disk has no free inodes, so it cannot hold more files"
    return f"the disk is full ({disk.f_bavail * disk.f_frsize / 2**20:.0f} MiB left)"


def set_aside(path: Path) -> None:
    """Rename a damaged file or folder, so that it is ignored."""
    with suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}"))


def delete(path: Path) -> None:
    """Delete a file or a folder with its contents, as far as this is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
