"""Results folders in buckets, with a local copy that is fetched at the start and uploaded at every commit.

The files to which a commit record refers are uploaded first, under unique names. The commit record is
then uploaded, provided that the object in the bucket is still the version that this run last read or
wrote. Every commit record in the bucket therefore refers to complete files, even if the run is killed. If
two runs use the same folder, one of them raises an error. Readers fetch the objects that they need into a
separate local folder.
"""

import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import batch_state, files, lock, manifest, run_log
from jaxattn.lab.storage.batch_state import TABLES, BatchState
from jaxattn.lab.storage.copies import local_path
from jaxattn.lab.storage.objects import Changed, Entry, Objects

_PARTS = ("parts", "checkpoints")
MERGED = tuple(f"{name}.parquet" for name in TABLES)
REPORT = ("report.html", "summary.csv", "figures")
# Files that exist only in the local copy: the id of the last run that held the lock, and the lock file for
# readers.
OWN = (".holder", ".reading")
OF_BATCH = re.compile(rf"(?:parts|checkpoints)/({batch_state.BATCH_NAME.pattern})[./]")
_THREADS = 16
_TRIES = 5


class Bucket:
    """Results folder in a bucket, with a local copy."""

    def __init__(self, location: str | Path, role: str = "run") -> None:
        """Initialise the folder at a bucket URL. `role` is "run" for a run, or "read" for a reader.

        Raises:
            InputError: the URL is invalid, obstore is not installed, or there are no credentials.
        """
        self.objects = Objects(location)
        self.address, self.folder = self.objects.address, local_path(location, role)
        self.listed: dict[str, Entry] = {}
        self._sent_log = 0
        self._broken: RunError | None = None

    @contextmanager
    def locked(self, warn: Callable[[str], None]) -> Iterator[None]:
        """Context manager that locks the folder and its local copy, and fetches the files needed to resume.

        Raises:
            InputError: the bucket cannot be read, or the folder contains unrelated files.
            RunError: another process holds the lock, or the folder cannot be written.
        """
        self.listed = self.objects.entries()
        is_results = manifest.MANIFEST in self.listed or any(x.startswith("parts/") for x in self.listed)
        others = [x for x in self.listed if x.split("/")[0] not in (lock.OBJECT, run_log.RUN_LOG, *_PARTS)]
        if others and not is_results:
            raise InputError(
                f"{self.address}: neither empty nor a results folder; choose another folder with --out"
            )
        self.lock = lock.Lock(self.objects, self.folder / OWN[0])
        self.lock.take(warn)
        with self.lock.heartbeat(self._send_log, lambda: self._broken is None):
            self.listed = self.objects.entries()
            self._clean(set())  # A run trusts the bucket, not the local copy.
            self._fetch({"tables", "log", "unfinished"})
            yield

    def refresh(self, requested: Set[str], fresh: bool = False) -> None:
        """Fetch the files that a reader needs, in a consistent state.

        `requested` names the kinds of files. If `fresh` is True, the local copy is discarded first.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / OWN[1], "w") as file:
            lock.wait_for(file)
            files.remove_temporary(self.folder)
            if fresh:
                self._clean(set())
            for _ in range(_TRIES):
                self.listed = self.objects.entries()
                self._fetch(requested)
                before, now = (
                    {
                        name: entry
                        for name, entry in x.items()
                        if name == manifest.MANIFEST or _is_record(name)
                    }
                    for x in (self.listed, self.objects.entries())
                )
                if before == now:
                    return

    def fetch_batch(self, batch: str, saved: BatchState) -> None:
        """Fetch a batch's tables and checkpoint."""
        self.listed = self.objects.entries()
        self.download(_tables(batch, saved) | _checkpoint(batch, saved))

    def _fetch(self, requested: Set[str]) -> None:
        records = [name for name in self.listed if name == manifest.MANIFEST or _is_record(name)]
        for name, content in zip(records, self._each(self.objects.read, records), strict=True):
            if content is not None:
                (self.folder / name).parent.mkdir(exist_ok=True)
                files.replace(self.folder / name, content)
        self._clean({*records, *self._referenced({"tables", "checkpoints"})} & self.listed.keys())
        self.download(self._referenced(requested))
        loose = {run_log.RUN_LOG} if "log" in requested else set()
        if "report" in requested:
            loose |= {name for name in self.listed if _is_of_report(name)}
        for name in loose:
            self._path(name).unlink(missing_ok=True)
        self.download(dict.fromkeys(loose))

    def _referenced(self, requested: Set[str]) -> dict[str, str | None]:
        merged = {} if "unfinished" in requested else self._merged()
        found = dict(merged) if "tables" in requested else {}
        for batch in batch_state.batches(self.folder):
            try:
                saved = batch_state.read_state(self.folder, batch)
            except InputError:
                continue  # Reading this batch later raises the error.
            if saved is None:
                continue
            if "checkpoints" in requested or ("tables" in requested and not merged):
                found |= _tables(batch, saved)
            if "checkpoints" in requested or ("unfinished" in requested and not saved.finished):
                found |= _checkpoint(batch, saved)
        return found

    def _merged(self) -> dict[str, str | None]:
        try:
            known = manifest.find_manifest(self.folder)
        except InputError:
            return {}
        if known is None or known["status"] != "finished":
            return {}
        found = {f"{name}.parquet": sha256 for name, sha256 in known["sha256"].items() if name in TABLES}
        return found if all(name in self.listed for name in found) else {}

    def download(self, wanted: Mapping[str, str | None]) -> None:
        """Download the objects that are missing locally or differ from the local copy.

        `wanted` maps names to checksums, or to None if the checksum is unknown.
        """
        missing = [name for name, x in wanted.items() if name in self.listed and not self._is_here(name, x)]
        self._each(lambda name: self.objects.download(name, self._path(name)), missing)

    def _is_here(self, name: str, sha256: str | None) -> bool:
        path = self._path(name)
        if not path.is_file() or path.stat().st_size != self.listed[name].size:
            return False
        return sha256 is None or files.digest(path.read_bytes()) == sha256

    def upload(self, names: Iterable[str]) -> None:
        """Upload files from the local copy."""
        wanted = list(names)
        with self._writing():
            self._each(lambda name: self.objects.upload(name, self._path(name)), wanted)
        self.listed |= {name: Entry(self._path(name).stat().st_size, "") for name in wanted}

    def upload_referenced(self, batch: str, saved: BatchState) -> None:
        """Upload the files to which a commit record refers, before the record is committed."""
        there = _tables(batch, saved.before) | _checkpoint(batch, saved.before) if saved.before else {}
        self.upload((_tables(batch, saved) | _checkpoint(batch, saved)).keys() - there.keys())

    def commit_batch(self, batch: str, saved: BatchState) -> None:
        """Upload a batch's commit record; raise the same errors as `commit`.

        If another run has taken over the folder, the uploaded checkpoint is deleted.
        """
        try:
            self.commit(f"parts/{batch}.json")
        except RunError as error:
            if isinstance(error, Changed) or self.lock.is_lost:
                with suppress(RunError):
                    kept = _checkpoint(batch, saved.before) if saved.before else {}
                    self.objects.delete(_checkpoint(batch, saved).keys() - kept)
            raise

    def delete_uncommitted(self) -> None:
        """Delete objects to which no commit record refers.

        Such objects are left behind by runs that were killed or lost the lock.
        """
        self.listed = self.objects.entries()
        held: dict[str, list[str]] = {}
        for name in self.listed:
            if found := OF_BATCH.match(name):
                held.setdefault(found[1], []).append(name)
        for batch, own in held.items():
            record = f"parts/{batch}.json"
            with suppress(InputError):
                saved = batch_state.read_state(self.folder, batch)
                if saved is not None or record not in self.listed:
                    named = {record, *_tables(batch, saved), *_checkpoint(batch, saved)} if saved else ()
                    self.delete(name for name in own if name not in named)

    def commit(self, name: str) -> None:
        """Upload a commit record, which marks the files it lists as valid.

        Raises:
            RunError: another run has replaced the record or taken over the folder, or the record cannot be
                written.
        """
        with self._writing():
            self.lock.check()
            self.objects.commit(name, self._path(name).read_bytes())
        self.listed[name] = Entry(0, "")

    def drop_others(self, batch: str, saved: BatchState) -> None:
        """Delete a batch's objects, except those to which its commit record refers."""
        named = _tables(batch, saved) | _checkpoint(batch, saved)
        self.delete(x for x in self._of(batch) if x not in named and not _is_record(x))

    def forget(self, batch: str) -> None:
        """Delete all objects of a batch.

        The commit record is deleted first, because the other objects are invalid without it.
        """
        self.delete(filter(_is_record, self._of(batch)))
        self.delete(self._of(batch))

    def _of(self, batch: str) -> list[str]:
        return [x for x in self.listed if x.startswith((f"parts/{batch}.", f"checkpoints/{batch}/"))]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects by name, ignoring names that do not exist."""
        there = [name for name in names if name in self.listed]
        if there:
            with self._writing():
                self.lock.check()
                self.objects.delete(there)
            for name in there:
                del self.listed[name]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise the RunError of an earlier failed write, if any; store one raised in the `with` block.

        A run that ends after a failed write therefore does not wait for another timeout.
        """
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except RunError as error:
            self._broken = error
            raise

    @staticmethod
    def new_number() -> int:
        """Return a random checkpoint number, which no other run is likely to choose."""
        return secrets.randbits(48)

    def _send_log(self) -> None:
        path = self.folder / run_log.RUN_LOG
        if path.exists() and (size := path.stat().st_size) != self._sent_log:
            self.objects.upload(run_log.RUN_LOG, path)
            self._sent_log = size

    def _clean(self, kept: set[str]) -> None:
        for top in (manifest.MANIFEST, run_log.RUN_LOG, *MERGED, *_PARTS, *REPORT):
            location = self.folder / top
            for path in [location, *location.rglob("*")] if location.exists() else []:
                if path.is_file() and path.relative_to(self.folder).as_posix() not in kept:
                    path.unlink()
        for location in (self.folder / "checkpoints").glob("*/*"):
            if not any(path.is_file() for path in location.rglob("*")):
                shutil.rmtree(location)

    def _each(self, function: Callable[[str], Any], names: list[str]) -> list[Any]:
        if len(names) < 2:
            return [function(name) for name in names]
        with ThreadPoolExecutor(min(_THREADS, len(names))) as pool:
            return list(pool.map(function, names))

    def _path(self, name: str) -> Path:
        return files.inside(self.folder / name, self.folder)


def _is_of_report(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return files.is_below(name) and (folder == "figures" or (not folder and file in REPORT[:2]))


def _is_record(name: str) -> bool:
    return re.fullmatch(rf"parts/{batch_state.BATCH_NAME.pattern}\.json", name) is not None


def _tables(batch: str, saved: BatchState) -> dict[str, str | None]:
    own = {f"parts/{batch}.{name}.{sha256[:16]}.parquet": sha256 for name, sha256 in saved.tables.items()}
    return own | (_tables(batch, saved.before) if saved.before else {})


def _checkpoint(batch: str, saved: BatchState) -> dict[str, str | None]:
    base = f"checkpoints/{batch}/{saved.checkpoint.number}"
    own = {f"{base}/{name}": sha256 for name, (_, sha256) in saved.checkpoint.files.items()}
    return own | (_checkpoint(batch, saved.before) if saved.before else {})
