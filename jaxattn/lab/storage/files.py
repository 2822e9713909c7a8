"""Files of a folder: there as a whole or not at all, telling when they are damaged, and never outside it."""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from jaxattn.core.errors import InputError, RunError

SEAL = "seal"
# The manifest of a million seeds is a fifth of it.
MOST_JSON = 2**28
# Bytes of a file's name; disks hold 255, of which a temporary file takes some.
LONGEST_NAME = 200
TEMPORARY = re.compile(r"\..+\.(\d+)")
# Writers of ours nest less than ten deep, and Python's own readers and writers break at some hundred.
MOST_NESTED = 100


class Damaged(InputError):
    """A file is missing, or not what it was when it was written; the message names it."""


def inside(path: Path, folder: Path) -> Path:
    """Return a path as it is; Damaged if it, or a symbolic link on its way, leads out of a folder."""
    try:
        leads = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # no path at all
        leads = False
    if leads:
        return path
    outside = f"leads out of {folder}, and nothing outside is read or written"
    if Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        raise Damaged(f"{path}: a link that {outside}; remove the link")
    # Such a path comes from a file of the folder. What it names is no part of the folder, and must stay.
    raise Damaged(f"{folder}: names a file that {outside}; use a folder that a run has written")


def is_below(name: str) -> bool:
    """Return whether a name is a plain relative path that leads out of no folder, and that disks can hold."""
    parts = name.split("/")
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in parts)
    return "\0" not in name and not {"", ".", ".."} & set(parts) and longest <= LONGEST_NAME


def check_links(folder: Path, *below: str) -> None:
    """Look at the entries of a folder, and of some folders in it; raise as `inside` if one leads out.

    Raises:
        InputError: there is a file in the folder's place, or in that of one above it.
    """
    first = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if first.is_file():
        raise InputError(f"{first}: a file, and no folder; give another one for results with --out")
    for place in (folder, *(folder / name for name in below)):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(inside(place, folder)) as entries:
            for entry in entries:
                if entry.is_symlink():
                    inside(Path(entry.path), folder)


def write(path: Path, content: bytes, folder: Path) -> None:
    """Replace a file of a folder in one step that outlives a crash of the machine.

    Raises:
        OSError: it cannot be written.
        Damaged: it would be written outside the folder.
    """
    inside(path.parent, folder)
    replace(path, content)


def append(path: Path, content: bytes) -> None:
    """Write to the end of a file of a folder; raise as `open_own`."""
    with open(path, "ab", opener=open_own) as file:
        file.write(content)


def open_own(path: str, mode: int) -> int:
    """Open a file for writing in place, as the opener of `open`; make it if there is none.

    Raises:
        Damaged: it is no regular file, or a hard link: another folder may have the same file.
        OSError: it is a symbolic link, or cannot be written.
    """
    handle = os.open(path, mode | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    kind = "a hard link, and its file may lie elsewhere too" if found.st_nlink > 1 else "no regular file"
    raise Damaged(f"{path}: {kind}; remove it")


def replace(path: Path, content: bytes) -> None:
    """Replace a file, wherever it is, in one step that outlives a crash of the machine; raises OSError."""
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
    """Return the name that a file has until this process has written it as a whole."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def remove_temporary(folder: Path, *below: str) -> None:
    """Remove what killed processes have left under temporary names, in a folder and in some folders in it."""
    for place in (folder, *(folder / name for name in below)):
        for name in names(place, folder):
            if (found := TEMPORARY.fullmatch(name)) and not _is_alive(int(found[1])):
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    (place / name).unlink()


def _is_alive(process: int) -> bool:
    """Return whether another process of this machine has a number."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read(path: Path, folder: Path | None, sha256: str | None = None, most: int | None = None) -> bytes:
    """Read a file.

    Args:
        path: the file.
        folder: what it may not lie outside of, by whatever links; None for a file that the user names.
        sha256: checksum of what it should hold; not checked if None.
        most: bytes that it may have; by default a quarter of the machine's memory.

    Raises:
        Damaged: it is missing, holds something else, is no regular file, too large or not in the folder.
        InputError: it cannot be read.
    """
    with opened(path, folder, most) as file:
        content = file.read()
    _compare(path, digest(content), sha256)
    return content


def check(path: Path, folder: Path, sha256: str) -> None:
    """Compare a file of a folder with its checksum; raise as `read`."""
    with opened(path, folder) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    _compare(path, found, sha256)


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Choose the cache folder.

    Args:
        cache_dir: the folder asked for; None for the default.

    Returns:
        `cache_dir`, else $JAXATTN_CACHE, else $XDG_CACHE_HOME/jaxattn, else ~/.cache/jaxattn.
    """
    if chosen := cache_dir or os.environ.get("JAXATTN_CACHE"):
        return Path(os.path.expanduser(chosen))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jaxattn")


def memory() -> int:
    """Tell how many bytes of memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def names(place: Path, folder: Path) -> list[str]:
    """List what is at a place in a folder, nothing if there is none; InputError if it cannot be read."""
    inside(place, folder)
    try:
        with _reading(place):
            return sorted(os.listdir(place))
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


def read_json(path: Path, folder: Path) -> Any:
    """Read a file of a folder that holds JSON; raise as `read`."""
    text = read(path, folder, most=MOST_JSON)
    try:
        return parse(text)
    except ValueError as error:
        raise Damaged(f"{path}: damaged ({error})") from None


def read_sealed(path: Path, folder: Path) -> dict[str, Any]:
    """Read a file of a folder that holds what `sealed` has written; raise as `read`."""
    content = read_json(path, folder)
    try:
        return unsealed(content)
    except ValueError as error:
        raise Damaged(f"{path}: damaged ({error})") from None


def parse(text: bytes) -> Any:
    """Read JSON; ValueError if it is none, or nested too deep."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    level = [content]
    for _ in range(MOST_NESTED):
        held = (x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list))
        level = [x for each in held for x in each if isinstance(x, dict | list)]
        if not level:
            return content
    raise ValueError("nested too deep")


def _seal(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return digest(canonical.encode())


def _compare(path: Path, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted:
        raise Damaged(f"{path}: damaged (its checksum differs)")


@contextmanager
def opened(path: Path, folder: Path | None, most: int | None = None) -> Iterator[BufferedReader]:
    """Open a file for reading, of a folder if one is given; raise as `read`."""
    if folder is not None:
        inside(path, folder)
    # A FIFO that nobody writes to would keep its reader waiting.
    with (
        _reading(path),
        open(path, "rb", opener=lambda name, mode: os.open(name, mode | os.O_NONBLOCK)) as file,
    ):
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{path}: no regular file{'' if folder is None else '; remove it'}")
        most = memory() // 4 if most is None else most
        if found.st_size > most:
            raise Damaged(f"{path}: {found.st_size:,} bytes, and more than {most:,} are not read")
        yield file


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


@contextmanager
def saving(path: Path, folder: Path) -> Iterator[None]:
    """Raise RunError for what cannot be written of a results folder, with what the disk has run out of."""
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
            raise RunError(f"{folder}: is gone; run the same command again to start anew") from None
        raise RunError(
            f"{path}: cannot be written: {_fullness(path) if full else cause or error}; what is already "
            "there is kept, mend this and run the same command again to continue"
        ) from None


def _fullness(path: Path) -> str:
    """Say what a disk has run out of: bytes, or files."""
    disk = os.statvfs(next(parent for parent in (path, *path.parents) if parent.exists()))
    if disk.f_files and not disk.f_favail:
        return "the disk holds as many files as it can (no inodes are left)"
    return f"the disk is full ({disk.f_bavail * disk.f_frsize / 2**20:.0f} MiB left)"
