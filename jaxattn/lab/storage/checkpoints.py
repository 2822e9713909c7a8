"""Checkpoints: trees of arrays in orbax's format, with additional checksums."""

import errno
import importlib
import logging
import math
import os
import resource
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import files
from jaxattn.lab.storage.batch_record import Checkpoint
from jaxattn.lab.storage.files import Damaged

# Maximum size in bytes of a file that is stored with a SHA-256, such as metadata; arrays have separate
# checksums.
SMALL = 2**20
NOT_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EIO)
HANDLES = 64
# Disk space in bytes for the checkpoint files other than the arrays.
METADATA = 2**17


@cache
def prepare() -> Any:
    """Import and return `orbax.checkpoint`. The import takes as long as compiling many small programs.

    Messages from orbax are silenced, because the functions in this module raise its errors as exceptions.
    """
    with _unchanged_root_logger():
        imported = importlib.import_module("orbax.checkpoint")
    logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
    # If several arrays cannot be written, only the first error is raised. Hide asyncio's messages about the
    # others.
    logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
    shown = sys.unraisablehook

    def hook(raised: Any) -> None:
        # After a failed checkpoint, tensorstore may still use an event loop that is already closed.
        if str(raised.exc_value) != "Event loop is closed":
            shown(raised)

    sys.unraisablehook = hook
    return imported


@contextmanager
def _unchanged_root_logger() -> Iterator[None]:
    """Prevent absl from adding a handler to the root logger, which it does with its first message."""
    root, placeholder = logging.getLogger(), logging.NullHandler()
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)


def check_handles() -> None:
    """Raise RunError if the limit on open files is too low; orbax does not check this limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError):
        if allowed != resource.RLIM_INFINITY and allowed - len(os.listdir("/dev/fd")) < HANDLES:
            raise RunError(
                f"only {allowed} files may be open at a time; raise the limit, for example with ulimit -n "
                "1024"
            )


def save(folder: Path, arrays: Any) -> Checkpoint:
    """Write arrays to a folder, replacing its contents, and return their checksums.

    Raises:
        OSError: the folder cannot be written, or there is not enough free disk space.
        ValueError: the disk filled up during the write.
    """
    ocp = prepare()
    check_handles()
    _check_room(folder, arrays)
    # With one process, pass device arrays, because orbax would first copy NumPy arrays. With several
    # processes, pass NumPy arrays, because orbax would treat device arrays as distributed.
    host = arrays if jax.process_count() == 1 else jax.device_get(arrays)
    with _checkpointer() as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(host), force=True)
    return Checkpoint(_checksums(arrays), _list_files(folder))


def restore(folder: Path, known: Checkpoint, directory: Path, like: Any = None) -> Any:
    """Read a checkpoint's arrays into host memory, so that lack of device memory is not mistaken for damage.

    `known` is the description of the checkpoint in the record of its batch. The result has the structure of
    `like`, or consists of nested dictionaries if `like` is None. No files outside `directory` are read.

    Raises:
        Damaged: the arrays differ from those saved.
        InputError: the files cannot be read.
    """
    ocp = prepare()
    check_handles()
    check_files(folder, known, directory)
    try:
        with _checkpointer() as checkpointer:
            saved = checkpointer.metadata(folder).item_metadata.tree
            _check_sizes(saved, sum((folder / name).stat().st_size for name in known.files))
            tree = saved if like is None else like
            each = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            arrays = checkpointer.restore(folder, args=ocp.args.PyTreeRestore(like, restore_args=each))
    # If files are damaged, for example, orbax and tensorstore can raise almost any exception.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if getattr(error, "errno", None) in NOT_DAMAGE or "Too many open files" in str(error):
            raise InputError(f"{folder}: cannot be read: {reason}; fix this and try again") from None
        raise Damaged(f"{folder}: damaged ({reason})") from None
    if _checksums(arrays) != known.arrays:
        raise Damaged(f"{folder}: damaged (the checksums of its arrays differ)")
    return arrays


def _check_room(folder: Path, arrays: Any) -> None:
    """Raise OSError if there is too little disk space for the arrays.

    This avoids the tracebacks that threads in orbax would print.
    """
    disk = os.statvfs(next(parent for parent in folder.parents if parent.exists()))
    needed = sum(np.size(x) * np.dtype(getattr(x, "dtype", float)).itemsize for x in jax.tree.leaves(arrays))
    # Some file systems do not report their size; f_blocks is then 0.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < needed + METADATA:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def _checkpointer() -> Iterator[Any]:
    ocp = prepare()
    with _unchanged_root_logger(), _orbax_checkpointer(ocp) as checkpointer:
        yield checkpointer


def _orbax_checkpointer(ocp: Any) -> Any:
    # With several processes, each process writes a separate folder without waiting for the others.
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process-{here}"
    )
    processes = alone if jax.process_count() > 1 else ocp.options.MultiprocessingOptions()
    # Do not compress: parameters and moments hardly shrink, and compression would take most of the time.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=processes)
    return ocp.Checkpointer(handler, multiprocessing_options=processes)


def _list_files(folder: Path) -> dict[str, tuple[int, str | None]]:
    found: dict[str, tuple[int, str | None]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not files.is_foreign(path):
            size = path.stat().st_size
            sha256 = files.digest(path.read_bytes()) if size <= SMALL else None
            found[path.relative_to(folder).as_posix()] = size, sha256
    return found


def check_files(folder: Path, known: Checkpoint, directory: Path) -> None:
    """Raise Damaged if small files of a checkpoint, or the sizes of large ones, differ from those saved."""
    files.inside(folder, directory)
    for path in folder.rglob("*"):
        is_file = not stat.S_ISDIR(path.lstat().st_mode) and not files.is_foreign(path)
        if is_file and path.relative_to(folder).as_posix() not in known.files:
            raise Damaged(f"{path}: damaged (not a file of this checkpoint)")
    for name, (size, sha256) in known.files.items():
        path = folder / name
        if sha256 is not None:
            files.check_file(path, directory, sha256)
            continue
        with files.open_file(path, directory) as file:
            if os.fstat(file.fileno()).st_size != size:
                raise Damaged(f"{path}: damaged (its size differs)")


def _check_sizes(saved: Any, held: int) -> None:
    """Raise ValueError if the metadata declare arrays larger than memory, or than the files of `held` bytes.

    Reading such arrays would abort the process. Arrays are not compressed.
    """
    sizes = [math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(saved) if x.shape]
    if sum(sizes) > min(held, files.memory()):
        raise ValueError(
            f"the metadata declare arrays of {sum(sizes):,} bytes, more than the files or the memory can hold"
        )


def _checksums(arrays: Any) -> dict[str, int]:
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _checksum(x) for path, x in leaves}


def _checksum(x: Any) -> int:
    whole = not isinstance(x, jax.Array) or x.is_fully_replicated
    total = 0
    for part in [x] if whole else [shard.data for shard in x.addressable_shards]:
        total = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, total)
    return total
