"""Results folders in buckets: a folder of this machine, fetched at the start and sent at every mark.

What a mark names is sent first, under names that no other run uses; then the mark, on the condition that it
is still what this run knew, and that makes it count. So what a mark names is there, whenever a run is killed,
and of two runs that both think to hold a folder one is told. Readers fetch what they need into a folder of
theirs.
"""

import os
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
from jaxattn.lab.storage.objects import Changed, Entry, Objects, is_address, shown

PARTS = ("parts", "checkpoints")
MERGED = tuple(f"{name}.parquet" for name in TABLES)
REPORT = ("report.html", "summary.csv", "figures")
DRAWN = "figures/drawn.json"
# What lies beside the copy: who held the folder from here, and the lock of readers.
OWN = (".holder", ".reading")
OF_BATCH = re.compile(rf"(?:parts|checkpoints)/({batch_state.NAME.pattern})[./]")
AT_ONCE = 16
LOOKS = 5


def root(role: str) -> Path:
    """Say where folders of buckets lie on this machine: those of runs ("run"), and of readers ("read")."""
    return Path(os.path.abspath(files.cache_folder() / "buckets" / role))


def here(place: str | Path, role: str = "read") -> Path:
    """Say where a folder lies on this machine; one that is in no bucket is where it is."""
    if not is_address(place):
        return Path(place)
    return root(role) / shown(place).replace("://", "/")


def address_of(folder: Path) -> str | None:
    """Tell which folder of a bucket a folder of this machine is the copy of; None if of none."""
    for role in ("run", "read"):
        if folder.is_relative_to(root(role)):
            return re.sub("/", "://", folder.relative_to(root(role)).as_posix(), count=1)
    return None


def renamed(text: str) -> str:
    """Name folders by their addresses, where a text names the copies on this machine."""
    bases = "|".join(re.escape(str(root(role))) for role in ("run", "read"))
    return re.sub(rf"(?:{bases})/(s3|gs)/", r"\1://", text)


@contextmanager
def naming() -> Iterator[None]:
    """Let errors name folders by their addresses."""
    try:
        yield
    except (InputError, RunError) as error:
        if (text := renamed(str(error))) == str(error):
            raise
        raise type(error)(text) from None


def fetched(
    place: str | Path,
    *,
    tables: bool = True,
    log: bool = False,
    report: bool = False,
    all_of_it: bool = False,
) -> Path:
    """Bring what a reader needs of a folder to this machine; one that is in no bucket is where it is.

    Args:
        place: a results folder, or the address of one.
        tables: also the tables, not the manifest and the marks of batches alone.
        log: also metrics.jsonl.
        report: also the figures and pages.
        all_of_it: everything, checkpoints too, and nothing from an earlier copy.

    Returns:
        Where it is.

    Raises:
        InputError: the bucket cannot be read.
    """
    if not is_address(place):
        return Path(place)
    asked = {name for name, x in (("tables", tables), ("log", log), ("report", report)) if x}
    found = Bucket(place, "read")
    found.look({"tables", "log", "report", "checkpoints"} if all_of_it else asked, anew=all_of_it)
    return found.folder


def fetch_batch(directory: Path, batch: str, saved: BatchState) -> None:
    """Bring a batch to the copy of a folder of a bucket, if its checkpoint is not there."""
    if (address := address_of(directory)) is None:
        return
    if not batch_state.checkpoint_path(directory, batch, saved.checkpoint.number).is_dir():
        found = Bucket(address, "run" if directory.is_relative_to(root("run")) else "read")
        found.listed = found.objects.entries()
        found.bring(_tables(batch, saved) | _checkpoint(batch, saved))


def send_report(place: str | Path, folder: Path, paths: Iterable[Path]) -> None:
    """Send what a report has written; what lists its files is last."""
    if is_address(place):
        names = [path.relative_to(folder).as_posix() for path in paths]
        bucket = Bucket(place, "read")
        bucket.folder = folder
        bucket.send(names)
        bucket.send([DRAWN])


def shards(place: str | Path) -> list[str]:
    """Name the folders of shards that have begun in a folder of a bucket; none if it is a run itself."""
    objects = Objects(place)
    entries, folders = objects.top()
    found = [name for name in folders if re.fullmatch(r"shard-\d+-of-\d+", name)]
    if manifest.NAME in entries:
        return []
    return [name for name in found if objects.read(f"{name}/{manifest.NAME}") is not None]


def traces(place: str | Path) -> list[tuple[str, Entry]]:
    """Say what is in a folder of a bucket, which is something else whenever a run has written there."""
    return sorted(Objects(place).top()[0].items())


class Bucket:
    """A results folder in a bucket, and its copy on this machine."""

    def __init__(self, place: str | Path, role: str = "run") -> None:
        """Name it; `role` is that of whom the copy is for.

        Raises:
            InputError: no address, no package that reads buckets, or no credentials.
        """
        self.objects = Objects(place)
        self.address, self.folder = self.objects.address, here(place, role)
        self.listed: dict[str, Entry] = {}
        self._sent_log = 0
        self._broken: RunError | None = None

    @contextmanager
    def locked(self, warn: Callable[[str], None]) -> Iterator[None]:
        """Keep the folder to this process, which has its copy to itself, and fetch what a run continues from.

        Raises:
            InputError: the bucket cannot be read, or something else is there.
            RunError: another process has it, or it cannot be written.
        """
        self.listed = self.objects.entries()
        ours = manifest.NAME in self.listed or any(x.startswith("parts/") for x in self.listed)
        strange = [x for x in self.listed if x.split("/")[0] not in (lock.OBJECT, run_log.NAME, *PARTS)]
        if strange and not ours:
            raise InputError(f"{self.address}: not empty and no results folder; choose another with --out")
        self.lock = lock.Lock(self.objects, self.folder / OWN[0])
        self.lock.take(warn)
        with self.lock.beating(self._send_log, lambda: self._broken is None):
            self.listed = self.objects.entries()
            self._clean(set())  # a run trusts the bucket alone
            self._fetch({"tables", "log", "unfinished"})
            yield

    def look(self, asked: Set[str], anew: bool = False) -> None:
        """Fetch what a reader needs, as it was at one moment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / OWN[1], "w") as file:
            lock.wait_for(file)
            files.remove_temporary(self.folder)
            if anew:
                self._clean(set())
            for _ in range(LOOKS):
                self.listed = self.objects.entries()
                self._fetch(asked)
                before, now = (
                    {name: entry for name, entry in x.items() if name == manifest.NAME or _is_mark(name)}
                    for x in (self.listed, self.objects.entries())
                )
                if before == now:
                    return

    def _fetch(self, asked: Set[str]) -> None:
        marks = [name for name in self.listed if name == manifest.NAME or _is_mark(name)]
        for name, content in zip(marks, self._each(self.objects.read, marks), strict=True):
            if content is not None:
                (self.folder / name).parent.mkdir(exist_ok=True)
                files.replace(self.folder / name, content)
        self._clean({*marks, *self._named({"tables", "checkpoints"})} & self.listed.keys())
        self.bring(self._named(asked))
        loose = {run_log.NAME} if "log" in asked else set()
        if "report" in asked:
            loose |= {name for name in self.listed if _is_of_report(name)}
        for name in loose:
            self._path(name).unlink(missing_ok=True)
        self.bring(dict.fromkeys(loose))

    def _named(self, asked: Set[str]) -> dict[str, str | None]:
        """Name what is needed of what marks name, with checksums where they have one."""
        merged = {} if "unfinished" in asked else self._merged()
        found = dict(merged) if "tables" in asked else {}
        for batch in batch_state.batches(self.folder):
            try:
                saved = batch_state.read(self.folder, batch)
            except InputError:
                continue  # who reads it next will say so
            if saved is None:
                continue
            if "checkpoints" in asked or ("tables" in asked and not merged):
                found |= _tables(batch, saved)
            if "checkpoints" in asked or ("unfinished" in asked and not saved.finished):
                found |= _checkpoint(batch, saved)
        return found

    def _merged(self) -> dict[str, str | None]:
        """Name the merged tables, if they count."""
        try:
            known = manifest.find(self.folder)
        except InputError:
            return {}
        if known is None or known["status"] != "finished":
            return {}
        found = {f"{name}.parquet": sha256 for name, sha256 in known["sha256"].items() if name in TABLES}
        return found if all(name in self.listed for name in found) else {}

    def bring(self, wanted: Mapping[str, str | None]) -> None:
        """Fetch objects that are not here as they should be, given by name, with checksums if known."""
        missing = [name for name, x in wanted.items() if name in self.listed and not self._is_here(name, x)]
        self._each(lambda name: self.objects.bring(name, self._path(name)), missing)

    def _is_here(self, name: str, sha256: str | None) -> bool:
        path = self._path(name)
        if not path.is_file() or path.stat().st_size != self.listed[name].size:
            return False
        return sha256 is None or files.digest(path.read_bytes()) == sha256

    def send(self, names: Iterable[str]) -> None:
        """Send files of the copy."""
        wanted = list(names)
        with self._writing():
            self._each(lambda name: self.objects.send(name, self._path(name)), wanted)
        self.listed |= {name: Entry(self._path(name).stat().st_size, "") for name in wanted}

    def send_named(self, batch: str, saved: BatchState) -> None:
        """Send what the state of a batch names, before it is committed."""
        self.send(_tables(batch, saved) | _checkpoint(batch, saved))

    def commit_batch(self, batch: str, saved: BatchState) -> None:
        """Send the mark of a batch; raise as `commit`.

        If another run has the folder by now, the checkpoint is deleted again: no other run has its number.
        """
        try:
            self.commit(f"parts/{batch}.json")
        except RunError as error:
            if isinstance(error, Changed) or self.lock.is_lost:
                with suppress(RunError):
                    self.objects.delete(_checkpoint(batch, saved))
            raise

    def tidy(self) -> None:
        """Delete what no mark names: sent by runs that were killed, or that have lost the folder."""
        self.listed = self.objects.entries()
        held: dict[str, list[str]] = {}
        for name in self.listed:
            if found := OF_BATCH.match(name):
                held.setdefault(found[1], []).append(name)
        for batch, own in held.items():
            mark = f"parts/{batch}.json"
            with suppress(InputError):
                saved = batch_state.read(self.folder, batch)
                if saved is not None or mark not in self.listed:
                    named = {mark, *_tables(batch, saved), *_checkpoint(batch, saved)} if saved else ()
                    self.delete(name for name in own if name not in named)

    def commit(self, name: str) -> None:
        """Send a mark, which makes what it names count.

        Raises:
            RunError: another run has replaced it, or taken the folder over; or it cannot be written.
        """
        with self._writing():
            self.lock.check()
            self.objects.commit(name, self._path(name).read_bytes())
        self.listed[name] = Entry(0, "")

    def drop_others(self, batch: str, saved: BatchState) -> None:
        """Delete what the committed state of a batch does not name."""
        named = _tables(batch, saved) | _checkpoint(batch, saved)
        self.delete(x for x in self._of(batch) if x not in named and not _is_mark(x))

    def forget(self, batch: str) -> None:
        """Delete all of a batch, its mark first: without that nothing of it counts."""
        self.delete(filter(_is_mark, self._of(batch)))
        self.delete(self._of(batch))

    def _of(self, batch: str) -> list[str]:
        return [x for x in self.listed if x.startswith((f"parts/{batch}.", f"checkpoints/{batch}/"))]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        there = [name for name in names if name in self.listed]
        if there:
            with self._writing():
                self.lock.check()
                self.objects.delete(there)
            for name in there:
                del self.listed[name]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Give up at once after what could not be written: a run that ends does not wait once more."""
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except RunError as error:
            self._broken = error
            raise

    @staticmethod
    def new_number() -> int:
        """Choose the number of a checkpoint, such that no other run chooses the same."""
        return secrets.randbits(48)

    def _send_log(self) -> None:
        path = self.folder / run_log.NAME
        if path.exists() and (size := path.stat().st_size) != self._sent_log:
            self.objects.send(run_log.NAME, path)
            self._sent_log = size

    def _clean(self, kept: set[str]) -> None:
        """Delete what an earlier copy has left here, but for some names; folders of other things stay."""
        for top in (manifest.NAME, run_log.NAME, *MERGED, *PARTS, *REPORT):
            place = self.folder / top
            for path in [place, *place.rglob("*")] if place.exists() else []:
                if path.is_file() and path.relative_to(self.folder).as_posix() not in kept:
                    path.unlink()
        for place in (self.folder / "checkpoints").glob("*/*"):
            if not any(path.is_file() for path in place.rglob("*")):
                shutil.rmtree(place)

    def _each(self, function: Callable[[str], Any], names: list[str]) -> list[Any]:
        if len(names) < 2:
            return [function(name) for name in names]
        with ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
            return list(pool.map(function, names))

    def _path(self, name: str) -> Path:
        return files.inside(self.folder / name, self.folder)


def _is_of_report(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return files.is_below(name) and (folder == "figures" or (not folder and file in REPORT[:2]))


def _is_mark(name: str) -> bool:
    return re.fullmatch(rf"parts/{batch_state.NAME.pattern}\.json", name) is not None


def _tables(batch: str, saved: BatchState) -> dict[str, str | None]:
    return {f"parts/{batch}.{name}.{sha256[:16]}.parquet": sha256 for name, sha256 in saved.tables.items()}


def _checkpoint(batch: str, saved: BatchState) -> dict[str, str | None]:
    base = f"checkpoints/{batch}/{saved.checkpoint.number}"
    return {f"{base}/{name}": sha256 for name, (_, sha256) in saved.checkpoint.files.items()}
