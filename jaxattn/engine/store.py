"""The results folder: manifest, parts, tables and checkpoints. All writing of a study starts here."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from jaxattn.engine import checkpoints
from jaxattn.engine.checkpoints import Position
from jaxattn.engine.manifest import FORMAT, differences
from jaxattn.errors import InputError, RunError

TABLES = ("records", "tokens")


class Store:
    """A results folder of one study; a batch is a block of cells and seeds that run together."""

    def __init__(self, directory: Path, note: Callable[[str], None] = lambda line: None):
        """Name the folder, nothing is written yet; `note` is told of damage that was found and mended."""
        self.directory = Path(os.path.abspath(directory))
        self.manifest_path = self.directory / "manifest.json"
        self.note = note

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder to this process; RunError if another one has it. A killed process keeps nothing."""
        path = self.directory / ".lock"
        if self._is_strange():
            yield  # not ours to write in: `open` will say so
            return
        with self._guard(path):
            self.directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(handle, "r+", encoding="utf-8") as file:
            try:
                _lock(file)
            except BlockingIOError:
                holder = file.read().strip() or "another process"
                raise RunError(
                    f"{self.directory}: {holder} is running there; wait for it, or choose another folder "
                    "with --out"
                ) from None
            except OSError as error:
                reason = f"this file system has no locks ({error.strerror})"
                self.note(f"{self.directory}: {reason}; start no second run there")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            # The file stays: whoever waits for the lock must find the same one.
            yield

    def open(self, manifest: dict[str, Any], accept_code: bool = False) -> dict[str, Any]:
        """Create the folder or continue in it.

        Args:
            manifest: the description of this run; used when the folder is new.
            accept_code: continue although the user's code has changed.

        Returns:
            The manifest now in the folder.

        Raises:
            InputError: the folder holds something else, or results of another config.
            RunError: it cannot be written.
        """
        if self.manifest_path.exists():
            # Without a batch nothing was computed yet, for example since the config did not fit.
            hashes = {cell["cell"]: cell["config_hash"] for cell in manifest["cells"]}
            known = self.begun(manifest["config"], hashes) or manifest
            _check_code(
                self.directory, known.get("code", {}), manifest["code"], accept_code or not self.batches()
            )
            seeds = sorted({*known["seeds"], *manifest["seeds"]})
            kept = ("name", "description", "config", "cells", "code", "labels", "widths")
            manifest = known | {key: manifest[key] for key in kept}
            manifest["seeds"] = seeds
        elif self._is_strange():
            raise InputError(f"{self.directory}: not empty and no results folder; choose another with --out")
        self.write_manifest(manifest)
        return manifest

    def begun(self, config: dict[str, Any], hashes: Mapping[int, str]) -> dict[str, Any] | None:
        """Read the manifest of what was begun here, None if nothing was.

        Args:
            config: what is to be continued.
            hashes: the hashes of its cells, by their numbers.

        Raises:
            InputError: it is of another config than this one, or of another version.
        """
        if not self.manifest_path.exists() or not self.batches():
            return None
        known = self.read_manifest()
        if known.get("format") != FORMAT:
            raise InputError(
                f"{self.directory}: written by another version of jaxattn; choose another folder with --out"
            )
        changed = differences(known["config"], config)
        if not changed:
            of_cells = ((cell["cell"], cell["config_hash"]) for cell in known["cells"])
            changed = [f"cell {number}" for number, was in of_cells if hashes.get(number, was) != was]
        if changed:
            raise InputError(
                f"{self.directory}: holds results of another config ({'; '.join(changed):.500}); "
                "choose another folder with --out, or delete this one"
            )
        return known

    def is_locked(self) -> bool:
        """Tell whether a process works in this folder."""
        try:
            with open(self.directory / ".lock", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def log(self, entry: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, where others can watch the run."""
        path = self.directory / "metrics.jsonl"
        with self._guard(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl; a line that is not whole is left out."""
        entries = []
        try:
            text = (self.directory / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        for line in text.splitlines():
            with suppress(json.JSONDecodeError):
                entries.append(json.loads(line))
        return entries

    def is_marked(self, batch: str) -> bool:
        """Tell whether a batch was finished, without looking at its tables."""
        return self._mark(batch).exists()

    def _is_strange(self) -> bool:
        if self.manifest_path.exists() or not self.directory.is_dir():
            return False
        return any(path.name != ".lock" for path in self.directory.iterdir())

    def read_manifest(self) -> dict[str, Any]:
        """Read the manifest; InputError if it is damaged."""
        try:
            return json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise InputError(
                f"{self.manifest_path}: damaged; delete the folder or choose another with --out"
            ) from None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest."""
        with self._writing(self.manifest_path) as temporary:
            temporary.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Replace a Parquet table of the folder."""
        with self._writing(self.directory / f"{name}.parquet") as temporary:
            table.to_parquet(temporary, index=False, compression="zstd")

    def save(
        self,
        batch: str,
        state: Any,
        history: Any,
        position: Position,
        records: pd.DataFrame,
        tokens: pd.DataFrame,
    ) -> None:
        """Save a batch's state, what its probes have seen, how far it is, and the tables that led to it."""
        self.write_table(f"parts/{batch}.records.partial", records)
        self.write_table(f"parts/{batch}.tokens.partial", tokens)
        self._checkpoint(batch, {"state": state, "history": history}, position)

    def _checkpoint(self, batch: str, arrays: Any, position: Position | None, keep: int = 1) -> None:
        folder = self._checkpoints(batch)
        with self._guard(folder):
            checkpoints.save(folder, arrays, position, keep)

    def resume(self, batch: str) -> tuple[Position | None, pd.DataFrame, pd.DataFrame]:
        """Tell how far the checkpoint of a batch is, None if there is none, and read its tables so far.

        A checkpoint that cannot be read is set aside.
        """
        nothing = None, pd.DataFrame(), pd.DataFrame()
        if not self._checkpoints(batch).is_dir():
            return nothing
        # Damage can surface as almost any exception of orbax, tensorstore, JSON and Parquet readers.
        try:
            if (position := checkpoints.position(self._checkpoints(batch))) is None:
                return nothing
            return position, *(self._read_partial(batch, table) for table in TABLES)
        except Exception as error:
            self.set_aside(batch, error)
            return nothing

    def restore(self, batch: str, like: Any, history: Any) -> tuple[Any, Any] | None:
        """Restore a batch's checkpoint, of the shapes and types of `like` and `history`.

        Returns:
            Both, or None if the checkpoint is damaged, which sets it aside.
        """
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), like)
        try:
            found = checkpoints.restore(self._checkpoints(batch), {"state": target, "history": history})
            return found["state"], found["history"]
        except Exception as error:
            self.set_aside(batch, error)
            return None

    def set_aside(self, batch: str, error: Exception) -> None:
        """Move a damaged checkpoint out of the way, so that its batch starts anew."""
        folder = self._checkpoints(batch)
        aside = self._aside(self.directory / "damaged" / batch)
        with self._guard(folder):
            aside.parent.mkdir(parents=True, exist_ok=True)
            folder.replace(aside)
        reason = str(error).partition("\n")[0]
        self.note(f"{batch}: its checkpoint is damaged ({reason}); set aside as {aside}, starting it anew")

    def finish_batch(
        self,
        batch: str,
        params: Any,
        tables: Callable[[], tuple[pd.DataFrame, pd.DataFrame]],
        failures: list[dict[str, Any]],
    ) -> None:
        """Write the tables and parameters of a finished batch, then its mark: failures and checksums."""

        def write() -> None:
            for name, table in zip(TABLES, tables(), strict=True):
                self.write_table(f"parts/{batch}.{name}", table)

        # Saving parameters mostly waits for the disk; the tables are laid out meanwhile.
        with ThreadPoolExecutor(1) as beside:
            writing = beside.submit(write)
            # The last checkpoint on the way serves until the mark is there.
            self._checkpoint(batch, params, None, keep=2)
            writing.result()
        content = {
            "failures": failures,
            "sha256": {name: _digest(self._part(batch, name)) for name in TABLES},
        }
        with self._writing(self._mark(batch)) as temporary:
            temporary.write_text(json.dumps(content), encoding="utf-8")
        for table in TABLES:
            (self.directory / "parts" / f"{batch}.{table}.partial.parquet").unlink(missing_ok=True)
        with self._guard(self._checkpoints(batch)):
            checkpoints.keep_last(self._checkpoints(batch))

    def forget(self, batch: str) -> None:
        """Forget what is known of a batch, so that it starts anew."""
        with self._guard(self._mark(batch)):
            self._mark(batch).unlink(missing_ok=True)
            shutil.rmtree(self._checkpoints(batch), ignore_errors=True)

    def is_finished(self, batch: str) -> bool:
        """Tell whether a batch's tables are there and whole; damaged ones are set aside."""
        if not self._mark(batch).exists():
            return False
        try:
            wanted = json.loads(self._mark(batch).read_text(encoding="utf-8"))["sha256"]
            paths = {name: self._part(batch, name) for name in TABLES}
            damaged = [
                name for name, path in paths.items() if not path.exists() or _digest(path) != wanted[name]
            ]
            if not damaged:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            damaged = []
        with self._guard(self._mark(batch)):
            for name in damaged:
                path = self._part(batch, name)
                if path.exists():
                    path.replace(self._aside(path.with_name(path.name + ".damaged")))
            self._mark(batch).unlink()
            # Its last checkpoint says that all is done, and would finish the batch from tables that are gone.
            shutil.rmtree(self._checkpoints(batch), ignore_errors=True)
        self.note(f"{batch}: {' and '.join(damaged) or 'its mark'} damaged; set aside, computing it again")
        return False

    def batches(self) -> list[str]:
        """Name the batches that were finished or begun in this folder."""
        finished = {path.stem for path in (self.directory / "parts").glob("cells-*-seeds-*-*.json")}
        begun = {path.name for path in (self.directory / "checkpoints").glob("cells-*-seeds-*-*")}
        return sorted(finished | begun)

    def is_merged(self, manifest: dict[str, Any]) -> bool:
        """Tell whether the merged tables are those that the manifest speaks of."""
        known = manifest.get("sha256", {})
        paths = {name: self.directory / f"{name}.parquet" for name in TABLES}
        return all(path.exists() and _digest(path) == known.get(name) for name, path in paths.items())

    def merge(self, batches: list[str]) -> dict[str, Any]:
        """Write records.parquet and tokens.parquet from the batches' parts.

        Returns:
            What the manifest says of them: all failures, and the tables' checksums. No batch has no table.
        """
        if not batches:
            return {"failures": [], "sha256": {}}
        for table in TABLES:
            parts = [self._part(batch, table) for batch in batches]
            if len(parts) > 1:
                self.write_table(table, pd.concat(map(pd.read_parquet, parts), ignore_index=True))
                continue
            with self._writing(self.directory / f"{table}.parquet") as temporary:
                shutil.copyfile(parts[0], temporary)
        marks = [json.loads(self._mark(batch).read_text(encoding="utf-8")) for batch in batches]
        return {
            "failures": [failure for mark in marks for failure in mark["failures"]],
            "sha256": {name: _digest(self.directory / f"{name}.parquet") for name in TABLES},
        }

    def _part(self, batch: str, table: str) -> Path:
        return self.directory / "parts" / f"{batch}.{table}.parquet"

    def _checkpoints(self, batch: str) -> Path:
        return self.directory / "checkpoints" / batch

    def _mark(self, batch: str) -> Path:
        return self.directory / "parts" / f"{batch}.json"

    def _aside(self, path: Path) -> Path:
        number = sum(1 for _ in path.parent.glob(f"{path.name}*")) if path.parent.is_dir() else 0
        return path.with_name(f"{path.name}.{number}") if number else path

    def _read_partial(self, batch: str, table: str) -> pd.DataFrame:
        return pd.read_parquet(self.directory / "parts" / f"{batch}.{table}.partial.parquet")

    @contextmanager
    def _writing(self, path: Path) -> Iterator[Path]:
        """Hand out a temporary path that replaces `path` in one move once it is written."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with self._guard(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def _guard(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            # Orbax reports a full disk as a ValueError.
            full = "No space left" in str(error) or getattr(error, "errno", None) in (
                errno.ENOSPC,
                errno.EDQUOT,
            )
            if not (full or isinstance(error, OSError)):
                raise
            cause = getattr(error, "strerror", None) or str(error)
            free = shutil.disk_usage(_existing(path)).free / 2**20
            reason = f"the disk is full ({free:.0f} MiB left)" if full else cause
            raise RunError(
                f"{path}: cannot be written: {reason}; what is already there is kept, "
                "mend this and run the same command again to continue"
            ) from None


def _lock(file: Any, tries: int = 5) -> None:
    """Lock a file; whoever only looks whether it is locked holds it for a moment."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                raise
            time.sleep(0.05)


def _check_code(directory: Path, known: dict[str, Any], now: dict[str, Any], accepted: bool) -> None:
    """Refuse to continue with code of the user's that has changed."""
    changed = [name for name, digest in known.items() if name in now and now[name] != digest]
    if changed and not accepted:
        raise InputError(
            f"{directory}: {', '.join(changed)} changed since this run began; choose another folder with "
            "--out, or continue with --accept-code"
        )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
