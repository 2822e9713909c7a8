"""Results folders that a process reads: folders of this machine, and folders in buckets, by one protocol."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from jaxattn.lab.storage import batch_state, lock, manifest, run_log
from jaxattn.lab.storage.batch_state import BatchState
from jaxattn.lab.storage.bucket import Bucket
from jaxattn.lab.storage.copies import address_of, local_path, root
from jaxattn.lab.storage.objects import Objects, address_text, is_address

SHARD = re.compile(r"shard-\d+-of-\d+")


class ResultsFolder(Protocol):
    """A results folder by its path or address.

    Attributes:
        name: the path or the address, for messages.
        absolute: the absolute path, or the address.
        local: the folder, or its local copy.
        is_remote: True if the folder is not on this machine.
        look_s: seconds between two looks of a process that waits for the folder.
    """

    name: str
    absolute: str
    local: Path
    is_remote: bool
    look_s: float

    def fetch(
        self, *, tables: bool = True, log: bool = False, report: bool = False, everything: bool = False
    ) -> Path:
        """Make the files that a reader needs available on this machine.

        Args:
            tables: also fetch the tables, in addition to the manifest and the commit records.
            log: also fetch metrics.jsonl.
            report: also fetch the figures and pages.
            everything: fetch everything, including checkpoints, and discard an earlier copy.

        Returns:
            The local path.

        Raises:
            InputError: the folder cannot be read.
        """

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        """Store the files of a report that was written in a local directory; the list of figures last."""

    def shards(self) -> list[str]:
        """Return the names of the started shards in the folder; empty if it is a run itself."""

    def trace(self) -> tuple[bool, list[Any]]:
        """Return whether a local process holds the folder, and a value that every write changes."""


class LocalFolder:
    """A results folder of this machine."""

    is_remote, look_s = False, 0.5

    def __init__(self, place: str | Path) -> None:
        """Store the path."""
        self.name, self.absolute, self.local = str(place), os.path.abspath(place), Path(place)

    def fetch(
        self, *, tables: bool = True, log: bool = False, report: bool = False, everything: bool = False
    ) -> Path:
        """Return the path."""
        return self.local

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        """Do nothing."""

    def shards(self) -> list[str]:
        """Return the names of the folders of shards with a manifest; empty for a run."""
        is_run = (self.local / manifest.MANIFEST).exists()
        return [] if is_run else [x.parent.name for x in self.local.glob(f"shard-*-of-*/{manifest.MANIFEST}")]

    def trace(self) -> tuple[bool, list[Any]]:
        """Return whether the folder is locked, and the modification times of the files that a run writes."""
        locked = lock.is_locked(self.local)
        paths = [self.local / x for x in (".", run_log.RUN_LOG, manifest.MANIFEST, "parts", "checkpoints")]
        return locked, [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


class BucketFolder:
    """A results folder in a bucket, of which readers keep a local copy."""

    is_remote, look_s = True, 5.0

    def __init__(self, place: str | Path) -> None:
        """Store the address.

        Raises:
            InputError: the address is invalid.
        """
        self.name = self.absolute = address_text(place)
        self.local = local_path(place)

    def fetch(
        self, *, tables: bool = True, log: bool = False, report: bool = False, everything: bool = False
    ) -> Path:
        """Fetch the files that are missing or different in the local copy."""
        asked = {name for name, x in (("tables", tables), ("log", log), ("report", report)) if x}
        whole = {"tables", "log", "report", "checkpoints"}
        Bucket(self.name, "read").look(whole if everything else asked, fresh=everything)
        return self.local

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        """Send the files of a report."""
        bucket = Bucket(self.name, "read")
        bucket.folder = directory
        bucket.send(path.relative_to(directory).as_posix() for path in paths)
        bucket.send(["figures/drawn.json"])

    def shards(self) -> list[str]:
        """Return the names of the shard folders with a manifest; empty for a run."""
        objects = Objects(self.name)
        entries, folders = objects.top()
        if manifest.MANIFEST in entries:
            return []
        found = filter(SHARD.fullmatch, folders)
        return [name for name in found if objects.read(f"{name}/{manifest.MANIFEST}") is not None]

    def trace(self) -> tuple[bool, list[Any]]:
        """Return False and the listing, which every replacement of the lock changes too."""
        return False, sorted(Objects(self.name).top()[0].items())


def fetch_batch(directory: Path, batch: str, saved: BatchState) -> None:
    """Fetch a batch into the local copy of a bucket folder, if its checkpoint is missing there."""
    if (address := address_of(directory)) is None:
        return
    if not batch_state.checkpoint_path(directory, batch, saved.checkpoint.number).is_dir():
        role = "run" if directory.is_relative_to(root("run")) else "read"
        Bucket(address, role).fetch_batch(batch, saved)


def results_folder(place: str | Path) -> ResultsFolder:
    """Return the results folder at a path or an address."""
    return BucketFolder(place) if is_address(place) else LocalFolder(place)
