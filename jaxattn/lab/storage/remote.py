"""Results folders in buckets, with a local copy that mirrors their objects.

Batches are written once, so a local copy of a batch is never out of date. All other objects are fetched again
when they have changed. A run trusts the bucket: whatever the bucket does not contain is deleted from the
local copy, except for the batches of running processes.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import files
from jaxattn.lab.storage.copies import local_path
from jaxattn.lab.storage.objects import RESUME, Entry, Objects

# File in a local copy with the tags of the objects that it contains.
TAGS = ".objects.json"
# Folders that are not mirrored in the bucket.
LOCAL = ("tensorboard", "wandb", "profile")
_THREADS = 16
_BATCH = re.compile(r"runs/([^/]+)/")
_RUN_FILE = "run.json"


class Remote:
    """Results folder in a bucket, with a local copy.

    Attributes:
        sizes: size of each object at the last `pull`, by name.
    """

    def __init__(self, location: str | Path, role: str = "run") -> None:
        """Initialise the folder at a bucket URL. `role` is "run" for a run, or "read" for a reader.

        Raises:
            InputError: the URL is invalid, obstore is not installed, or there are no credentials.
        """
        self.objects = Objects(location)
        self.address, self.folder = self.objects.address, local_path(location, role)
        self.sizes: dict[str, int] = {}
        self._sent: dict[str, tuple[int, int]] = {}

    def names(self) -> list[str]:
        """Return the names of the files and folders at the top of the folder in the bucket."""
        entries, folders = self.objects.top()
        return [*entries, *folders]

    def pull(self, wanted: Callable[[str], bool], keep: Callable[[str], bool] = lambda name: False) -> None:
        """Fetch the objects whose names fulfil a condition, if they have changed, and delete all other
        copies.

        Args:
            wanted: whether to fetch an object, by its name.
            keep: whether to keep a batch that is not in the bucket, by the name of its folder. If such a
                batch was never fetched, a process on this machine writes it, and nothing is fetched.

        Raises:
            InputError: the bucket cannot be read.
            RunError: the local copy cannot be written.
        """
        listed = {name: entry for name, entry in self.objects.entries().items() if files.is_below(name)}
        self.sizes = {name: entry.size for name, entry in listed.items()}
        known = self._tags()
        fetched = set(map(_batch, known))
        written = {
            name for name in files.file_names(self.folder / "runs", self.folder) if keep(name)
        } - fetched
        for name in self._copies():
            if name not in listed and not (_batch(name) and keep(_batch(name))):
                with suppress(OSError):
                    (self.folder / name).unlink()
        self._delete_empty(keep)
        lacking = [
            name
            for name, entry in listed.items()
            if wanted(name)
            and _batch(name) not in written
            and (known.get(name) != entry.tag or not (self.folder / name).exists())
        ]
        # The record of a batch comes last, because it makes the batch complete.
        for are_records in (False, True):
            some = [name for name in lacking if name.endswith(f"/{_RUN_FILE}") == are_records]
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda name: self._download(name, listed[name]), some))
        self._date_folders(set(map(_batch, lacking)) - {""}, listed)
        known |= {name: listed[name].tag for name in lacking}
        tags = {name: tag for name, tag in known.items() if name in listed}
        with files.saving(self.folder / TAGS, self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            files.replace(self.folder / TAGS, json.dumps(tags).encode())

    def _download(self, name: str, entry: Entry) -> None:
        path = self.folder / name
        self.objects.download(name, path)
        with suppress(OSError):
            os.utime(path, (entry.modified, entry.modified))

    def _date_folders(self, batches: Collection[str], listed: Mapping[str, Entry]) -> None:
        """Set the times of folders of batches to those of their newest objects, as if they were here."""
        newest: dict[str, float] = {}
        for name, entry in listed.items():
            newest[_batch(name)] = max(entry.modified, newest.get(_batch(name), 0.0))
        for batch in batches:
            with suppress(OSError):
                os.utime(self.folder / "runs" / batch, (newest[batch], newest[batch]))

    def push(self, names: Iterable[str]) -> None:
        """Upload local files; raise RunError on failure."""
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda name: self.objects.upload(name, self.folder / name), names))

    def push_batch(self, path: Path) -> None:
        """Mirror the local folder of an unfinished batch in the bucket.

        New files are uploaded, then the record that refers to them; then objects without a local file are
        deleted.

        Raises:
            RunError: the bucket cannot be written.
        """
        local = {x.relative_to(self.folder).as_posix(): _state(x) for x in path.rglob("*") if x.is_file()}
        changed = [name for name, state in local.items() if self._sent.get(name) != state]
        self.push(name for name in changed if not name.endswith(f"/{_RUN_FILE}"))
        self.push(name for name in changed if name.endswith(f"/{_RUN_FILE}"))
        prefix = f"{path.relative_to(self.folder).as_posix()}/"
        gone = [name for name in self._sent if name.startswith(prefix) and name not in local]
        self.objects.delete(gone)
        self._sent = {name: x for name, x in self._sent.items() if name not in gone} | local

    def publish(self, path: Path, name: str) -> bool:
        """Upload the local folder of a finished batch under its final name, unless the bucket has it already.

        Returns:
            Whether the batch was uploaded. The record is uploaded last. It replaces another one only if
            another process has published the batch at the same time, because the other files, whose names
            and contents differ between processes, are then those of both.

        Raises:
            RunError: the bucket cannot be written.
        """
        paths = [x for x in path.rglob("*") if x.is_file() and x.name != _RUN_FILE]
        targets = [f"runs/{name}/{x.relative_to(path).as_posix()}" for x in paths]
        final, record = f"runs/{name}/{_RUN_FILE}", (path / _RUN_FILE).read_bytes()
        for _ in range(2):
            found = self._in_batch(name)
            if final in found:
                return self.objects.read(final) == record
            # Files that a killed process has left are not files of this checkpoint.
            self.objects.delete(found)
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self.objects.upload, targets, paths))
            if self.objects.create(final, record):
                return True
            self.objects.delete([final])
        return False

    def _in_batch(self, name: str) -> list[str]:
        try:
            return list(self.objects.entries(f"runs/{name}"))
        except InputError as error:
            raise RunError(f"{error}; {RESUME}") from None

    def delete_batch(self, name: str) -> None:
        """Delete a batch in the bucket, finished or not; raise RunError on failure."""
        found = self._in_batch(name)
        self.objects.delete(each for each in found if each.endswith(f"/{_RUN_FILE}"))
        self.objects.delete(found)
        self._sent = {each: x for each, x in self._sent.items() if _batch(each) != name}

    def _tags(self) -> dict[str, str]:
        try:
            found = json.loads((self.folder / TAGS).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _copies(self) -> list[str]:
        # Another process may delete folders in the meantime, which os.walk ignores.
        walked = ((Path(parent), names) for parent, _, names in os.walk(self.folder))
        found = [
            parent / name for parent, names in walked for name in names if not files.is_being_written(name)
        ]
        names = [path.relative_to(self.folder).as_posix() for path in found if path != self.folder / TAGS]
        # Logs of dashboards and profiles are only here.
        return [name for name in names if name.partition("/")[0] not in LOCAL]

    def _delete_empty(self, keep: Callable[[str], bool]) -> None:
        for name in files.file_names(self.folder / "runs", self.folder):
            if not keep(name):
                for path, _, _ in os.walk(self.folder / "runs" / name, topdown=False):
                    with suppress(OSError):
                        os.rmdir(path)


def _batch(name: str) -> str:
    """Return the name of the batch to which an object belongs, or "" if it belongs to none."""
    found = _BATCH.match(name)
    return found[1] if found else ""


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def check_empty_or_results(remote: Remote, known: Iterable[str]) -> None:
    """Raise InputError if a bucket folder contains files, but none of the names in `known`."""
    names = remote.names()
    if names and not set(known) & set(names):
        raise InputError(
            f"{remote.address}: neither empty nor a results folder; choose another folder with --out"
        )
