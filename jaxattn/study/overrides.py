"""Overrides of a sweep file that would come to nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxattn.core.errors import InputError
from jaxattn.study.grid import GRID
from jaxattn.study.tree import flatten, numbered


def check_seen(tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise InputError for an override that no cell sees: all of them have their own value of its key.

    Args:
        tree: checked tables, the overrides applied.
        overrides: `key=value` with dotted keys.
    """
    blocks = tree.get("blocks", {})
    of_file = [*_swept(tree)]
    variants = [[*_of_block(name, block), *of_file] for name, block in blocks.items()] or [of_file]
    for text in overrides:
        key = numbered(tree, text.partition("=")[0].strip())
        deciding = [
            next((option for own, option in variant if f"{key}.".startswith(f"{numbered(tree, own)}.")), "")
            for variant in variants
        ]
        if all(deciding):
            raise InputError(f"--set {text}: every cell has its own {key}, it is swept; give {deciding[0]}")


def _of_block(name: str, block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List keys that a block sweeps or sets, each with the option that changes it there."""
    for key, option in _swept(block):
        yield key, option.replace("--axis ", "--set axes.").replace("--set ", f"--set blocks.{name}.")
    for key in flatten({key: x for key, x in block.items() if key not in GRID}):
        yield key, f"--set blocks.{name}.{key}=..."


def _swept(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List keys that all cells of a grid have, each with the option that changes its values."""
    for key in table.get("axes", {}):
        yield key, f"--axis {key}=[...]"
    for key in table.get("zip", {}):
        yield key, f"--set zip.{key}=[...]"
    for key in (table.get("halton") or {}).get("axes", {}):
        yield key, f"--set halton.axes.{key}={{low=..., high=...}}"
    rows = table.get("cells") or [{}]
    for key in rows[0]:
        if all(key in row for row in rows):
            yield key, "--set cells=[...]"
