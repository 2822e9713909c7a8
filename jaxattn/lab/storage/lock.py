"""Locks for results folders: one process at a time may use a folder, and a killed process releases its lock.

A local folder has a file lock. The lock of a bucket folder is an object that the holder of the lock
replaces every few seconds. A waiting process times these replacements with its local clock. A replacement
succeeds only if the object is still the version that the process last read or wrote. If two processes try
to take over a lock, one of them therefore fails. A process that has lost its lock raises an error at its
next replacement.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import files
from jaxattn.lab.storage.objects import Changed, Objects, is_address

try:
    import fcntl
except ModuleNotFoundError:
    raise InputError(
        "results folders require POSIX file locks, which this system lacks; use Linux, "
        "macOS, or WSL on Windows"
    ) from None

LOCK_FILE, OBJECT = ".lock", "lock.json"
_TRIES = 5
# Maximum number of characters to read from a lock file, which contains the holder's name.
HOLDER = 100
# The holder replaces the lock object every BEAT_S seconds. After GONE_S seconds without a replacement, the
# holder is considered dead.
BEAT_S, GONE_S = 5.0, 60.0
LOOK_S = 0.5


@contextmanager
def locked(directory: Path, warn: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Context manager that locks a folder for this process. `warn` is called if the file system has no locks.

    Raises:
        RunError: another process holds the lock.
        OSError: the lock cannot be written.
    """
    path = directory / LOCK_FILE
    while True:
        with open(path, "r+", encoding="utf-8", errors="replace", opener=files.open_owned) as file:
            _lock(file, directory, warn)
            # The previous holder may have deleted the folder's last files, including this lock file, so check
            # that it still exists.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return


def is_locked(directory: Path) -> bool:
    """Return whether a process is using a folder. For a bucket folder, the check takes several seconds."""
    if is_address(directory):
        return is_held(Objects(directory))
    try:
        with open(directory / LOCK_FILE, encoding="utf-8", opener=_open_existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def wait_for(file: Any) -> None:
    """Lock an open file, waiting while another process holds the lock."""
    fcntl.flock(file, fcntl.LOCK_EX)


def _open_existing(path: str, mode: int) -> int:
    return os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK)


def _lock(file: Any, directory: Path, warn: Callable[[str], None]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Retry, because `is_locked` may hold the lock for a moment.
            if left:
                time.sleep(0.05)
                continue
            holder = file.read(HOLDER).strip() or "another process"
            raise RunError(
                f"{directory}: in use by {holder}; wait for it, or choose another folder with --out"
            ) from None
        except OSError as error:
            reason = f"this file system has no locks ({error.strerror})"
            warn(f"{directory}: {reason}; do not start a second run in this folder")
            break
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()


class Lock:
    """Lock of a bucket folder."""

    def __init__(self, objects: Objects, local: Path) -> None:
        """Create a lock that is not yet held.

        `objects` is the folder in the bucket. `local` is a file that records which process on this machine
        last held the lock.
        """
        self._objects, self._local = objects, local
        self._run = secrets.token_hex(8)
        self._since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._one, self._lost, self._last = threading.Lock(), "", 0.0

    def take(self, warn: Callable[[str], None]) -> None:
        """Acquire the lock; if its holder has died, take it over.

        Raises:
            RunError: another process holds the lock.
        """
        found = self._objects.read(OBJECT)
        held = _parsed(found)
        # A process that held the lock through this local copy must be dead, because this process now holds
        # the local lock.
        if held["holder"] and held["run"] != self._last_run():
            self._watch(found, held, warn)
        files.replace(self._local, self._run.encode())
        try:
            self.send_heartbeat()
        except Changed:
            raise self._in_use(_parsed(self._objects.read(OBJECT))) from None

    def _watch(self, found: bytes | None, held: dict[str, Any], warn: Callable[[str], None]) -> None:
        now = _replaced(self._objects, found, GONE_S)
        if now is None:
            warn(
                f"{self._objects.address}: taken over from {_holder(held)}, "
                f"whose lock expired after {GONE_S:.0f} s"
            )
        elif now["holder"]:
            raise self._in_use(now)

    def send_heartbeat(self, holder: str | None = None, callback: Callable[[], None] = lambda: None) -> None:
        """Replace the lock object to renew the lock, then call `callback`.

        A process that stops calling this function loses the lock.

        Raises:
            Changed: another process has taken over the lock.
            RunError: the lock cannot be written.
        """
        with self._one:
            if self._lost:
                raise Changed(self._lost)
            content = {
                "holder": f"process {os.getpid()} on {socket.gethostname()}" if holder is None else holder,
                "since": self._since,
                "run": self._run,
                "beat": secrets.token_hex(8),
            }
            self._objects.commit(OBJECT, files.sealed(content))
            self._last = time.monotonic()
            callback()

    def check(self) -> None:
        """Raise RunError if another process has taken over the lock."""
        if not self._lost and time.monotonic() - self._last > GONE_S / 2:
            try:
                self.send_heartbeat()
            except Changed:
                self._lose()
        if self._lost:
            raise RunError(self._lost)

    @property
    def is_lost(self) -> bool:
        """True if this process has detected that another process has taken over the lock."""
        return bool(self._lost)

    def _lose(self) -> None:
        # Set the message before reading the lock object: after the read, this process would be able to
        # overwrite the object.
        with self._one:
            self._lost = self._lost or f"{self._objects.address}: taken over by another process"
            with suppress(InputError):
                taker = _holder(_parsed(self._objects.read(OBJECT)))
                self._lost = (
                    f"{self._objects.address}: taken over by {taker}, because this process did not renew its "
                    "lock; the results it sent are kept, and that process resumes the run"
                )

    @contextmanager
    def heartbeat(self, callback: Callable[[], None], may_end: Callable[[], bool]) -> Iterator[None]:
        """Renew the lock regularly inside the `with` block, calling `callback` each time.

        At the end, if `may_end()` returns True, `callback` is called once more and the lock is released.
        """
        stopping = threading.Event()

        def send_heartbeats() -> None:
            while not stopping.wait(BEAT_S):
                try:
                    self.send_heartbeat(callback=callback)
                except Changed:
                    self._lose()
                    return
                except RunError:
                    continue  # The connection failed; `check` retries before each commit.

        thread = threading.Thread(target=send_heartbeats, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
            with suppress(RunError):
                if not self._lost and may_end():
                    callback()
                    self.send_heartbeat(holder="")

    def _in_use(self, held: dict[str, Any]) -> RunError:
        return RunError(
            f"{self._objects.address}: in use by {_holder(held)}; wait for it, or choose another "
            "folder with --out"
        )

    def _last_run(self) -> str | None:
        try:
            return self._local.read_text(encoding="ascii")
        except (OSError, UnicodeError):
            return None


def is_held(objects: Objects) -> bool:
    """Watch the lock object, and return whether a process renews it and therefore holds the lock."""
    found = objects.read(OBJECT)
    if not _parsed(found)["holder"]:
        return False
    now = _replaced(objects, found, 2.5 * BEAT_S)
    return now is not None and bool(now["holder"])


def _replaced(objects: Objects, found: bytes | None, seconds: float) -> dict[str, Any] | None:
    """Wait up to `seconds` seconds for the lock object to be replaced; return its new content, or None."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        time.sleep(LOOK_S)
        if (now := objects.read(OBJECT)) != found:
            return _parsed(now)
    return None


def _holder(held: dict[str, Any]) -> str:
    return f"{held['holder']:.100} (since {held['since']:.30})"


def _parsed(content: bytes | None) -> dict[str, Any]:
    if content is None:
        return {"holder": "", "run": None, "since": ""}
    with suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict) and all(isinstance(found.get(x), str) for x in ("holder", "run", "since")):
            return found
    return {"holder": "another process", "run": None, "since": "an unknown time"}
