"""Checkpoints of one batch: arrays and how far it is, in orbax's format, with checksums of their own."""

import importlib
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxattn.errors import RunError


class Position(NamedTuple):
    """How far a batch is: steps taken in its current phase, and the seeds that failed so far."""

    phase: int
    step: int
    failures: list[dict[str, Any]]


def prepare() -> None:
    """Import orbax on the side, which takes as long as many a small program, while programs compile."""
    threading.Thread(target=importlib.import_module, args=("orbax.checkpoint",)).start()


def save(folder: Path, arrays: Any, position: Position | None, keep: int = 1) -> None:
    """Write a checkpoint, and delete the oldest ones but `keep`.

    Args:
        folder: that of a batch.
        arrays: what it continues from; at its end, the trained parameters.
        position: how far it is, None at its end.
        keep: how many checkpoints are left.

    Raises:
        RunError: orbax did not write it.
        OSError: the folder cannot be written; ValueError if the disk is full.
    """
    import orbax.checkpoint as ocp

    # Orbax copies NumPy arrays first; but what lies on devices it takes to be spread over all processes.
    held = arrays if jax.process_count() == 1 else jax.device_get(arrays)
    content = ocp.args.Composite(
        state=ocp.args.PyTreeSave(held),
        position=ocp.args.JsonSave({"crc32": _checksums(arrays)} | (position._asdict() if position else {})),
    )
    with _manager(folder, keep) as manager:
        if not manager.save((manager.latest_step() or 0) + 1, args=content):
            raise RunError(f"{folder}: the checkpoint was not saved; delete this folder and run again")
        manager.wait_until_finished()


def position(folder: Path) -> Position | None:
    """Read the position of the last checkpoint on the way, None if there is none.

    One that holds the end of a batch is deleted: whoever asks did not finish the batch.

    Raises:
        Exception: damage can surface as almost any exception of orbax, tensorstore and JSON readers.
    """
    import orbax.checkpoint as ocp

    content = ocp.args.Composite(position=ocp.args.JsonRestore())
    with _manager(folder) as manager:
        while (step := manager.latest_step()) is not None:
            found = manager.restore(step, args=content)["position"]
            if "step" in found:
                return Position(found["phase"], found["step"], found["failures"])
            manager.delete(step)
    return None


def restore(folder: Path, like: Any) -> Any:
    """Read the arrays of the last checkpoint.

    Args:
        folder: where it is.
        like: arrays, or their shapes and types; JAX's are put on the first device.

    Returns:
        The arrays.

    Raises:
        Exception: damage; ValueError if checksums differ.
    """
    import orbax.checkpoint as ocp

    content = ocp.args.Composite(
        state=ocp.args.PyTreeRestore(like, restore_args=ocp.checkpoint_utils.construct_restore_args(like)),
        position=ocp.args.JsonRestore(),
    )
    with _manager(folder) as manager:
        restored = manager.restore(manager.latest_step(), args=content)
    if _checksums(restored["state"]) != restored["position"]["crc32"]:
        raise ValueError("its checksums differ")
    return restored["state"]


def keep_last(folder: Path) -> None:
    """Delete all checkpoints but the last."""
    with _manager(folder) as manager:
        for step in manager.all_steps()[:-1]:
            manager.delete(step)


@contextmanager
def _manager(folder: Path, keep: int = 1) -> Iterator[Any]:
    import orbax.checkpoint as ocp

    # A process among many writes a folder of its own, and waits for no other.
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process-{here}"
    )
    processes = alone if jax.process_count() > 1 else ocp.options.MultiprocessingOptions()
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        create=False,
        enable_async_checkpointing=False,
        multiprocessing_options=processes,
    )
    folder.mkdir(parents=True, exist_ok=True)
    handlers = {
        # Parameters and moments hardly compress, and trying takes most of the time.
        "state": ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=processes),
        "position": ocp.JsonCheckpointHandler(multiprocessing_options=processes),
    }
    manager = ocp.CheckpointManager(folder, options=options, item_handlers=handlers)
    try:
        yield manager
    finally:
        manager.close()


def _checksums(arrays: Any) -> list[int]:
    return [_checksum(x) for x in jax.tree.leaves(arrays)]


def _checksum(x: Any) -> int:
    """Check the bytes as they lie in memory, device after device: copies would take longer than the sum."""
    whole = not isinstance(x, jax.Array) or x.is_fully_replicated
    total = 0
    for part in [x] if whole else [shard.data for shard in x.addressable_shards]:
        total = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, total)
    return total
