"""A results folder: a memo of runs, in which every batch of runs is written once.

    OUT/study.json                 what was asked for last; see `study_file`
    OUT/runs/KEY/                  a finished batch: run.json, records.parquet, tokens.parquet, checkpoint
    OUT/runs/KEY.partial-WRITER/   the same files of a batch that the process WRITER works on, with numbers
                                   in their names, and error.json if the process has stopped

A batch is computed in a partial folder, which is then renamed. KEY is a hash of the runs of the batch. Runs
are found by their identities, so a folder may contain the runs of any number of studies, and several
processes may use it. Nothing in a folder is executed.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jaxattn.core.errors import InputError, RunError, counted
from jaxattn.lab.storage import batch_record, files, run_log, study_file
from jaxattn.lab.storage.batch_record import KEY, RUN_FILE, BatchRecord, OtherVersion
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.storage.objects import is_address
from jaxattn.lab.storage.remote import Remote, check_empty_or_results

try:
    import resource  # noqa: F401  checkpoints use it
except ModuleNotFoundError:
    raise InputError("results folders require a POSIX system; use Linux, macOS, or WSL on Windows") from None

RUNS = "runs"
_HOST = files.HOST
_TOKEN = secrets.token_hex(4)
_WRITER = re.compile(r"([\w.]+)-(\d{1,9})-([0-9a-f]{8})")
_PARTIAL = re.compile(rf"({KEY.pattern})\.partial-(.+)")
# A process on another host counts as killed if it has not written anything for GONE_S seconds; one on this
# host, if it does not exist, or has not written anything for HUNG_S seconds.
GONE_S, HUNG_S = 300.0, 3600.0
ERROR_FILE = "error.json"


def _checkpoints() -> ModuleType:
    """Import a module that needs JAX, which readers of tables do not need."""
    from jaxattn.lab.storage import checkpoints

    return checkpoints


def writer() -> str:
    """Return the name of this process in the names of partial folders."""
    return f"{_HOST}-{os.getpid()}-{_TOKEN}"


class Partial(NamedTuple):
    """A batch that is not finished.

    Attributes:
        path: its folder.
        record: its record.
        writer: name of the process that computes or computed it.
    """

    path: Path
    record: BatchRecord
    writer: str

    @property
    def is_running(self) -> bool:
        """Return whether a process computes the batch, as far as this process can tell."""
        return is_running(self.path, self.writer)

    @property
    def error(self) -> str:
        """Return the reason why the batch failed, or "" if it did not."""
        with suppress(InputError, KeyError, TypeError):
            return str(files.read_json(self.path / ERROR_FILE, self.path)["reason"])
        return ""


def is_running(folder: Path, name: str) -> bool:
    """Return whether the process with this name computes a batch in a partial folder; see `Partial`."""
    if (folder / ERROR_FILE).exists():
        return False
    found = _WRITER.fullmatch(name)
    times = []
    for path in (folder, folder / RUN_FILE, folder / run_log.RUN_LOG):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    # A time in the future is that of another clock, or of a folder that somebody else has written.
    silent = abs(time.time() - max(times, default=0.0))
    if found is None or found[1] != _HOST:
        return silent < GONE_S
    # An earlier process may have had the number of this one, as in a container that was started again.
    is_earlier = int(found[2]) == os.getpid() and found[3] != _TOKEN
    return silent < HUNG_S and not is_earlier and files.is_alive(int(found[2]))


def finished(
    directory: Path, damaged: Callable[[Damaged], None], wanted: Collection[tuple[str, int]] | None = None
) -> dict[str, BatchRecord]:
    """Return the records of the finished batches in a folder, by the names of their folders, in order.

    Batches of other versions of this package are left out.

    Args:
        directory: the results folder.
        damaged: function that is called for each batch whose record is damaged, and which is left out.
        wanted: leave out batches without one of these runs, each given by the key of its cell and its seed.
    """
    found = {}
    for name, record in _records(directory):
        if isinstance(record, OtherVersion):
            continue
        if isinstance(record, Damaged):
            damaged(record)
        elif wanted is None or any(run in wanted for run in record.identities):
            found[name] = record
    return found


def _records(directory: Path) -> Iterator[tuple[str, BatchRecord | Damaged]]:
    """Yield the names and the records of the finished batches in a folder, or what is wrong with a record."""
    for name in filter(KEY.fullmatch, files.file_names(directory / RUNS, directory)):
        try:
            record = batch_record.read_record(directory / RUNS / name, directory)
            if not record.finished:
                raise Damaged(f"{directory / RUNS / name}: damaged (it is not finished)")
        except Damaged as error:
            yield name, error
        else:
            yield name, record


def partials(
    directory: Path, key: str | None = None, damaged: Callable[[Damaged], None] = lambda error: None
) -> list[Partial]:
    """Return the unfinished batches in a folder, or only those with one key.

    `damaged` is called for each batch whose record is damaged, and which is left out.
    """
    found = []
    for name in files.file_names(directory / RUNS, directory):
        parts = _PARTIAL.fullmatch(name)
        if parts is None or key not in (None, parts[1]):
            continue
        path = directory / RUNS / name
        try:
            found.append(Partial(path, batch_record.read_record(path, directory), parts[2]))
        except Damaged as error:
            damaged(error)
    return found


class Memo:
    """A results folder to which this process writes."""

    def __init__(self, directory: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        """Store the path without reading or writing anything.

        `warn` is called with a one-line message for each damaged file.
        """
        self.remote = Remote(directory) if is_address(directory) else None
        self.directory = self.remote.folder if self.remote else Path(os.path.abspath(directory))
        self.warn = warn
        self._intact: dict[str, bool] = {}

    def check(self) -> None:
        """Raise InputError if the folder contains unrelated files, or links that lead out of it."""
        known = (study_file.STUDY_FILE, RUNS)
        if self.remote:
            check_empty_or_results(self.remote, known)
            self.refresh()
            return
        files.check_links(self.directory, RUNS, "figures")
        names = files.file_names(self.directory, self.directory)
        if set(known) & set(names):
            return
        if any(not files.is_foreign(Path(name)) for name in names):
            raise InputError(
                f"{self.directory}: neither empty nor a results folder; choose another folder with --out"
            )

    def refresh(self) -> None:
        """Update the local copy of a folder in a bucket, except for the checkpoints of finished batches."""
        if self.remote:
            self.remote.pull(_is_for_runs, _is_running)

    def finished(self) -> dict[str, BatchRecord]:
        """Return the records of the finished batches, and warn about all others; see `finished`."""
        found, others = {}, 0
        for name, record in _records(self.directory):
            if isinstance(record, BatchRecord):
                found[name] = record
            elif isinstance(record, OtherVersion):
                others += 1
            else:
                self.warn_damaged(record)
                if self.remote is None:
                    self._intact[name] = False
        if others:
            words = f"{counted(others, 'batch')} of another version of jaxattn"
            self.warn(f"{self.directory}: has {words}, which this version does not use")
        return found

    def is_intact(self, name: str, record: BatchRecord) -> bool:
        """Return whether the files of a finished batch have not changed; if they have, warn.

        Large arrays are not read, and of a bucket's checkpoints only the sizes are compared.
        """
        if name not in self._intact:
            try:
                self.check_batch(name, record)
            except Damaged as error:
                self.warn_damaged(error)
            else:
                self._intact[name] = True
            self._intact.setdefault(name, False)
        return self._intact[name]

    def check_batch(self, name: str, record: BatchRecord | None = None) -> None:
        """Raise Damaged if the files of a finished batch have changed; the record is read unless given."""
        folder = self.directory / RUNS / name
        if record is None:
            record = batch_record.read_record(folder, self.directory)
        batch_record.check_tables(folder, record, self.directory)
        if record.checkpoint is None:
            return
        checkpoint = folder / record.checkpoint_name
        if self.remote is None:
            _checkpoints().check_files(checkpoint, record.checkpoint, self.directory)
            return
        for file, (size, _) in record.checkpoint.files.items():
            path = checkpoint / file
            found = self.remote.sizes.get(path.relative_to(self.directory).as_posix())
            if found != size:
                raise Damaged(f"{path}: {'missing' if found is None else 'damaged (its size differs)'}")

    def set_aside_damaged(self) -> None:
        """Rename the damaged batches that were found, so that they are ignored from now on."""
        for name in (name for name, is_intact in self._intact.items() if not is_intact):
            try:
                # Another process may have replaced the batch in the meantime.
                self.check_batch(name)
            except Damaged:
                with files.saving(self.directory / RUNS / name, self.directory):
                    files.set_aside(self.directory / RUNS / name)
                if self.remote:
                    self.remote.delete_batch(name)

    def delete_abandoned(self, batches: Mapping[str, BatchRecord]) -> None:
        """Delete partial folders whose runs are all in finished batches, except those of running processes.

        `batches` contains the records of the finished batches, by name.
        """
        runs = {run for record in batches.values() for run in record.identities}
        for one in partials(self.directory):
            if runs.issuperset(one.record.identities) and not is_running(one.path, one.writer):
                self._delete_partial(one.path)
        # Folders of killed processes may lack a record.
        for name in files.file_names(self.directory / RUNS, self.directory):
            parts, path = _PARTIAL.fullmatch(name), self.directory / RUNS / name
            if parts and parts[1] in batches and not is_running(path, parts[2]):
                self._delete_partial(path)

    def _delete_partial(self, path: Path) -> None:
        files.delete(path)
        if self.remote:
            self.remote.delete_batch(path.name)

    def warn_damaged(self, error: Damaged) -> None:
        """Warn that a finished batch is damaged, and therefore missing."""
        self.warn(f"{error}; its runs are computed again where they are wanted")

    def write_study(self, content: Mapping[str, Any]) -> None:
        """Write study.json, and create the folder if necessary."""
        with files.saving(self.directory, self.directory):
            (self.directory / RUNS).mkdir(parents=True, exist_ok=True)
        with files.saving(self.directory / study_file.STUDY_FILE, self.directory):
            files.remove_temporary(self.directory)
            study_file.write_study(self.directory, content)
            if self.remote:
                self._push_study(content)

    def _push_study(self, content: Mapping[str, Any]) -> None:
        assert self.remote is not None
        try:
            self.remote.push([study_file.STUDY_FILE])
        except RunError:
            # Another process with the same local copy deletes files that are not in the bucket yet.
            if (self.directory / study_file.STUDY_FILE).exists():
                raise
            study_file.write_study(self.directory, content)
            self.remote.push([study_file.STUDY_FILE])


def _is_for_runs(name: str) -> bool:
    """Return whether a run needs an object: all but reports and the checkpoints of finished batches."""
    parts = name.split("/")
    if parts[0] != RUNS:
        return name == study_file.STUDY_FILE
    return len(parts) > 2 and not (KEY.fullmatch(parts[1]) and parts[2] == "checkpoint")


def _is_running(name: str) -> bool:
    """Return whether the process of a partial folder on this machine is alive."""
    found = _PARTIAL.fullmatch(name)
    parts = found and _WRITER.fullmatch(found[2])
    return bool(parts and parts[1] == _HOST and files.is_alive(int(parts[2])))


def unwanted(directory: Path) -> Iterator[tuple[str, BatchRecord | None]]:
    """Yield the names of batches without a run that study.json asks for, and their records.

    Partial folders of running processes are left out. The record of a damaged batch is None.
    """
    wanted = study_file.wanted_runs(study_file.read_study(directory))
    for name in files.file_names(directory / RUNS, directory):
        if not KEY.fullmatch(name.partition(".")[0]):
            continue
        record = None
        with suppress(Damaged):
            record = batch_record.read_record(directory / RUNS / name, directory)
        partial = _PARTIAL.fullmatch(name)
        if partial and record and Partial(directory / RUNS / name, record, partial[2]).is_running:
            continue
        is_aside = not (partial or KEY.fullmatch(name))
        if is_aside or record is None or not any(run in wanted for run in record.identities):
            yield name, record


def delete_batch(directory: Path, name: str) -> None:
    """Delete a batch.

    Raises:
        RunError: it cannot be deleted.
    """
    path = files.inside(directory / RUNS / name, directory)
    with files.saving(path, directory):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        (path / RUN_FILE).unlink(missing_ok=True)
        shutil.rmtree(path)
