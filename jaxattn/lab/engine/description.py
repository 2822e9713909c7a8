"""Descriptions that are stored with results: the content of study.json, and the origin of a batch."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jaxattn.base import Measurement, Phase
from jaxattn.core import backend
from jaxattn.core.errors import plain
from jaxattn.core.scales import Scale
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.probes.standard import LOSSES
from jaxattn.lab.storage import provenance
from jaxattn.lab.storage.batch_record import FORMAT, Device, Origin
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.effective import changed_tables
from jaxattn.lab.study.identity import Identity, package_hash
from jaxattn.lab.study.randomness import varying
from jaxattn.lab.study.setting import Cell, Setting, pads_vocabulary

PACKAGES = ("jaxattn", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy", "scipy", "pandas")


def study_content(
    study: Definition,
    command: str,
    identity: Mapping[int, Identity],
    code: Mapping[str, str | None],
    older: Mapping[int, Mapping[str, Sequence[int]]],
) -> dict[str, Any]:
    """Return the content of study.json: the config, and the identities of the runs that it asks for.

    Args:
        study: the study.
        command: the command line.
        identity: identity of each cell, by its index.
        code: hashes of custom code and of input files, by name.
        older: for each cell, keys of runs of older code to use, each with its seeds.
    """
    config = study.config
    cells = [
        {
            "cell": cell.number,
            "settings": cell.settings,
            "key": identity[cell.number].key,
            "config_hash": cell.config_hash,
        }
        | ({"older": found} if (found := older.get(cell.number)) else {})
        | _randomness(cell.setting)
        | _tables(config, cell)
        for cell in study.cells
    ]
    return {
        "format": FORMAT,
        "name": study.name,
        "description": study.description,
        "command": plain(command),
        "config": config,
        "config_hash": study.config_hash,
        "cells": cells,
        "seeds": list(study.seeds),
        "labels": labels(study),
        "scales": scales(study),
        "code": dict(code),
        "dtype": study.dtype,
    }


def origin(command: str, code: Mapping[str, str | None], batch: Batch) -> Origin:
    """Return how this process computes a batch."""
    setting = batch.group.setting
    return Origin(
        package=provenance.installed(),
        computing=package_hash(),
        code=dict(code),
        versions={name: provenance.version(name) for name in PACKAGES},
        device=msgspec.convert(devices.describe_devices(), Device),
        pinned=dict(backend.PINNED),
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        width=batch.width,
        padded_vocab_size=setting.data.vocab_size if pads_vocabulary(setting) else None,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=plain(command),
    )


def note_unhashed(study: Definition, code: Mapping[str, str | None], note: Callable[[str], None]) -> None:
    """Report custom code that cannot be hashed, with the reason."""
    for name in (name for name, digest in code.items() if digest is None):
        reason = study.names.unhashable(name)
        note(
            f"{name}: its code has no hash, because {reason}, which it uses, has none, so another process "
            "will not find these results again; pass that as a setting"
        )


def _tables(config: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    changed = changed_tables(config, cell.settings, cell.tables)
    return {"tables": changed} if changed else {}


def _randomness(setting: Setting) -> dict[str, list[str]]:
    if not setting.hold:
        return {}
    return {"hold": list(setting.hold), "varies": varying(setting.data, setting.phases, setting.hold)}


def labels(study: Definition) -> dict[str, str]:
    """Return the metric labels that the phases and probes declare, keyed by metric."""
    return {name: label for each in _measuring(study) for name, label in each.labels.items()}


def scales(study: Definition) -> dict[str, list[Any]]:
    """Return the metric scales that the phases, probes and losses declare, keyed by metric.

    Returns:
        [kind, low, high], with None for an infinite bound. If cells have different losses, the bounds of the
        loss contain those of all of them.
    """
    lows, highs = zip(*(cell.setting.loss.bounds for cell in study.cells), strict=True)
    found = dict.fromkeys(LOSSES, Scale(low=min(lows), high=max(highs)))
    found |= {name: own for each in _measuring(study) for name, own in each.scales.items()}
    return {
        name: [own.kind, *(x if math.isfinite(x) else None for x in (own.low, own.high))]
        for name, own in found.items()
        if own != Scale()
    }


def _measuring(study: Definition) -> list[type[Phase] | Measurement]:
    """Return the classes of the phases, each after its base classes, and the probes."""
    kinds = dict.fromkeys(type(phase) for cell in study.cells for phase in cell.setting.phases)
    bases = [base for kind in kinds for base in reversed(kind.__mro__) if issubclass(base, Phase)]
    probes = study.cells[0].setting.probes
    return [*bases, *probes.at_steps, *probes.of_phases]
