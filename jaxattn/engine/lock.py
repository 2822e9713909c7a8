"""The lock of a results folder: one process works there at a time, and a killed one keeps nothing."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxattn.errors import RunError

NAME = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a folder to this process.

    Raises:
        RunError: another process has it.
        OSError: the lock cannot be written.
    """
    path = directory / NAME
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8") as file:
            _lock(file, directory)
            # Whoever had it before may have removed the folder's last files, and this one with them.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return


def is_locked(directory: Path) -> bool:
    """Tell whether a process works in a folder."""
    try:
        with open(directory / NAME, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lock(file: Any, directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read().strip() or "another process"
        raise RunError(
            f"{directory}: {holder} is running there; wait for it, or choose another folder with --out"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
