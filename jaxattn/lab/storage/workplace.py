"""The folder in which a process computes a batch: saved states, resuming, and publication of the batch."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import batch_record, checkpoints, files, run_log
from jaxattn.lab.storage.batch_record import RUN_FILE, TABLES, BatchRecord
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.storage.memo import ERROR_FILE, RUNS, Memo, Partial, partials, writer
from jaxattn.lab.storage.tables import renumbered


class Workplace:
    """Partial folder in which this process computes a batch, with the record of its last saved state."""

    def __init__(self, memo: Memo, record: BatchRecord) -> None:
        """Describe the batch with a record without any results. Nothing is read or written."""
        self.record = record
        self.description = record
        self._memo = memo
        self.directory, self.warn, self.remote = memo.directory, memo.warn, memo.remote
        self.final = memo.directory / RUNS / record.key
        self.path = self.final.with_name(f"{record.key}.partial-{writer()}")
        self._source = self.path
        # Folders of other processes whose arrays are damaged.
        self._skipped: set[Path] = set()

    def others(self) -> list[Partial]:
        """Return the partial folders of the same batch by other processes."""
        return [one for one in partials(self.directory, self.record.key) if one.path != self.path]

    def claim(self) -> None:
        """Create the folder, so that other processes start with other batches."""
        with files.saving(self.path, self.directory):
            self.path.parent.mkdir(exist_ok=True)
            self.path.mkdir(exist_ok=True)
            (self.path / ERROR_FILE).unlink(missing_ok=True)
            if not (self.path / RUN_FILE).exists():
                batch_record.write_record(self.path, self.description, self.directory)
            self._mirror()

    def _mirror(self) -> None:
        if self.remote:
            self.remote.push_batch(self.path)

    def resume(self) -> tuple[BatchRecord | None, dict[str, pd.DataFrame]]:
        """Return the newest intact state of the batch that any process saved, and its tables.

        The result is None with empty tables if there is none. The folder of a process that was killed is
        taken over.
        """
        every = partials(self.directory, self.description.key, self._warn_earlier)
        every.sort(key=lambda one: (one.record.phase, one.record.step, one.path == self.path), reverse=True)
        for one in every:
            is_others = one.path != self.path and one.is_running
            # Another process that has finished the batch is about to publish it.
            if not one.record.tables or (one.record.finished and is_others) or one.path in self._skipped:
                continue
            try:
                tables = batch_record.read_tables(one.path, one.record, self.directory)
            except Damaged as error:
                self._warn_earlier(error)
                continue
            self._source = one.path
            if one.path != self.path and not is_others and not self._take_over(one.path):
                continue
            self.record = one.record
            return self._in_this_study(one.record, tables)
        with files.saving(self.path, self.directory):
            self.path.mkdir(exist_ok=True)
            batch_record.write_record(self.path, self.description, self.directory)
        return None, {name: pd.DataFrame() for name in TABLES}

    def _in_this_study(
        self, record: BatchRecord, found: dict[str, pd.DataFrame]
    ) -> tuple[BatchRecord, dict[str, pd.DataFrame]]:
        """Return a state with the cell indices of this study, which may have changed since it was saved."""
        numbers = dict(zip(record.runs, self.description.runs, strict=True))
        failures = [
            msgspec.structs.replace(each, cell=numbers[each.cell, each.seed][0]) for each in record.failures
        ]
        record = msgspec.structs.replace(record, failures=tuple(failures))
        return record, {name: renumbered(table, numbers) for name, table in found.items()}

    def _warn_earlier(self, error: Damaged) -> None:
        self.warn(f"{error}; starting from an earlier state")

    def _take_over(self, path: Path) -> bool:
        """Rename the folder of a killed process to that of this one; return False if another one did so."""
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            path.replace(self.path)
        except OSError:
            self.claim()
            return False
        self._source = self.path
        with suppress(OSError):
            (self.path / ERROR_FILE).unlink(missing_ok=True)
        if self.remote:
            self._mirror()
            self.remote.delete_batch(path.name)
        return True

    def tables_of(self, name: str, record: BatchRecord) -> dict[str, pd.DataFrame]:
        """Return the tables of another, finished batch."""
        return batch_record.read_tables(self.final.with_name(name), record, self.directory)

    def restore(self, record: BatchRecord, like: Any, source: str | None = None) -> Any:
        """Return the arrays of the state that `resume` found, on the host, with the structure of `like`.

        If they are damaged, warn and return None, and delete this state, or ignore it if it belongs to
        another process. If `source` is given, read the arrays of the finished batch with this name instead,
        and delete nothing.
        """
        assert record.checkpoint is not None
        found = self._source if source is None else self.final.with_name(source)
        folder = found / record.checkpoint_name
        try:
            return checkpoints.restore(folder, record.checkpoint, self.directory, like)
        except Damaged as error:
            self._warn_earlier(error)
            if source is None:
                if found == self.path:
                    files.delete(found)
                else:
                    self._skipped.add(found)
                self.record = self.description
            return None

    def save(
        self,
        arrays: Any,
        tables: Callable[[], Mapping[str, pd.DataFrame]],
        *,
        finished: bool = False,
        **progress: Any,
    ) -> None:
        """Write tables and arrays under new names, and then the record that refers to them.

        Args:
            arrays: state to resume from; for a finished batch, the trained parameters.
            tables: function that returns the current tables.
            finished: True if all runs are complete.
            progress: other fields of the record that have changed.

        Raises:
            RunError: the folder cannot be written.
        """
        record = msgspec.structs.replace(
            self.description, finished=finished, saved=self.record.saved + 1, **progress
        )
        with files.saving(self.path, self.directory):
            self.path.mkdir(exist_ok=True)
            # Saving arrays mostly waits for the disk, so build the tables at the same time.
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(self._write_tables, record, tables)
                checkpoint = checkpoints.save(self.path / record.checkpoint_name, arrays)
                digests = writing.result()
            self.record = msgspec.structs.replace(record, tables=digests, checkpoint=checkpoint)
            batch_record.write_record(self.path, self.record, self.directory)
            if finished:
                self.publish()
            else:
                self._drop_others()
                self._mirror()

    def _write_tables(
        self, record: BatchRecord, tables: Callable[[], Mapping[str, pd.DataFrame]]
    ) -> dict[str, str]:
        digests = {}
        for name, table in tables().items():
            content = table.to_parquet(None, index=False, compression="zstd")
            files.write_file(self.path / record.table_name(name), content, self.directory)
            digests[name] = files.digest(content)
        return digests

    def _drop_others(self) -> None:
        """Delete earlier states."""
        kept = {RUN_FILE, run_log.RUN_LOG, self.record.checkpoint_name}
        kept |= {self.record.table_name(name) for name in TABLES}
        for name in files.file_names(self.path, self.directory):
            if name not in kept:
                files.delete(self.path / name)

    def publish(self) -> None:
        """Rename the folder of the finished batch, unless another process has finished the same batch."""
        self._drop_others()
        is_discarded = False
        if self.remote:
            if self._damaged_remotely():
                self.remote.delete_batch(self.final.name)
            is_discarded = not self.remote.publish(self.path, self.final.name)
        if not is_discarded:
            self._rename()
        files.delete(self.path)
        if self.remote:
            self.remote.delete_batch(self.path.name)
        if is_discarded:
            self._memo.refresh()
        self._memo.delete_abandoned({self.final.name: self.record})

    def _rename(self) -> None:
        if self.final.exists() and not self._is_final_intact():
            files.set_aside(self.final)
        with files.saving(self.path, self.directory):
            try:
                self.path.rename(self.final)
            except OSError:
                if not self.final.exists():
                    raise

    def _damaged_remotely(self) -> bool:
        return self.final.exists() and not self._is_final_intact()

    def _is_final_intact(self) -> bool:
        with suppress(Damaged):
            record = batch_record.read_record(self.final, self.directory)
            batch_record.check_tables(self.final, record, self.directory)
            return record.finished
        return False

    def is_superseded(self) -> bool:
        """Return whether another process has finished the batch in the meantime."""
        return self.final.exists() and self._is_final_intact()

    def leave(self, reason: str = "") -> None:
        """Store that this process no longer computes the batch, and the reason if it could not."""
        with suppress(OSError, InputError, RunError):
            content = msgspec.json.encode({"reason": reason})
            files.write_file(self.path / ERROR_FILE, content, self.directory)
            self._mirror()

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl in the folder."""
        with files.saving(self.path / run_log.RUN_LOG, self.directory), suppress(FileNotFoundError):
            run_log.append_entry(self.path, entry)

    @property
    def has_state(self) -> bool:
        """Return whether the folder of this process has a saved state."""
        return self._source == self.path and bool(self.record.tables)

    def forget(self) -> None:
        """Delete all saved states, so that the batch starts again."""
        files.delete(self.path)
        if self.remote:
            self.remote.delete_batch(self.path.name)
        self.record, self._source = self.description, self.path
