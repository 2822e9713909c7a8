"""Common interface for reading results folders, on this machine or in a bucket."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from jaxattn.lab.storage import batch_state, lock, manifest, run_log
from jaxattn.lab.storage.batch_state import BatchState
from jaxattn.lab.storage.bucket import Bucket
from jaxattn.lab.storage.copies import address_of, local_path, root
from jaxattn.lab.storage.objects import Objects, address_text, is_address

SHARD = re.compile(r"shard-\d+-of-\d+")
Kind = Literal["tables", "log", "report", "checkpoints"]


class ResultsFolder:
    """Results folder on this machine, and base class for results folders elsewhere.

    Attributes:
        name: path or bucket URL, for messages.
        absolute: absolute path, or bucket URL.
        local: path of the folder, or of its local copy.
        is_remote: True if the folder is not on this machine.
        look_s: interval in seconds at which a waiting process checks the folder for changes.
    """

    is_remote, look_s = False, 0.5

    def __init__(self, location: str | Path) -> None:
        """Store the path or the bucket URL; raise InputError if the URL is invalid."""
        self.name, self.absolute, self.local = str(location), os.path.abspath(location), Path(location)

    def fetch(self, *kinds: Kind) -> Path:
        """Fetch the manifest, the commit records and files of the given kinds, and return the local path.

        If checkpoints are requested, the local copy is discarded first.

        Raises:
            InputError: the folder cannot be read.
        """
        return self.local

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        """Store local report files in the results folder; the list of figures is stored last."""

    def shards(self) -> list[str]:
        """Return the names of the shards that have a manifest, or [] if the folder itself contains a run."""
        is_run = (self.local / manifest.MANIFEST).exists()
        return [] if is_run else [x.parent.name for x in self.local.glob(f"shard-*-of-*/{manifest.MANIFEST}")]

    def trace(self) -> tuple[bool, list[Any]]:
        """Return whether a local process holds the lock, and a value that changes with every write."""
        locked = lock.is_locked(self.local)
        paths = [self.local / x for x in (".", run_log.RUN_LOG, manifest.MANIFEST, "parts", "checkpoints")]
        return locked, [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


class _BucketFolder(ResultsFolder):
    is_remote, look_s = True, 5.0

    def __init__(self, location: str | Path) -> None:
        self.name = self.absolute = address_text(location)
        self.local = local_path(location)

    def fetch(self, *kinds: Kind) -> Path:
        Bucket(self.name, "read").refresh(set(kinds), fresh="checkpoints" in kinds)
        return self.local

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        bucket = Bucket(self.name, "read")
        bucket.folder = directory
        bucket.upload(path.relative_to(directory).as_posix() for path in paths)
        bucket.upload(["figures/drawn.json"])

    def shards(self) -> list[str]:
        objects = Objects(self.name)
        entries, folders = objects.top()
        if manifest.MANIFEST in entries:
            return []
        found = filter(SHARD.fullmatch, folders)
        return [name for name in found if objects.read(f"{name}/{manifest.MANIFEST}") is not None]

    def trace(self) -> tuple[bool, list[Any]]:
        # The lock is itself an object, so renewing the lock changes the listing.
        return False, sorted(Objects(self.name).top()[0].items())


def fetch_batch(directory: Path, batch: str, saved: BatchState) -> None:
    """Fetch a batch into the local copy of a bucket folder if its checkpoint is missing there."""
    if (address := address_of(directory)) is None:
        return
    if not batch_state.checkpoint_path(directory, batch, saved.checkpoint.number).is_dir():
        role = "run" if directory.is_relative_to(root("run")) else "read"
        Bucket(address, role).fetch_batch(batch, saved)


def results_folder(location: str | Path) -> ResultsFolder:
    """Return the results folder at a path or bucket URL."""
    return _BucketFolder(location) if is_address(location) else ResultsFolder(location)
