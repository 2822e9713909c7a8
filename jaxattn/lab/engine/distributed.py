"""Distributed studies: each process runs one shard and then waits for the other processes.

The processes communicate only through a results folder or bucket that they share. If one process is killed,
the others continue.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage.folder import ResultsFolder, results_folder
from jaxattn.lab.study.definition import Definition

# Environment variables set by launchers: the number of processes, the index of this process among all
# processes and on its host, and a variable that exists only within a launched task. Slurm also sets the first
# three in the job script.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST"),
)


def read_process(text: str) -> tuple[int, int]:
    """Return the shard to run in this process, (I + 1, N).

    Args:
        text: "auto" for processes started by Slurm or Open MPI; otherwise "N,I", where N is the number of
            processes and I is the index of this process, counted from 0. A leading address,
            "HOST:PORT,N,I", is ignored.

    Raises:
        InputError: `text` has neither form, or no launcher is detected.
    """
    if text == "auto":
        process, processes = _of_cluster()
    else:
        *address, count, which = ["", *text.split(",")]
        if len(address) > 2 or not (count.strip().isdecimal() and which.strip().isdecimal()):
            raise InputError(
                f"--distributed {text}: expected auto, or N,I for N processes, where I is the index of this "
                "process, counted from 0; for example 2,0"
            )
        process, processes = int(which), int(count)
    if process >= processes:
        raise InputError(f"--distributed {text}: the index must be between 0 and {processes - 1}")
    return process + 1, processes


def wait(
    study: Definition, directory: Path, shards: int, limit: float, note: Callable[[str], None]
) -> list[Path]:
    """Wait until all shards in a directory are finished, and return their folders.

    `limit` is the maximum time in seconds that an unfinished shard may go without a running process.
    `note` is called with one line for each unfinished shard.

    Raises:
        InputError: a shard has a different config.
        RunError: a shard had no running process for too long, or the shards use different batch sizes.
    """
    whole = results_folder(directory)
    directory = Path(whole.absolute)
    folders = [shard_folder(directory, (number, shards)) for number in range(1, shards + 1)]
    cells = [{"cell": cell.number, "config_hash": cell.config_hash} for cell in study.cells]
    described, seeds = {"config": study.config, "cells": cells}, set(study.seeds)
    at_work = dict.fromkeys(folders, time.monotonic())
    traces: dict[Path, tuple[bool, list[Any]]] = {}
    widths = set()
    while at_work:
        for folder in list(at_work):
            location = results_folder(folder)
            before, now = traces.get(folder), location.trace()
            traces[folder], is_locked = now, now[0]
            known = None if is_locked or now == before else _manifest(location, described)
            if known and known["status"] == "finished" and seeds <= set(known["seeds"]):
                widths.add(tuple(known["widths"]))
                del at_work[folder]
            elif is_locked or now != before:
                at_work[folder] = time.monotonic()
            elif time.monotonic() - at_work[folder] > limit:
                raise RunError(
                    f"{location.name}: not finished, and no process has worked on it for {limit:.0f} s; run "
                    "the same command again (hosts that share neither a folder nor a bucket need --shard I/N "
                    "instead)"
                )
            if folder in at_work and before is None:
                note(f"{location.name}: waiting for this shard to finish")
        if at_work:
            time.sleep(whole.look_s)
    if len(widths) > 1:
        raise RunError(
            f"{whole.absolute}: the shards use different batch sizes, because the hosts differ in "
            "memory; choose another folder and use the same --max-memory for all processes"
        )
    return folders


def shard_folder(directory: Path, shard: tuple[int, int]) -> Path:
    """Return the folder of a shard: a subfolder, or the results folder itself if there is only one shard."""
    return directory if shard == (1, 1) else directory / f"shard-{shard[0]}-of-{shard[1]}"


def _manifest(folder: ResultsFolder, described: dict[str, Any]) -> Mapping[str, Any] | None:
    return Store(folder.fetch()).existing(described)


def _of_cluster() -> tuple[int, int]:
    """Return the index of this process and the number of processes, and select a GPU for this process."""
    given = next((names for names in _LAUNCHERS if all(name in os.environ for name in names)), None)
    if given is None:
        raise InputError(
            "--distributed auto: no environment variables of Slurm (srun) or Open MPI (mpirun) are set; "
            "pass --distributed N,I instead"
        )
    texts = [os.environ[name] for name in given[:3]]
    if not all(text.isdecimal() for text in texts):
        named = ", ".join(f"{name}={text}" for name, text in zip(given, texts, strict=False))
        raise InputError(
            f"--distributed auto: expected integers, got {named}; pass --distributed N,I instead"
        )
    processes, process, local = map(int, texts)
    for platform in ("cuda", "rocm"):
        jax.config.update(f"jax_{platform}_visible_devices", str(local))
    return process, processes
