"""The settings with which each cell of a results folder ran."""

from collections.abc import Mapping
from typing import Any

from jaxattn.lab.study.tree import assign, merge, parents_first

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


def changed_tables(
    config: Mapping[str, Any], settings: Mapping[str, Any], tables: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parts of a cell's tables that do not follow from the config and the settings of the cell.

    These are the parts in which a block or an axis changes a kind, because a kind has its own defaults.
    """
    derived = effective_tables(config, {"settings": settings})
    return {part: tables.get(part, []) for part in _PARTS if derived.get(part, []) != tables.get(part, [])}
