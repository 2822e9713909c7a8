"""Results folder of a run: the lock, manifest, tables and checkpoints, and all functions that write them."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.engine import strays
from jaxattn.lab.engine.manifest import code_changes, differences
from jaxattn.lab.storage import batch_state, checkpoints, files, lock, manifest, provenance, run_log
from jaxattn.lab.storage.batch_state import TABLES, BatchOrigin, BatchState
from jaxattn.lab.storage.bucket import OWN, Bucket
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.storage.objects import is_address
from jaxattn.lab.study.inputs import is_code

CODE_REMEDY = (
    "choose another folder with --out, or resume with accept_code=True (command line: --accept-code)"
)
INPUT_REMEDY = "restore the earlier version, or choose another folder with --out"
# Files and folders that may exist before any batch is computed, or remain if no batch could be computed.
EMPTY = (lock.LOCK_FILE, "parts", "checkpoints", run_log.RUN_LOG, manifest.MANIFEST, *OWN)


class Store:
    """Results folder of a study, with its batches of cells and seeds."""

    def __init__(self, directory: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        """Open the folder, or the local copy of a bucket folder.

        `warn` is called with a one-line message when damaged files are repaired or moved aside.
        """
        self.bucket = Bucket(directory) if is_address(directory) else None
        self.directory = self.bucket.folder if self.bucket else Path(os.path.abspath(directory))
        self.warn = warn
        self._code: dict[str, str | None] = {}
        self._strays: dict[str, str] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process; raise RunError if another process holds the lock.

        If the run fails before anything is computed, the folder is removed.
        """
        if self.bucket is None:
            with self._locked_here():
                yield
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with lock.locked(self.directory, self.warn), self.bucket.locked(self.warn):
            files.remove_temporary(self.directory)
            existed = (self.directory / manifest.MANIFEST).exists()
            try:
                yield
            except InputError:
                if not existed:
                    self._clear()
                    self.bucket.delete(
                        x for x in (manifest.MANIFEST, run_log.RUN_LOG) if not (self.directory / x).exists()
                    )
                raise

    @contextmanager
    def _locked_here(self) -> Iterator[None]:
        with files.saving(self.directory, self.directory):
            # Check all folders in which files are written or deleted.
            files.check_links(self.directory, "parts", "checkpoints", "damaged", "figures")
            if strange := self._is_strange():
                made, existed = [], True
            else:
                made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
                existed = (self.directory / manifest.MANIFEST).exists()
        if strange:
            yield  # This is not a results folder, so `join` will raise an error.
            return
        try:
            with files.saving(self.directory, self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                holding = ExitStack()
                holding.enter_context(lock.locked(self.directory, self.warn))
                files.remove_temporary(self.directory, "parts", "figures")
            with holding:
                try:
                    yield
                except Exception as error:
                    described = (self.directory / manifest.MANIFEST).exists()
                    if not existed and (isinstance(error, InputError) or not described):
                        self._clear()
                    raise
        except Exception:
            with suppress(OSError):
                for path in made:
                    path.rmdir()
            raise

    def _clear(self) -> None:
        with suppress(OSError):
            for name in ("parts", "checkpoints"):
                if (self.directory / name).exists():
                    (self.directory / name).rmdir()
            if {path.name for path in self.directory.iterdir()} <= set(EMPTY):
                for name in (run_log.RUN_LOG, manifest.MANIFEST, lock.LOCK_FILE):
                    (self.directory / name).unlink(missing_ok=True)

    def _is_strange(self) -> bool:
        if self.bucket:
            return False  # `Bucket.locked` has already checked the folder.
        if not self.directory.is_dir() or (self.directory / manifest.MANIFEST).exists() or self.batches():
            return False
        return any(path.name not in EMPTY and not files.is_foreign(path) for path in self.directory.iterdir())

    def join(
        self, described: dict[str, Any], accept_code: bool = False, extended: str = ""
    ) -> dict[str, Any]:
        """Return the manifest of a run that starts or resumes in this folder, without writing anything.

        `described` is the manifest of a new run. If the new run extends a finished run, `extended` is the key
        that sets its number of steps. If there are batches but no intact manifest, the manifest is rebuilt
        with an empty `batches`.

        Raises:
            InputError: the folder contains unrelated files, results of a different config, or results of
                different code (unless `accept_code` is True).
        """
        self._code = described["code"]
        if self._is_strange():
            raise InputError(
                f"{self.directory}: neither empty nor a results folder; choose another folder with --out"
            )
        known = None
        try:
            known = manifest.find_manifest(self.directory)
        except Damaged as error:
            reason = str(error).removesuffix(f"; {manifest.REBUILD}")
            if not self.batches():
                raise InputError(f"{reason}; delete this file, or choose another folder with --out") from None
            self.warn(f"{reason}; rebuilding the manifest from the batches in the folder")
        self._strays = strays.find_strays(self.directory, known, described["seeds"])
        batches = self.batches()
        changed = differences(known["config"], described["config"]) if known else []
        changed = [line for line in changed if not extended or line.partition(": ")[0] != extended]
        if batches:
            self._check_same(changed, described, batches)
            codes = [known["code"]] if known else [saved.origin.code for saved in self._whole_states(batches)]
            # Changed code can be accepted, changed files cannot, because they would mix different data.
            inputs = {name: x for name, x in described["code"].items() if not is_code(name)}
            if change := code_changes(codes, inputs):
                raise InputError(f"{self.directory}: {change}; {INPUT_REMEDY}")
            if not accept_code and (change := code_changes(codes, described["code"])):
                raise InputError(f"{self.directory}: {change}; {CODE_REMEDY}")
        elif changed:
            # Nothing has been computed yet, for example because the earlier config did not fit in memory.
            # Ignore its manifest.
            known = None
        held = {seed for batch in batches for seed in batch_state.spans(batch)[1]}
        seeds = sorted({*described["seeds"], *held, *(known["seeds"] if known else ())})
        kept = ("name", "description", "config", "cells", "code", "labels", "scales")
        return (known or described) | {key: described[key] for key in kept} | {"seeds": seeds}

    def existing(self, described: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the manifest of the folder, or None if the folder contains no batches.

        Raises:
            InputError: the manifest cannot be read, or its config differs from that in `described`.
        """
        batches = self.batches()
        known = manifest.find_manifest(self.directory) if batches else None
        if known is not None:
            self._check_same(differences(known["config"], described["config"]), described, batches)
        return known

    def _check_same(self, changed: list[str], described: Mapping[str, Any], batches: list[str]) -> None:
        for saved in [] if changed else self._whole_states(batches):
            changed += [
                f"cell {cell}" for cell in batch_state.cells_of_other_configs(saved, described["cells"])
            ]
        if changed:
            raise InputError(
                f"{self.directory}: contains results of a different config "
                f"({'; '.join(dict.fromkeys(changed))}); choose another folder with --out, or delete this one"
            )

    def _whole_states(self, batches: list[str]) -> list[BatchState]:
        found = []
        for batch in batches:
            with suppress(Damaged):
                if saved := batch_state.read_state(self.directory, batch):
                    found.append(saved)
        return found

    def write_manifest(self, content: Mapping[str, Any]) -> None:
        """Replace the manifest."""
        with files.saving(self.directory / manifest.MANIFEST, self.directory):
            manifest.write_manifest(self.directory, content)
            if self.bucket:
                self.bucket.commit(manifest.MANIFEST)

    def log(self, entry: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with files.saving(self.directory / run_log.RUN_LOG, self.directory):
            run_log.append_entry(self.directory, entry)

    def batches(self) -> list[str]:
        """Return the names of the run's batches in this folder, finished and unfinished."""
        return [batch for batch in batch_state.batches(self.directory) if batch not in self._strays]

    def set_strays_aside(self) -> None:
        """Move batches that do not belong to this run, as detected by `join`, to the folder `damaged`."""
        for batch, reason in self._strays.items():
            self.warn(f"{reason}; moved to {self._move_aside(batch)}")

    def is_finished(self, batch: str) -> bool:
        """Return True if a batch is finished, without checking its tables."""
        saved = batch_state.read_shown(self.directory, batch)
        return saved is not None and saved.finished

    def shorter(self, batch: str, cells: Mapping[str, str]) -> BatchState | None:
        """Return the state of the shorter, finished batch that a batch extends, or None if there is none.

        `cells` maps cell numbers to config hashes.
        """
        saved = batch_state.read_state(self.directory, batch)
        if saved is None or (saved.finished and saved.origin.cells == cells):
            return None
        return saved if saved.finished else saved.before

    def states(self) -> dict[str, BatchState]:
        """Return the commit records of the run's batches, keyed by name; damaged records are skipped."""
        return {saved.batch or "": saved for saved in self._whole_states(self.batches())}

    def is_complete(self, batch: str) -> bool:
        """Return True if a batch is finished and its tables are intact. A damaged batch is moved aside."""
        try:
            saved = batch_state.read_state(self.directory, batch)
            if saved is None or not saved.finished:
                return False
            for name, sha256 in saved.tables.items():
                location = batch_state.table_path(self.directory, batch, name, sha256)
                files.check_file(location, self.directory, sha256)
            if saved.batch is None:
                batch_state.check_cells_and_seeds(self.directory, batch, saved)
        except Damaged as error:
            self.move_damaged(batch, error)
            return False
        if self.bucket or sum(1 for _ in (self.directory / "checkpoints" / batch).glob("*")) > 1:
            self._drop_others(batch, saved)  # left by a process that was killed before deleting them
        return True

    def resume(self, batch: str) -> tuple[BatchState | None, dict[str, pd.DataFrame]]:
        """Return a batch's commit record and current tables, or None and empty tables if none are intact.

        A damaged batch is moved aside.
        """
        try:
            if found := batch_state.read_with_tables(self.directory, batch):
                if self.bucket and found[0].finished:
                    # Extending a batch requires its checkpoint, which may be missing from the local copy.
                    self.bucket.fetch_batch(batch, found[0])
                return found
        except Damaged as error:
            self.move_damaged(batch, error)
        return None, {name: pd.DataFrame() for name in TABLES}

    def restore(self, batch: str, saved: BatchState, like: Any) -> Any:
        """Restore the checkpoint of a batch to the host, with the tree structure of `like`.

        If the checkpoint is damaged, move the batch aside and return None.
        """
        folder = batch_state.checkpoint_path(self.directory, batch, saved.checkpoint.number)
        try:
            return checkpoints.restore(folder, saved.checkpoint, self.directory, like)
        except Damaged as error:
            self.move_damaged(batch, error)
            return None

    def save(
        self,
        batch: str,
        arrays: Any,
        tables: Callable[[], Mapping[str, pd.DataFrame]],
        *,
        cells: Mapping[str, str],
        phase: int,
        step: int,
        failures: list[dict[str, Any]],
        finished: bool = False,
        resumable: bool = False,
        before: BatchState | None = None,
    ) -> None:
        """Save a batch: write tables and arrays under new names, then the commit record that refers to them.

        Args:
            batch: name of the batch.
            arrays: state to resume from; for a finished batch, the trained parameters.
            tables: function that returns the current tables.
            cells: config hash of each cell, keyed by cell number.
            phase: index of the current phase.
            step: number of steps taken in the phase.
            failures: seeds that have failed so far.
            finished: True if the batch is finished.
            resumable: True if the arrays of a finished batch include the final state of its last phase.
            before: the finished batch that this batch extends.
        """
        number = self.bucket.new_number() if self.bucket else self._number(batch) + 1
        folder = batch_state.checkpoint_path(self.directory, batch, number)
        with files.saving(folder, self.directory):
            for made in (self.directory / "parts", self.directory / "checkpoints", folder.parent):
                made.mkdir(exist_ok=True)
            # Saving arrays mostly waits for the disk, so build the tables at the same time.
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(self._write_tables, batch, tables)
                checkpoint = checkpoints.save(folder, arrays)
                digests = writing.result()
            by = BatchOrigin(dict(cells), self._code, provenance.installed())
            saved = BatchState(
                finished, phase, step, failures, digests, checkpoint, by, batch, resumable, before
            )
            if self.bucket:
                self.bucket.upload_referenced(batch, saved)
            batch_state.write_state(self.directory, batch, saved)
            if self.bucket:
                self.bucket.commit_batch(batch, saved)
            self._drop_others(batch, saved)

    def _number(self, batch: str) -> int:
        saved = batch_state.read_state(self.directory, batch)
        return saved.checkpoint.number if saved else 0

    def _write_tables(self, batch: str, tables: Callable[[], Mapping[str, pd.DataFrame]]) -> dict[str, str]:
        digests = {}
        for name, table in tables().items():
            content = _parquet(table)
            digests[name] = files.digest(content)
            location = batch_state.table_path(self.directory, batch, name, digests[name])
            files.write_file(location, content, self.directory)
        return digests

    def _drop_others(self, batch: str, saved: BatchState) -> None:
        each = [saved, *filter(None, [saved.before])]
        tables = [of for one in each for of in one.tables.items()]
        named = {batch_state.table_path(self.directory, batch, *of) for of in tables}
        for path in (self.directory / "parts").glob(f"{batch}.*.parquet"):
            if path not in named:
                path.unlink()
        for path in (self.directory / "checkpoints" / batch).glob("*"):
            if path.name not in {str(one.checkpoint.number) for one in each}:
                shutil.rmtree(path, ignore_errors=True)
        if self.bucket:
            self.bucket.drop_others(batch, saved)

    def move_damaged(self, batch: str, error: Damaged) -> None:
        """Move a damaged batch to the folder `damaged`, so that it is computed again."""
        self.warn(f"{error}; moved to {self._move_aside(batch)}; computing {batch} again")

    def _move_aside(self, batch: str) -> Path:
        aside = self.directory / "damaged" / batch
        number = sum(1 for _ in aside.parent.glob(f"{batch}*")) if aside.parent.is_dir() else 0
        aside = aside.with_name(f"{batch}.{number}") if number else aside
        with files.saving(aside, self.directory):
            aside.mkdir(parents=True)
            state = batch_state.path(self.directory, batch)
            # Move the commit record first, because the other files are valid only together with it.
            for path in (state, *state.parent.glob(f"{batch}.*.parquet")):
                if path.exists():
                    path.replace(aside / path.name)
            if (folder := self.directory / "checkpoints" / batch).exists():
                folder.replace(aside / "checkpoints")
        if self.bucket:
            self.bucket.forget(batch)
        return aside

    def forget(self, batch: str, cells: Mapping[str, str]) -> None:
        """Delete the commit record of a batch, so that the batch starts again; see `shorter` for `cells`.

        If the batch extends a finished batch, it starts again from the end of the finished batch.
        """
        with files.saving(self.directory, self.directory):
            saved = batch_state.read_state(self.directory, batch)
            if saved and (before := self.shorter(batch, cells) or saved.before):
                batch_state.write_state(self.directory, batch, before)
                if self.bucket:
                    self.bucket.commit(f"parts/{batch}.json")
                return
            batch_state.path(self.directory, batch).unlink(missing_ok=True)
            if self.bucket:
                self.bucket.forget(batch)

    def is_merged(self, known: Mapping[str, Any]) -> bool:
        """Return True if the checksums of the merged tables match the manifest."""
        if self.bucket:
            self.bucket.download({f"{name}.parquet": known["sha256"].get(name, "") for name in TABLES})
        try:
            for name in TABLES:
                path = self.directory / f"{name}.parquet"
                files.check_file(path, self.directory, known["sha256"].get(name, ""))
        except Damaged as error:
            self.warn(f"{error}; merging the tables again")
            return False
        return True

    def merge(self, batches: list[str]) -> dict[str, Any]:
        """Merge the tables of the batches into records.parquet and tokens.parquet.

        Returns:
            Manifest entries: failures, provenance of the package that produced the batches, and checksums. If
            there are no batches, no tables are written.
        """
        if not batches:
            return {"failures": [], "sha256": {}}
        found = {
            batch: saved for batch in batches if (saved := batch_state.read_shown(self.directory, batch))
        }
        sums = {}
        for name in TABLES:
            parts = [
                batch_state.read_batch_table(self.directory, batch, saved, name)
                for batch, saved in found.items()
            ]
            if len(parts) == 1:
                ((batch, saved),) = found.items()
                location = batch_state.table_path(self.directory, batch, name, saved.tables[name])
                content = files.read_file(location, self.directory, saved.tables[name])
            else:
                content = _parquet(pd.concat(parts, ignore_index=True))
            path = self.directory / f"{name}.parquet"
            with files.saving(path, self.directory):
                files.write_file(path, content, self.directory)
                if self.bucket:
                    self.bucket.upload([path.name])
            sums[name] = files.digest(content)
        if self.bucket:
            self.bucket.delete_uncommitted()
        package_versions = [saved.origin.made_by for saved in found.values()]
        return {
            "failures": [failure for saved in found.values() for failure in saved.failures],
            "made_by": [
                maker
                for number, maker in enumerate(package_versions)
                if maker not in package_versions[:number]
            ],
            "sha256": sums,
        }


def _parquet(table: pd.DataFrame) -> bytes:
    return table.to_parquet(None, index=False, compression="zstd")
