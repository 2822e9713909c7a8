"""Checkpoints: trees of arrays in orbax's format, with checksums of their own."""

import errno
import importlib
import logging
import math
import os
import resource
import stat
import sys
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import files
from jaxattn.lab.storage.batch_state import Checkpoint
from jaxattn.lab.storage.files import Damaged

# What orbax and tensorstore need to read the arrays is in files smaller than this, and arrays are summed.
SMALL = 2**20
NOT_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EIO)
HANDLES = 64
# Bytes on the disk of the files of a checkpoint that hold no arrays.
BESIDE = 2**17


@cache
def prepare() -> Any:
    """Import orbax before it is needed: that takes as long as compiling many a small program.

    What fails in its threads is raised here too and becomes one line, so nothing else is printed about it.
    """
    imported = importlib.import_module("orbax.checkpoint")
    logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
    shown = sys.unraisablehook

    def hook(raised: Any) -> None:
        # Where a checkpoint fails, tensorstore may still answer to the event loop that has ended.
        if str(raised.exc_value) != "Event loop is closed":
            shown(raised)

    sys.unraisablehook = hook
    return imported


def check_handles() -> None:
    """Raise RunError if too few files may be open, of which orbax takes no notice until it fails."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError):
        if allowed != resource.RLIM_INFINITY and allowed - len(os.listdir("/dev/fd")) < HANDLES:
            raise RunError(f"only {allowed} files may be open at a time; allow more with: ulimit -n 1024")


def save(folder: Path, arrays: Any) -> Checkpoint:
    """Write arrays to a folder, in place of what is there; its name is the checkpoint's number.

    Raises:
        OSError: the folder cannot be written, or the disk has no room for it.
        ValueError: the disk became full on the way.
    """
    ocp = prepare()
    check_handles()
    _check_room(folder, arrays)
    # Orbax copies NumPy arrays first; but what lies on devices it takes to be spread over all processes.
    held = arrays if jax.process_count() == 1 else jax.device_get(arrays)
    with _checkpointer() as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(held), force=True)
    return Checkpoint(int(folder.name), _checksums(arrays), _listed(folder))


def restore(folder: Path, known: Checkpoint, directory: Path, like: Any = None) -> Any:
    """Read arrays.

    Args:
        folder: where they are.
        known: what their state says of them.
        directory: the results folder, outside of which nothing is read.
        like: a tree of arrays, or of their shapes and types. If None, dictionaries by their names.

    Returns:
        The tree, of NumPy arrays: what is short of memory on a device is no damage of a file.

    Raises:
        Damaged: they are not what was saved.
        InputError: they cannot be read.
    """
    ocp = prepare()
    check_handles()
    _check_files(folder, known, directory)
    try:
        with _checkpointer() as checkpointer:
            held = checkpointer.metadata(folder).item_metadata.tree
            _check_sizes(held)
            tree = held if like is None else like
            each = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            arrays = checkpointer.restore(folder, args=ocp.args.PyTreeRestore(like, restore_args=each))
    # Damage can surface as almost any exception of orbax and tensorstore; so can what is no damage.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if getattr(error, "errno", None) in NOT_DAMAGE or "Too many open files" in str(error):
            raise InputError(f"{folder}: cannot be read: {reason}; mend this and repeat") from None
        raise Damaged(f"{folder}: damaged ({reason})") from None
    if _checksums(arrays) != known.arrays:
        raise Damaged(f"{folder}: damaged (the checksums of its arrays differ)")
    return arrays


def _check_room(folder: Path, arrays: Any) -> None:
    """Raise OSError if a disk has no room for arrays; threads of orbax print tracebacks where it is full."""
    disk = os.statvfs(next(parent for parent in folder.parents if parent.exists()))
    needed = sum(np.size(x) * np.dtype(getattr(x, "dtype", float)).itemsize for x in jax.tree.leaves(arrays))
    # Some file systems do not know how large they are.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < needed + BESIDE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _checkpointer() -> Any:
    ocp = prepare()
    # A process among many writes a folder of its own, and waits for no other.
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process-{here}"
    )
    processes = alone if jax.process_count() > 1 else ocp.options.MultiprocessingOptions()
    # Parameters and moments hardly compress, and trying takes most of the time.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=processes)
    return ocp.Checkpointer(handler, multiprocessing_options=processes)


def _listed(folder: Path) -> dict[str, tuple[int, str | None]]:
    found: dict[str, tuple[int, str | None]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            sha256 = files.digest(path.read_bytes()) if size <= SMALL else None
            found[path.relative_to(folder).as_posix()] = size, sha256
    return found


def _check_files(folder: Path, known: Checkpoint, directory: Path) -> None:
    """Compare sizes, and the small files, so that orbax is given nothing that it stumbles over."""
    files.inside(folder, directory)
    for path in folder.rglob("*"):
        if not stat.S_ISDIR(path.lstat().st_mode) and path.relative_to(folder).as_posix() not in known.files:
            raise Damaged(f"{path}: damaged (no file of this checkpoint)")
    for name, (size, sha256) in known.files.items():
        path = folder / name
        if sha256 is not None:
            files.check(path, directory, sha256)
            continue
        with files.opened(path, directory) as file:
            if os.fstat(file.fileno()).st_size != size:
                raise Damaged(f"{path}: damaged (its size differs)")


def _check_sizes(held: Any) -> None:
    """Raise ValueError if arrays are said to be larger than memory; what allocates them would abort."""
    sizes = [math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(held) if x.shape]
    if sum(sizes) > files.memory():
        raise ValueError(f"its arrays are said to have {sum(sizes):,} bytes, more than memory holds")


def _checksums(arrays: Any) -> dict[str, int]:
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _checksum(x) for path, x in leaves}


def _checksum(x: Any) -> int:
    """Check the bytes as they lie in memory, device after device: copies would take longer than the sum."""
    whole = not isinstance(x, jax.Array) or x.is_fully_replicated
    total = 0
    for part in [x] if whole else [shard.data for shard in x.addressable_shards]:
        total = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, total)
    return total
