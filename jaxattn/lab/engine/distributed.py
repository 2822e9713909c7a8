"""Many processes, on hosts that share a folder or a bucket: each runs a shard, then waits for the others.

Lanes never talk to each other, so neither do the processes: they meet in the results folder alone. One that
is killed takes no other with it, and continues when it is started again, while the others run on.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage import bucket, lock
from jaxattn.lab.storage.objects import is_address, shown
from jaxattn.lab.study.definition import Definition

LOOK_S, LOOK_IN_BUCKET_S = 0.5, 5.0
# Variables that launchers set: how many processes there are, which one this is, and which one of its host.
# Slurm sets the first three in the script of a job as well, and the last one for tasks of srun alone.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST"),
)


def read_process(text: str) -> tuple[int, int]:
    """Tell which shard this process is.

    Args:
        text: "auto" for processes that Slurm or Open MPI started, else "N,I": how many processes there are,
            and which one this is from 0. An address in front, "HOST:PORT,N,I", is not needed.

    Returns:
        I + 1 and N, as for a shard.

    Raises:
        InputError: text that says neither, or no cluster that tells.
    """
    if text == "auto":
        process, processes = _of_cluster()
    else:
        *address, count, which = ["", *text.split(",")]
        if len(address) > 2 or not (count.strip().isdecimal() and which.strip().isdecimal()):
            raise InputError(
                f"--distributed {text}: expected auto, or N,I: how many processes there are, and which one "
                "this is from 0, for example 2,0"
            )
        process, processes = int(which), int(count)
    if process >= processes:
        raise InputError(f"--distributed {text}: processes are numbered 0 to {processes - 1}")
    return process + 1, processes


def wait(
    study: Definition, directory: Path, shards: int, limit: float, note: Callable[[str], None]
) -> list[Path]:
    """Wait until all shards of a folder are finished, as long as the slowest needs.

    Args:
        study: what they run.
        directory: the folder of their folders.
        shards: how many there are.
        limit: seconds for which a shard may be away: not finished, and no process at work in its folder.
        note: told what is waited for.

    Returns:
        The folders of the shards.

    Raises:
        InputError: a shard of another config.
        RunError: a shard was away for too long, or the shards do not fit together.
    """
    directory = directory if is_address(directory) else Path(os.path.abspath(directory))
    folders = [shard_folder(directory, (number, shards)) for number in range(1, shards + 1)]
    cells = [{"cell": cell.number, "config_hash": cell.config_hash} for cell in study.cells]
    described, seeds = {"config": study.config, "cells": cells}, set(study.seeds)
    at_work = dict.fromkeys(folders, time.monotonic())
    traces: dict[Path, list[Any]] = {}
    widths = set()
    while at_work:
        for folder in list(at_work):
            before, traces[folder] = traces.get(folder), _traces(folder)
            # A lock in a bucket is an object, whose replacements are traces too.
            in_bucket = is_address(folder)
            locked = not in_bucket and lock.is_locked(folder)
            same = in_bucket and traces[folder] == before
            known = None if locked or same else _begun(folder, described)
            if known and known["status"] == "finished" and seeds <= set(known["seeds"]):
                widths.add(tuple(known["widths"]))
                del at_work[folder]
            elif locked or traces[folder] != before:
                at_work[folder] = time.monotonic()
            elif time.monotonic() - at_work[folder] > limit:
                raise RunError(
                    f"{shown(folder)}: not finished, and no process has worked there for {limit:.0f} s; "
                    "run the same command again (where hosts share neither folder nor bucket: --shard I/N "
                    "on each)"
                )
            if folder in at_work and before is None:
                note(f"{shown(folder)}: waiting for it to be finished")
        if at_work:
            time.sleep(LOOK_IN_BUCKET_S if is_address(directory) else LOOK_S)
    if len(widths) > 1:
        raise RunError(
            f"{shown(directory)}: its shards are cut differently, for hosts with other memory; choose "
            "another folder and give all processes the same --max-memory"
        )
    return folders


def shard_folder(directory: Path, shard: tuple[int, int]) -> Path:
    """Name the folder of a shard; a study in one piece needs none of its own."""
    return directory if shard == (1, 1) else directory / f"shard-{shard[0]}-of-{shard[1]}"


def _begun(folder: Path, described: dict[str, Any]) -> Mapping[str, Any] | None:
    return Store(bucket.fetched(folder, tables=False)).begun(described)


def _traces(directory: Path) -> list[Any]:
    """When something was last written where a run writes; all that tells of it where there are no locks."""
    if is_address(directory):
        return bucket.traces(directory)
    paths = [directory / name for name in (".", "metrics.jsonl", "manifest.json", "parts", "checkpoints")]
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


def _of_cluster() -> tuple[int, int]:
    """Return the number of this process and how many there are, and take its own GPU of the host.

    Raises:
        InputError: no launcher that is known, or variables of it that are not numbers.
    """
    given = next((names for names in _LAUNCHERS if all(name in os.environ for name in names)), None)
    if given is None:
        raise InputError(
            "--distributed auto: the environment has no variables of Slurm (srun) or Open MPI (mpirun); "
            "give N,I"
        )
    texts = [os.environ[name] for name in given[:3]]
    if not all(text.isdecimal() for text in texts):
        named = ", ".join(f"{name}={text}" for name, text in zip(given, texts, strict=False))
        raise InputError(f"--distributed auto: {named}: expected numbers; give N,I")
    processes, process, local = map(int, texts)
    for platform in ("cuda", "rocm"):
        jax.config.update(f"jax_{platform}_visible_devices", str(local))
    return process, processes
