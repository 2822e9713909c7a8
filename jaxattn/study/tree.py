"""Trees of plain values, as TOML and JSON hold them: dotted keys, merging, flattening."""

import copy
import math
import tomllib
from collections.abc import Collection
from typing import Any

from jaxattn.errors import InputError

DEEPEST = 50


def assign(tree: Any, key: str, value: Any) -> Any:
    """Return a tree with `tree[a][b]... = value` for a dotted key; what is not on the way is shared.

    Lists are indexed by number or by an entry's name.
    """
    head, dot, rest = key.partition(".")
    if key.count(".") > DEEPEST:
        raise InputError(f"{key:.60}...: nested more than {DEEPEST} times; no setting lies so deep")
    return _assigned(tree, [], [head, rest] if dot and head in ("axes", "zip") else key.split("."), value)


def check_values(tree: Any, place: str = "", depth: int = 0) -> None:
    """Raise InputError, naming the place, for a number that is not finite, or tables too deep."""
    if isinstance(tree, float) and not math.isfinite(tree):
        raise InputError(f"{place}: {tree} is not allowed here; give a finite number")
    if depth > DEEPEST:
        raise InputError(f"{place:.60}...: nested more than {DEEPEST} times; no setting lies so deep")
    if isinstance(tree, dict):
        for key, x in tree.items():
            check_values(x, f"{place}.{key}" if place else str(key), depth + 1)
    elif isinstance(tree, list | tuple):
        for number, x in enumerate(tree):
            check_values(x, f"{place}[{number}]", depth + 1)


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
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _is_thing(path: list[str]) -> bool:
    """Whether a table with a kind stands at a place."""
    lists = (["phases"], ["probes", "own"], ["model", "init"])
    return path in (["data"], ["model"], ["loss"]) or path[:-1] in lists


def _assigned(tree: Any, before: list[str], parts: list[str], value: Any) -> Any:
    part, *rest = parts
    key = ".".join([*before, *parts])
    if isinstance(tree, str) and _is_thing(before):
        # A name alone is a table of that kind.
        tree = {"kind": tree}
    if not isinstance(tree, dict | list):
        raise InputError(
            f"{key}: there is no table {part!r} to set a key in"
            if rest
            else f"{key}: {before[-1]!r} holds a plain value, not a table"
        )
    place: Any = _position(tree, part, key) if isinstance(tree, list) else part
    changed = copy.copy(tree)
    if rest:
        inner = changed.get(place, {}) if isinstance(changed, dict) else changed[place]
        value = _assigned(inner, [*before, part], rest, value)
    changed[place] = value
    return changed


def _position(entries: list, part: str, key: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    known = ", ".join([*(str(name) for name in names if name), f"0 to {len(entries) - 1}"])
    raise InputError(f"{key}: no entry {part!r} in the list; there are {known}")
