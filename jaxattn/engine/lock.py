"""The lock of a results folder: one process works there at a time, and a killed one keeps nothing."""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxattn.core.errors import RunError
from jaxattn.storage.bucket import is_at_work
from jaxattn.storage.objects import is_address

NAME = ".lock"
TRIES = 5


@contextmanager
def locked(directory: Path, warn: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Keep a folder to this process; `warn` is told where the file system has no locks.

    Raises:
        RunError: another process has it.
        OSError: the lock cannot be written.
    """
    path = directory / NAME
    while True:
        with open(path, "r+", encoding="utf-8", opener=_open) as file:
            _lock(file, directory, warn)
            # Whoever had it before may have removed the folder's last files, and this one with them.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return


def is_locked(directory: Path) -> bool:
    """Tell whether a process works in a folder; of one in a bucket that takes some seconds."""
    if is_address(directory):
        return is_at_work(directory)
    try:
        with open(directory / NAME, encoding="utf-8", opener=_open_existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _open(path: str, mode: int) -> int:
    # What is locked is emptied, and must not be a file elsewhere.
    return os.open(path, mode | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def _open_existing(path: str, mode: int) -> int:
    return os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK)


def _lock(file: Any, directory: Path, warn: Callable[[str], None]) -> None:
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Whoever only looks whether it is locked holds it for a moment.
            if left:
                time.sleep(0.05)
                continue
            holder = file.read().strip() or "another process"
            raise RunError(
                f"{directory}: {holder} is running there; wait for it, or choose another folder with --out"
            ) from None
        except OSError as error:
            reason = f"this file system has no locks ({error.strerror})"
            warn(f"{directory}: {reason}; start no second run there")
            break
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
