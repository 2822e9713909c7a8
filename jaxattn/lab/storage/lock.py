"""The lock of a results folder: one process works there at a time, and a killed one keeps nothing.

Of a folder of this machine it is a file. In a bucket it is an object that its holder replaces every few
seconds: whoever wants it watches for a while whether that happens, by their own clock alone: clocks that
differ do no harm. Every replacement has the condition that the object is what was last read or written, so of
two that take a lock over, one fails; and who has lost it is told at the next replacement.
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
        "no POSIX file locks on this system, which results folders need; use Linux, macOS or, on Windows, WSL"
    ) from None

FILE, OBJECT = ".lock", "lock.json"
TRIES = 5
# Characters of a lock that name its holder.
HOLDER = 100
# A holder replaces the object so often, and is gone if it has not for so long.
BEAT_S, GONE_S = 5.0, 60.0
LOOK_S = 0.5


@contextmanager
def locked(directory: Path, warn: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Keep a folder to this process; `warn` is told where the file system has no locks.

    Raises:
        RunError: another process has it.
        OSError: the lock cannot be written.
    """
    path = directory / FILE
    while True:
        with open(path, "r+", encoding="utf-8", errors="replace", opener=files.open_own) as file:
            _lock(file, directory, warn)
            # Whoever had it before may have removed the folder's last files, and this one with them.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return


def is_locked(directory: Path) -> bool:
    """Tell whether a process works in a folder; of one in a bucket that takes some seconds."""
    if is_address(directory):
        return is_held(Objects(directory))
    try:
        with open(directory / FILE, encoding="utf-8", opener=_open_existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def wait_for(file: Any) -> None:
    """Lock an open file; waits while another process holds it."""
    fcntl.flock(file, fcntl.LOCK_EX)


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
            holder = file.read(HOLDER).strip() or "another process"
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


class Lock:
    """The lock of a folder in a bucket, held or to be taken."""

    def __init__(self, objects: Objects, mine: Path) -> None:
        """Name it.

        Args:
            objects: the folder.
            mine: a file of this machine that keeps who held it from here; only one process at a time uses it.
        """
        self._objects, self._mine = objects, mine
        self._run = secrets.token_hex(8)
        self._since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._one, self._lost, self._last = threading.Lock(), "", 0.0

    def take(self, warn: Callable[[str], None]) -> None:
        """Take it, from a holder that is gone too.

        Raises:
            RunError: another process has it.
        """
        found = self._objects.read(OBJECT)
        held = _parsed(found)
        # A process that held it from this folder of this machine is gone: its files are locked by this one.
        if held["holder"] and held["run"] != self._before():
            self._watch(found, held, warn)
        files.replace(self._mine, self._run.encode())
        try:
            self.beat()
        except Changed:
            raise self._taken(_parsed(self._objects.read(OBJECT))) from None

    def _watch(self, found: bytes | None, held: dict[str, Any], warn: Callable[[str], None]) -> None:
        now = _replaced(self._objects, found, GONE_S)
        if now is None:
            warn(f"{self._objects.address}: taken over from {_who(held)}, silent for {GONE_S:.0f} s")
        elif now["holder"]:
            raise self._taken(now)

    def beat(self, holder: str | None = None, beside: Callable[[], None] = lambda: None) -> None:
        """Replace it, then call `beside`; a process that does not replace it loses it.

        Raises:
            Changed: another process has taken it over.
            RunError: it cannot be written.
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
            beside()

    def check(self) -> None:
        """Raise RunError if another process has taken it over."""
        if not self._lost and time.monotonic() - self._last > GONE_S / 2:
            try:
                self.beat()
            except Changed:
                self._lose()
        if self._lost:
            raise RunError(self._lost)

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken it over, as far as this one knows."""
        return bool(self._lost)

    def _lose(self) -> None:
        # Whoever has read it could replace it: so it is lost first.
        with self._one:
            self._lost = self._lost or f"{self._objects.address}: taken over by another process"
            with suppress(InputError):
                taker = _who(_parsed(self._objects.read(OBJECT)))
                self._lost = (
                    f"{self._objects.address}: taken over by {taker}, while nothing was heard of this "
                    "process; what it had sent is kept, and goes on there"
                )

    @contextmanager
    def beating(self, beside: Callable[[], None], may_end: Callable[[], bool]) -> Iterator[None]:
        """Hold it; `beside` is called from time to time, and at the end if `may_end` lets that be written."""
        stopping = threading.Event()

        def beats() -> None:
            while not stopping.wait(BEAT_S):
                try:
                    self.beat(beside=beside)
                except Changed:
                    self._lose()
                    return
                except RunError:
                    continue  # a connection that is lost; `check` asks again where it counts

        thread = threading.Thread(target=beats, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
            with suppress(RunError):
                if not self._lost and may_end():
                    beside()
                    self.beat(holder="")

    def _taken(self, held: dict[str, Any]) -> RunError:
        return RunError(
            f"{self._objects.address}: {_who(held)} is running there; wait for it, or choose another folder "
            "with --out"
        )

    def _before(self) -> str | None:
        try:
            return self._mine.read_text(encoding="ascii")
        except (OSError, UnicodeError):
            return None


def is_held(objects: Objects) -> bool:
    """Tell whether a process holds the lock of a folder: watch it until it is replaced, or is not."""
    found = objects.read(OBJECT)
    if not _parsed(found)["holder"]:
        return False
    now = _replaced(objects, found, 2.5 * BEAT_S)
    return now is not None and bool(now["holder"])


def _replaced(objects: Objects, found: bytes | None, seconds: float) -> dict[str, Any] | None:
    """Watch a lock until it is replaced, and tell by which; None if it is not for so long."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        time.sleep(LOOK_S)
        if (now := objects.read(OBJECT)) != found:
            return _parsed(now)
    return None


def _who(held: dict[str, Any]) -> str:
    return f"{held['holder']:.100} (since {held['since']:.30})"


def _parsed(content: bytes | None) -> dict[str, Any]:
    """Read a lock; whatever is no lock is one of an unknown holder."""
    if content is None:
        return {"holder": "", "run": None, "since": ""}
    with suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict) and all(isinstance(found.get(x), str) for x in ("holder", "run", "since")):
            return found
    return {"holder": "another process", "run": None, "since": "an unknown time"}
