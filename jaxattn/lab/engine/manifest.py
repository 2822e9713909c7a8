"""Manifest of a run (config, versions, source and device), and comparison of two configs."""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxattn.base import Measurement, Phase
from jaxattn.core import backend
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.storage import provenance
from jaxattn.lab.storage.manifest import FORMAT
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.effective import changed_tables
from jaxattn.lab.study.grid import GRID, PRESENTATION
from jaxattn.lab.study.inputs import source_hashes
from jaxattn.lab.study.randomness import varying
from jaxattn.lab.study.setting import Cell, Setting
from jaxattn.lab.texts.source import Source

PACKAGES = ("jaxattn", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy", "scipy", "pandas")
INERT = frozenset(f"data.{name}" for name in Source.inert)


def new_manifest(study: Definition, command: str, shard: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Build the manifest of a new run: config and hash, command, versions, commit, device and start time."""
    source, config = provenance.installed(), study.config
    cells = [
        {"cell": cell.number, "settings": cell.settings, "config_hash": cell.config_hash}
        | _randomness(cell.setting)
        | _tables(config, cell)
        for cell in study.cells
    ]
    return {
        "format": FORMAT,
        "name": study.name,
        "description": study.description,
        "status": "running",
        "command": command,
        "config": config,
        "config_hash": study.config_hash,
        "cells": cells,
        "seeds": list(study.seeds),
        "shard": list(shard),
        "widths": [],
        "batches": [],
        "elsewhere": [],
        "labels": labels(study),
        "scales": scales(study),
        "code": source_hashes(study),
        "versions": {name: provenance.version(name) for name in PACKAGES},
        "git_commit": source["commit"],
        "made_by": [source],
        "device": devices.describe_devices(),
        "pinned": dict(backend.PINNED),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "dtype": study.dtype,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "wall_time_s": 0.0,
        "peak_memory_mib": None,
        "failures": [],
        "errors": [],
    }


def of_batches(widths: list[int], every: list[Batch], batches: list[Batch]) -> dict[str, Any]:
    """Build the manifest entries that describe how a study is split into batches.

    The entries are the batch size of each group, the batches of this shard, and the names of all other
    batches.
    """
    elsewhere = {batch.name for batch in every} - {batch.name for batch in batches}
    return {"widths": widths, "batches": batch_entries(batches), "elsewhere": sorted(elsewhere)}


def batch_entries(batches: list[Batch]) -> list[dict[str, Any]]:
    """Return the name, cells and seeds of each batch."""
    return [
        {"name": batch.name, "cells": [cell.number for cell in batch.cells], "seeds": list(batch.seeds)}
        for batch in batches
    ]


def devices_since(known: Mapping[str, Any], note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the devices on which a run was resumed, as the list `continued_on` for its manifest.

    The list excludes the device on which the run started. If the current device differs from the last one, it
    is appended and reported.
    """
    every = [known["device"], *known.get("continued_on", ())]
    if (now := devices.describe_devices()) != every[-1]:
        words = (f"{device.get('count')} × {device.get('kind')}" for device in (every[-1], now))
        note("started on {}, resumed on {}: numbers may differ in their last digits".format(*words))
        every.append(now)
    return every[1:]


def note_unhashed(study: Definition, code: Mapping[str, str | None], note: Callable[[str], None]) -> None:
    """Report custom code that cannot be hashed, with the reason and the option that allows resuming."""
    for name in (name for name, digest in code.items() if digest is None):
        reason = study.names.unhashable(name)
        note(
            f"{name}: its code has no hash, because {reason}, which it uses, has none; pass that as a "
            "setting, or resume this run with accept_code=True (command line: --accept-code)"
        )


def _tables(config: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    changed = changed_tables(config, cell.settings, cell.tables)
    return {"tables": changed} if changed else {}


def _randomness(setting: Setting) -> dict[str, list[str]]:
    if not setting.hold:
        return {}
    return {"hold": list(setting.hold), "varies": varying(setting.data, setting.phases, setting.hold)}


def labels(study: Definition) -> dict[str, str]:
    """Return the metric labels that the phases and probes declare, keyed by metric.

    A phase also has the labels of its base classes.
    """
    kinds = dict.fromkeys(type(phase) for cell in study.cells for phase in cell.setting.phases)
    bases = [base for kind in kinds for base in reversed(kind.__mro__) if issubclass(base, Phase)]
    declared = [base.labels for base in bases]
    declared += [probe.labels for probe in _probes(study)]
    return {name: label for names in declared for name, label in names.items()}


def scales(study: Definition) -> dict[str, list[Any]]:
    """Return the metric scales that the probes declare, as [kind, low, high]; None for an infinite bound."""
    return {
        name: [found.kind, *(x if math.isfinite(x) else None for x in (found.low, found.high))]
        for probe in _probes(study)
        for name, found in probe.scales.items()
    }


def _probes(study: Definition) -> list[Measurement]:
    probes = study.cells[0].setting.probes
    return [*probes.at_steps, *probes.of_phases]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the settings that differ, as `key: old -> new`, except those that may change on resuming."""
    flat_old, flat_new = _flat(old), _flat(new)
    keys = sorted(flat_old.keys() | flat_new.keys())
    allowed = tuple(key for key in PRESENTATION if key not in (*GRID, "blocks"))
    return [
        f"{key}: {flat_old.get(key, 'absent')} -> {flat_new.get(key, 'absent')}"
        for key in keys
        if flat_old.get(key) != flat_new.get(key) and key.split(".")[0] not in allowed and key not in INERT
    ]


def code_changes(known: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> str:
    """Return a message listing custom code that has changed or cannot be compared, or "" if there is none."""
    shared = [name for name in now if any(name in one for one in known)]
    unknown = [name for name in shared if now[name] is None]
    changed = [name for name in shared if any(one.get(name, now[name]) != now[name] for one in known)]
    if unknown:
        return f"{', '.join(unknown)} cannot be compared with the code that started this run"
    return f"{', '.join(changed)} changed since this run started" if changed else ""


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    entries: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        entries = ((entry.get("name", number), entry) for number, entry in enumerate(tree))
    else:
        return {prefix[:-1]: tree}
    return {key: x for name, entry in entries for key, x in _flat(entry, f"{prefix}{name}.").items()}
