"""What a run says of itself: config, versions, source, device; and how two configs differ."""

import subprocess
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jaxattn.data.readers import LOCATIONS
from jaxattn.study.check import plain
from jaxattn.study.config import Sweep
from jaxattn.study.grid import GRID, PRESENTATION

FORMAT = 3
PACKAGES = ("jaxattn", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy", "scipy", "pandas")


def describe(sweep: Sweep, cells: list[dict[str, Any]], config_hash: str, command: str) -> dict[str, Any]:
    """Describe a run: config and hash, command, versions, source commit, device, time of start."""
    device = jax.devices()[0]
    return {
        "format": FORMAT,
        "name": sweep.name,
        "description": sweep.description,
        "status": "running",
        "command": command,
        "config": plain(sweep),
        "config_hash": config_hash,
        "cells": cells,
        "seeds": list(sweep.seed_numbers),
        "versions": {name: _version(name) for name in PACKAGES},
        "git_commit": _git_commit(),
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "dtype": sweep.dtype,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "wall_time_s": 0.0,
        "failures": [],
        "errors": [],
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """List the settings that differ, as `key: old -> new`, leaving out what may change."""
    flat_old, flat_new = _flat(old), _flat(new)
    keys = sorted(flat_old.keys() | flat_new.keys())
    allowed = tuple(key for key in PRESENTATION if key not in (*GRID, "blocks"))
    return [
        f"{key}: {flat_old.get(key, 'absent')} -> {flat_new.get(key, 'absent')}"
        for key in keys
        if flat_old.get(key) != flat_new.get(key)
        and key.split(".")[0] not in allowed
        and key not in {f"data.{location}" for location in LOCATIONS}
    ]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    entries: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        entries = ((entry.get("name", number), entry) for number, entry in enumerate(tree))
    else:
        return {prefix[:-1]: tree}
    return {key: x for name, entry in entries for key, x in _flat(entry, f"{prefix}{name}.").items()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    source = Path(__file__).parent
    command = ["git", "-C", str(source), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
