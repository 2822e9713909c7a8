"""The settings with which each cell of a results folder ran."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from jaxattn.lab.study.tree import assign, flatten, merge, parents_first

# Parts of a config that determine the results of a cell.
_PARTS = ("dtype", "hold", "data", "model", "loss", "phases", "probes")


def effective_tables(config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a study with the settings of one cell, including the defaults of its kinds.

    Args:
        config: the config in a manifest, which contains the defaults of the kinds that it names.
        entry: the entry of the cell in the manifest. `settings` contains the values of its block and axes,
            and `tables` the parts whose defaults these values change; see `changed_tables`.
    """
    settings = entry["settings"]
    tables: dict[str, Any] = merge(config, config.get("blocks", {}).get(settings.get("block"), {}))
    for key, value in parents_first(settings):
        if key.partition(".")[0] in _PARTS:
            tables = assign(tables, key, value)
    return {**tables, **entry.get("tables", {})}


def as_written(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with the options of optimisers next to the other keys of a phase, as in a sweep file."""
    phases = [
        {key: x for key, x in phase.items() if key != "options"} | phase.get("options", {})
        if isinstance(phase, Mapping)
        else phase
        for phase in tables.get("phases", ())
    ]
    return {**tables, "phases": phases}


def changed_tables(
    config: Mapping[str, Any], settings: Mapping[str, Any], tables: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parts of a cell's tables that do not follow from the config and the settings of the cell.

    These are the parts in which a block or an axis changes a kind, because a kind has its own defaults.
    """
    derived = effective_tables(config, {"settings": settings})
    return {part: tables.get(part, []) for part in _PARTS if derived.get(part, []) != tables.get(part, [])}


def settings_table(cells: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table with one row per cell and one column per dotted key, such as `phases.embed.step_size`.

    Entries of a list are addressed by name if they have names. Other lists are values. A key that a cell does
    not have is None there.

    Args:
        cells: the tables of each cell by its index, with all settings.
    """
    rows = [
        flatten(_by_name({part: tables[part] for part in _PARTS if part in tables}))
        for tables in map(as_written, cells.values())
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = {key: pd.Series([row.get(key) for row in rows], dtype=object) for key in keys}
    return pd.DataFrame(columns).set_axis(pd.Index(list(cells), name="cell"))


def _by_name(tree: Any) -> Any:
    """Replace lists of named tables by tables of these tables."""
    if isinstance(tree, list | tuple) and tree and all(isinstance(x, Mapping) and "name" in x for x in tree):
        tree = {x["name"]: {key: value for key, value in x.items() if key != "name"} for x in tree}
    return {key: _by_name(x) for key, x in tree.items()} if isinstance(tree, Mapping) else tree
