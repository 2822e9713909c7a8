"""Common interface for reading results folders, on this machine or in a bucket."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from jaxattn.lab.storage.batch_record import read_record
from jaxattn.lab.storage.copies import address_of, local_path, root
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.storage.memo import RUNS
from jaxattn.lab.storage.objects import address_text, is_address
from jaxattn.lab.storage.remote import Remote
from jaxattn.lab.storage.run_log import RUN_LOG
from jaxattn.lab.storage.study_file import STUDY_FILE

Kind = Literal["tables", "log", "report", "checkpoints"]
REPORT = ("report.html", "summary.csv", "figures")


class ResultsFolder:
    """Results folder on this machine, and base class for results folders elsewhere.

    Attributes:
        name: path or bucket URL, for messages.
        absolute: absolute path, or bucket URL.
        local: path of the folder, or of its local copy.
        is_remote: True if the folder is not on this machine.
    """

    is_remote = False

    def __init__(self, location: str | Path) -> None:
        """Store the path or the bucket URL; raise InputError if the URL is invalid."""
        self.name, self.absolute, self.local = str(location), os.path.abspath(location), Path(location)

    def fetch(self, *kinds: Kind) -> Path:
        """Fetch study.json, the records of batches and files of the given kinds, and return the local path.

        Raises:
            InputError: the folder cannot be read.
        """
        return self.local

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        """Store local report files in the results folder; the list of figures is stored last."""


class _BucketFolder(ResultsFolder):
    is_remote = True

    def __init__(self, location: str | Path) -> None:
        self.name = self.absolute = address_text(location)
        self.local = local_path(location)

    def fetch(self, *kinds: Kind) -> Path:
        Remote(self.name, "read").pull(lambda name: kind_of(name) in (None, *kinds))
        return self.local

    def send_report(self, paths: Iterable[Path], directory: Path) -> None:
        remote = Remote(self.name, "read")
        remote.folder = directory
        remote.push(path.relative_to(directory).as_posix() for path in paths)
        remote.push(["figures/drawn.json"])


def kind_of(name: str) -> Kind | Literal["other"] | None:
    """Return the kind of a file in a results folder, or None if every reader needs it."""
    first, *rest = name.split("/")
    if first in REPORT:
        return "report" if len(rest) == (first == "figures") else "other"
    if first != RUNS or len(rest) < 2:
        return None if name == STUDY_FILE else "other"
    if len(rest) > 2:
        return "checkpoints"
    if rest[-1].endswith(".parquet"):
        return "tables"
    return "log" if rest[-1] == RUN_LOG else None


def fetch_batch(directory: Path, name: str) -> None:
    """Fetch the checkpoint of a batch into the local copy of a bucket folder if it is missing there."""
    if (address := address_of(directory)) is None or _has_checkpoint(directory, name):
        return
    role = "run" if directory.is_relative_to(root("run")) else "read"
    wanted = f"{RUNS}/{name}/"
    Remote(address, role).pull(lambda each: each.startswith(wanted), lambda each: True)


def _has_checkpoint(directory: Path, name: str) -> bool:
    """Return whether a local copy contains the checkpoint of a batch, and not that of another process."""
    from jaxattn.lab.storage import checkpoints

    with suppress(Damaged):
        record = read_record(directory / RUNS / name, directory)
        if record.checkpoint is not None:
            folder = directory / RUNS / name / record.checkpoint_name
            checkpoints.check_files(folder, record.checkpoint, directory)
            return True
    return False


def results_folder(location: str | Path) -> ResultsFolder:
    """Return the results folder at a path or bucket URL."""
    return _BucketFolder(location) if is_address(location) else ResultsFolder(location)
