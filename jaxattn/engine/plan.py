"""What a sweep will do, before it is run: cells, groups of one shape, units, memory, what is done."""

from pathlib import Path

import pandas as pd

from jaxattn.data.text import silent
from jaxattn.engine import memory
from jaxattn.engine.groups import compile_groups, rehearse_groups
from jaxattn.engine.manifest import describe
from jaxattn.engine.run import cut_batches
from jaxattn.engine.runtime import estimate_runtime
from jaxattn.engine.store import Store
from jaxattn.study.definition import Definition


def plan(
    study: Definition, directory: Path, max_memory: int | None = None, *, quick: bool = False
) -> tuple[list[pd.DataFrame], str]:
    """Lay out a study.

    Args:
        study: what would run.
        directory: the results folder it would run in.
        max_memory: bytes that may be used on a device; chosen for the device by default.
        quick: leave out memory and time, for which every group is compiled and tried.

    Returns:
        A table of the cells: settings, group, seeds, and how many of them are done. A table of the groups,
        each of which is one compiled program for every phase: its cells, which of their numbers are lanes of
        that program, lanes, lanes that run together, batches, the memory that a device needs, and about how
        long what is left will take. And a sentence on the whole.

    Raises:
        InputError: a cell whose sizes do not fit, or that does not fit in memory; a folder of another config.
    """
    folder = Store(directory)
    found = compile_groups(study.cells)
    rehearse_groups(study, found, silent)
    known = folder.join(describe(study, "jaxattn run SWEEP"), accept_code=True)
    _, cut = cut_batches(study, found, folder, known, max_memory)
    groups = {group.number: group for group in found}
    cells, rows, seconds = [], [], 0.0
    for number, group in groups.items():
        own = [batch for batch in cut if batch.group.number == number]
        width = max(len(batch.lanes) for batch in own)
        for cell in group.cells:
            holding = [batch for batch in own if cell in batch.cells]
            done = sum(len(batch.seeds) for batch in holding if folder.is_marked(batch.name))
            seeds = sum(len(batch.seeds) for batch in holding)
            cells.append(
                {"cell": cell.number, **cell.settings, "group": number, "done": f"{done} of {seeds}"}
            )
        left = [batch for batch in own if not folder.is_marked(batch.name)]
        row = {
            "group": number,
            "cells": len(group.cells),
            "vmapped": ", ".join(["seed", *(group.key(path) for path in group.varying)]),
            "lanes": sum(len(batch.lanes) for batch in own),
            "together": width,
            "batches": len(own),
        }
        if not quick:
            lanes = sum(len(batch.lanes) for batch in left)
            time = estimate_runtime(group, list(left[0].seeds), lanes, len(left)) if left else 0.0
            needed = memory.predict(group).of(width)
            row |= {"memory": f"{needed / 2**20:,.0f} MiB", "time": duration(time)}
            seconds += time
        rows.append(row)
    done = sum(folder.is_marked(batch.name) for batch in cut)
    whole = (
        f"{study.name}: {len(cells)} cells in {len(rows)} groups, {len(cut)} batches, {done} of them done"
        + ("" if quick else f", about {duration(seconds)} left")
    )
    tables = [pd.DataFrame(cells).sort_values("cell", ignore_index=True), pd.DataFrame(rows)]
    return tables, whole


def duration(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
