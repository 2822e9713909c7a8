"""Trees of plain values, as TOML and JSON hold them: dotted keys, merging, flattening."""

import copy
import tomllib
from collections.abc import Collection
from typing import Any

from jaxattn.errors import InputError


def assign(tree: Any, key: str, value: Any) -> None:
    """Set `tree[a][b]... = value` for a dotted key; lists are indexed by number or by an entry's name."""
    *parents, last = key.split(".")
    if parents and parents[0] in ("axes", "zip"):
        parents, last = [parents[0]], key.partition(".")[2]
    for number, part in enumerate(parents):
        parent, tree = tree, _child(tree, part, key)
        if isinstance(tree, str) and _is_thing(parents[: number + 1]):
            # A name alone is a table of that kind.
            tree = {"kind": tree}
            parent[_position(parent, part, key) if isinstance(parent, list) else part] = tree
    if isinstance(tree, list):
        tree[_position(tree, last, key)] = value
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise InputError(f"{key}: {parents[-1]!r} holds a plain value, not a table")


def merge(tree: Any, changes: dict[str, Any]) -> Any:
    """Return a tree with changes in it: tables merge, entries of lists are found by name or number.

    A table that is given another `kind` is replaced, since it has other keys; it keeps its name.
    """
    merged = copy.copy(tree)
    for key, value in changes.items():
        if isinstance(merged, list):
            number = _position(merged, key, key)
            merged[number] = _changed(merged[number], value)
        else:
            merged[key] = _changed(merged.get(key), value)
    return merged


def _changed(old: Any, new: Any) -> Any:
    if not (isinstance(new, dict) and isinstance(old, dict | list)):
        return new
    if isinstance(old, dict) and new.get("kind", old.get("kind")) != old.get("kind"):
        return {key: old[key] for key in ("name",) if key in old} | new
    return merge(old, new)


def flatten(table: dict[str, Any], leaves: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into one with dotted keys; a table with one of the keys `leaves` is a value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and not any(leaf in value for leaf in leaves):
            flat |= flatten(value, leaves, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parse(text: str) -> Any:
    """Read a TOML value; what is none is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is_thing(path: list[str]) -> bool:
    """Whether a table with a kind stands at a place."""
    lists = (["phases"], ["probes", "own"], ["model", "init"])
    return path in (["data"], ["model"], ["loss"]) or path[:-1] in lists


def _child(tree: Any, part: str, key: str) -> Any:
    if isinstance(tree, list):
        return tree[_position(tree, part, key)]
    if not isinstance(tree, dict):
        raise InputError(f"{key}: there is no table {part!r} to set a key in")
    return tree.setdefault(part, {})


def _position(entries: list, part: str, key: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    known = ", ".join([*(str(name) for name in names if name), f"0 to {len(entries) - 1}"])
    raise InputError(f"{key}: no entry {part!r} in the list; there are {known}")
