"""What a sweep will do, before it is run: cells, groups of one shape, units, memory, what is done."""

from pathlib import Path

import pandas as pd

from jaxattn.study import memory, pace, units
from jaxattn.study.config import Sweep
from jaxattn.study.groups import Group
from jaxattn.study.run import lane_widths
from jaxattn.study.store import Store


def overview(
    sweep: Sweep, directory: Path, max_memory: int | None = None, *, quick: bool = False
) -> tuple[list[pd.DataFrame], str]:
    """Lay out a sweep.

    Args:
        sweep: what would run.
        directory: the results folder it would run in.
        max_memory: bytes that may be used on a device; chosen for the device by default.
        quick: leave out memory and time, for which every group is compiled and tried.

    Returns:
        A table of the cells: settings, group, seeds, and how many of them are done. A table of the groups,
        each of which is one compiled program for every phase: its cells, which of their numbers are lanes of
        that program, lanes, lanes that run together, units, the memory that a device needs, and about how
        long what is left will take. And a sentence on the whole.

    Raises:
        InputError: a cell whose sizes do not fit, or that does not fit in memory.
    """
    folder = Store(directory)
    widths = lane_widths(sweep, folder, max_memory)
    cut = units.plan(sweep, folder.units(), widths)
    groups = {unit.group.number: unit.group for unit in cut}
    cells, rows, seconds = [], [], 0.0
    for number, group in groups.items():
        own = [unit for unit in cut if unit.group.number == number]
        width = max(len(unit.lanes) for unit in own)
        for cell in group.cells:
            holding = [unit for unit in own if cell in unit.cells]
            done = sum(len(unit.seeds) for unit in holding if folder.is_marked(unit.name))
            seeds = sum(len(unit.seeds) for unit in holding)
            cells.append(
                {"cell": cell.number, **cell.settings, "group": number, "done": f"{done} of {seeds}"}
            )
        left = [unit for unit in own if not folder.is_marked(unit.name)]
        row = {
            "group": number,
            "cells": len(group.cells),
            "vmapped": ", ".join(["seed", *(name(group, key) for key in group.varying)]),
            "lanes": sum(len(unit.lanes) for unit in own),
            "together": width,
            "units": len(own),
        }
        if not quick:
            lanes = sum(len(unit.lanes) for unit in left)
            time = pace.seconds(group, list(left[0].seeds), lanes, len(left)) if left else 0.0
            needed = memory.predict(group).of(width)
            row |= {"memory": f"{needed / 2**20:,.0f} MiB", "time": duration(time)}
            seconds += time
        rows.append(row)
    done = sum(folder.is_marked(unit.name) for unit in cut)
    whole = (
        f"{sweep.name}: {len(cells)} cells in {len(rows)} groups, {len(cut)} units, {done} of them done"
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


def name(group: Group, key: tuple[str, str]) -> str:
    """Write the key of a number as a sweep file does."""
    place, field = key
    table, _, index = place.partition(".")
    return f"phases.{group.config.phases[int(index)].name}.{field}" if index else f"{table}.{field}"
