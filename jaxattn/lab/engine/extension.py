"""Extend a finished run by adding steps to its last phase.

Every finished batch resumes from its last state. The result equals that of a single, longer run, because
an extension is allowed only if the measured steps of the longer run begin with those of the shorter run.
A finished batch is kept until its extension is finished.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.manifest import differences
from jaxattn.lab.engine.programs import ProgramCache, Programs
from jaxattn.lab.engine.store import Store
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.storage import manifest
from jaxattn.lab.storage.batch_state import BatchState
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import compile_groups
from jaxattn.lab.study.setting import Cell, Setting
from jaxattn.lab.study.tree import assign


def extended_cells(
    study: Definition, folder: Store, described: Mapping[str, Any], cache: ProgramCache
) -> tuple[list[dict[str, Any]], str]:
    """Return the manifest entries of the cells, including the shorter runs they extend, and the changed key.

    Args:
        study: the study, with the larger number of steps.
        folder: its results folder.
        described: the manifest of a new run of the study.
        cache: cache of compiled programs.

    Returns:
        The entries of `described["cells"]`, and the key that sets the number of steps, or "" if no finished
        run is extended. If a cell extends shorter runs, the field `extends` of its entry maps the config hash
        of each shorter run to its number of steps.

    Raises:
        InputError: the run cannot be extended.
    """
    try:
        known = manifest.find_manifest(folder.directory)
    except Damaged:
        known = None
    if known is None or not folder.batches():
        return described["cells"], ""
    before = {entry["cell"]: entry for entry in known["cells"]}
    steps = _steps(study, known, described)
    if steps is None:
        hashes = {number: entry.get("config_hash") for number, entry in before.items()}
        return [
            entry | _extends(before[entry["cell"]].get("extends", {}))
            if hashes.get(entry["cell"]) == entry["config_hash"]
            else entry
            for entry in described["cells"]
        ], ""
    key, old = steps
    location = f"{folder.directory}: {key}: {old:,} -> {study.base.phases[-1].steps:,}"
    if known["status"] != "finished":
        raise InputError(f"{location}: the {old:,}-step run is not finished; finish it before extending it")
    tree = assign(study.tree, f"phases.{len(study.base.phases) - 1}.steps", old)
    shorter = Definition(tree, study.names)
    cells = []
    for entry, cell, less in zip(described["cells"], study.cells, shorter.cells, strict=True):
        cells.append(entry)
        if cell.config_hash == less.config_hash:
            continue
        _check_rows(location, less.setting, cell.setting)
        earlier = before.get(cell.number, {})
        if earlier.get("config_hash") == less.config_hash:
            cells[-1] = entry | _extends(earlier.get("extends", {}) | {less.config_hash: old})
    _check_states(location, folder, cells)
    if study.custom_kinds:
        _check_programs(location, study.cells, shorter.cells, cache)
    return cells, key


def reopened(batch: Batch, saved: BatchState, tables: Mapping[str, pd.DataFrame]) -> tuple[BatchState, Any]:
    """Reopen a finished batch so that its last phase can be extended. Return the batch's state and tables."""
    phases, probes = batch.group.setting.phases, batch.group.setting.probes
    name = phases[-1].name
    records, tokens = tables["records"], tables["tokens"]
    concluded = {metric for probe in probes.of_phases for metric in probe.metrics}
    is_last = records["phase"] == name
    again = records["metric"].isin(list(BEST)) | (is_last & records["metric"].isin(list(concluded)))
    state = msgspec.structs.replace(
        saved,
        finished=False,
        phase=len(phases) - 1,
        step=int(records.loc[is_last, "step"].max()),
        before=msgspec.structs.replace(saved, before=None),
    )
    if len(tokens):
        tokens = tokens[tokens["phase"] != name]
    return state, {"records": records[~again], "tokens": tokens}


def _extends(shorter: Mapping[str, int]) -> dict[str, Any]:
    return {"extends": dict(shorter)} if shorter else {}


def _steps(
    study: Definition, known: Mapping[str, Any], described: Mapping[str, Any]
) -> tuple[str, int] | None:
    """Return the key that sets the last phase's number of steps, and its old value.

    Return None unless this number is the only setting that changed, and it has increased.
    """
    phase, location = study.base.phases[-1], f"phases.{study.base.phases[-1].name}"
    changed = differences(known["config"], described["config"])
    keys = [line.partition(": ")[0] for line in changed]
    ends = ("steps", "points", phase.end_key)
    if not keys or any(key not in {f"{location}.{name}" for name in ends} for key in keys):
        return None
    if phase.end_key:
        raise InputError(
            f"{'; '.join(changed)}: the phase cannot be extended, because its steps depend on "
            f"{location}.{phase.end_key}; choose another folder with --out"
        )
    old = known["config"]["phases"][-1].get("steps")
    if keys != [f"{location}.steps"] or not isinstance(old, int) or old >= phase.steps:
        return None
    return keys[0], old


def _check_rows(location: str, shorter: Setting, longer: Setting) -> None:
    """Raise InputError unless the longer phase's measured steps begin with those of the shorter phase."""
    less, more = shorter.phases[-1], longer.phases[-1]
    old, new = shorter.probes.steps_of(less), longer.probes.steps_of(more)
    if old == new[: len(old)]:
        return
    per_decade = shorter.probes.per_decade
    count = math.ceil(math.log10(less.steps) * per_decade) if per_decade else 0
    fitting = []
    for k in range(count + 1, 4 * count):
        steps = round(less.steps ** (k / count))
        tried = longer.probes.steps_of(msgspec.structs.replace(more, steps=steps))
        fitting += [steps] if steps > less.steps and old == tried[: len(old)] else []
    near = sorted(sorted(set(fitting), key=lambda steps: abs(steps - more.steps))[:2])
    hint = f"use {' or '.join(f'{steps:,}' for steps in near)} steps, or " if near else ""
    raise InputError(
        f"{location}: a run of {more.steps:,} steps would be measured at different steps from the existing "
        f"run; {hint}choose another folder with --out (with probes.every = K, the number of steps must be a "
        "multiple of K)"
    )


def _check_states(location: str, folder: Store, cells: Sequence[Mapping[str, Any]]) -> None:
    for batch, saved in folder.states().items():
        extends = {str(cell["cell"]): cell.get("extends", {}) for cell in cells}
        shorter = [cell for cell, made in saved.origin.cells.items() if made in extends.get(cell, {})]
        if shorter and not saved.resumable:
            raise InputError(
                f"{location}: {batch} was finished by another version, "
                "so there is no state to resume from; choose "
                "another folder with --out"
            )


def _check_programs(
    location: str, longer: Sequence[Cell], shorter: Sequence[Cell], cache: ProgramCache
) -> None:
    """Raise InputError if custom code in the last phase depends on the phase's number of steps."""
    # A longer run may have the number of steps of another block, so that its cells form other groups.
    group_of = [
        {cell.number: group.number for group in compile_groups(cells) for cell in group.cells}
        for cells in (longer, shorter)
    ]
    pairs = {
        tuple(of[more.number] for of in group_of): (more, less)
        for more, less in zip(longer, shorter, strict=True)
    }
    for pair in pairs.values():
        more, less = (compile_groups([cell])[0] for cell in pair)
        programs = cache.of(more)
        texts = [
            [
                (each.location, each.function.lower(*each.arguments).as_text())
                for each in made.phase_programs(group, 1)
                if each.phase == len(group.setting.phases) - 1
            ]
            for group, made in ((more, programs), (less, Programs(less.setting, programs.shared_data)))
        ]
        for (name, text), (_, other) in zip(*texts, strict=True):
            if text != other:
                raise InputError(
                    f"{location}: {name} depends on the number of steps and cannot be extended; "
                    "choose another folder with --out"
                )
