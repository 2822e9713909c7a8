"""Trees of plain values, as in TOML and JSON: dotted keys, merging and flattening.

In place of a table, a tree may have an object with settings. A changed setting makes it a table whose kind is
the object: {"kind": object, "dim": 8}.
"""

import copy
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from jaxattn.core.errors import InputError, nearest

DEEPEST = 50
# Matches a grid key such as `axes.model.dim`. The swept setting after the table name may contain dots.
_AXIS = re.compile(r"((?:blocks\.[^.]+\.)?(?:axes|zip|halton\.axes))\.(.+)", re.DOTALL)
_Path = tuple[str, ...]
Keys = Callable[[_Path, Any], Iterable[str]]


def assign(tree: Any, key: str, value: Any) -> Any:
    """Return a copy of a tree with a new value at a dotted key.

    List entries are addressed by index or name. The value None removes the key.
    """
    if key.count(".") > DEEPEST:
        raise InputError(f"{key:.60}...: nested more than {DEEPEST} levels deep; remove some levels")
    axis = _AXIS.fullmatch(key)
    return _assign(tree, (), [*axis[1].split("."), axis[2]] if axis else key.split("."), value)


def parents_first(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the items of settings in the order in which to assign them: tables before the keys in them.

    A value of a key such as `loss` replaces the whole table.
    """
    return sorted(settings.items(), key=lambda item: item[0].count("."))


def number_entries(tree: Any, key: str) -> str:
    """Replace the names of list entries in a dotted key with their indices."""
    parts = []
    for part in key.split("."):
        if isinstance(tree, list):
            entries = {str(k): entry for k, entry in enumerate(tree)}
            named = {name: k for k, entry in entries.items() if (name := _name(entry))}
            part = named.get(part, part)
            tree = entries.get(part)
        else:
            tree = tree.get(part) if isinstance(tree, dict) else None
        parts.append(part)
    return ".".join(parts)


def check_values(tree: Any, location: str = "", depth: int = 0) -> None:
    """Raise InputError, with the location, if a number is not finite or tables are nested too deeply."""
    if isinstance(tree, float) and not math.isfinite(tree):
        raise InputError(f"{location}: {tree} is not allowed here; use a finite number")
    if depth > DEEPEST:
        raise InputError(f"{location:.60}...: nested more than {DEEPEST} levels deep; remove some levels")
    if isinstance(tree, dict):
        for key, x in tree.items():
            check_values(x, f"{location}.{key}" if location else str(key), depth + 1)
    elif isinstance(tree, list | tuple):
        for number, x in enumerate(tree):
            check_values(x, f"{location}[{number}]", depth + 1)


def check_keys(tree: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InputError for an unknown top-level key that exists in one to three inner tables.

    The error message suggests the full keys, such as `model.dim`.
    """
    for key in tree:
        places = [] if key in known else [*_places(tree, key)]
        if 0 < len(places) <= 3:
            raise InputError(f"unknown key {key!r}; did you mean {' or '.join(map(repr, places))}?")


def _places(tree: Any, key: str, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys below the top level that end in `key`, with list entries identified by name."""
    entries = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    )
    for name, x in entries:
        if name == key and prefix:
            yield f"{prefix}{name}"
        part = _name(x) or name if isinstance(name, int) else name
        yield from _places(x, key, f"{prefix}{part}.")


def merge(tree: Any, changes: dict[str, Any], keys: Keys = lambda path, kind: (), path: _Path = ()) -> Any:
    """Return a copy of a tree with changes merged in. List entries are addressed by index or name.

    If a change sets a new kind, only the name and the keys returned by `keys(path, kind)` are kept from the
    old table.
    """
    merged = copy.copy(tree)
    for key, value in changes.items():
        location: Any = _position(merged, key, key) if isinstance(merged, list) else key
        old = merged[location] if isinstance(merged, list) else merged.get(location)
        merged[location] = _merge(old, value, keys, (*path, key))
    return merged


def _merge(old: Any, new: Any, keys: Keys, path: _Path) -> Any:
    if not (isinstance(new, dict) and isinstance(old, dict | list | Struct)):
        return new
    old = {"kind": old} if isinstance(old, Struct) else old
    if isinstance(old, dict) and new.get("kind", old.get("kind")) != old.get("kind"):
        kept = {"name", *keys(path, new["kind"])} - {"kind"}
        old = {key: x for key, x in open_table(old, defaults=True).items() if key in kept}
    return merge(old, new, keys, path)


def open_table(table: dict[str, Any] | Struct, *, defaults: bool = False) -> dict[str, Any]:
    """Return a table whose kind is an object without this kind: the settings of the object are its keys.

    Settings that have their default values are left out unless `defaults` is True.
    """
    table = {"kind": table} if isinstance(table, Struct) else table
    if not isinstance(thing := table.get("kind"), Struct):
        return table
    own = msgspec.structs.asdict(thing)
    if not defaults:
        known = {field.name: field.default for field in msgspec.structs.fields(type(thing))}
        own = {key: x for key, x in own.items() if x is not known[key] and x != known[key]}
    return own | {key: x for key, x in table.items() if key != "kind"}


def flatten(table: dict[str, Any], leaves: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """Flatten a table to dotted keys.

    A nested table that contains any of the keys in `leaves` is kept as a value.
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and not any(leaf in value for leaf in leaves):
            flat |= flatten(value, leaves, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parse(text: str) -> Any:
    """Parse a TOML value; return the string itself if it is not valid TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def location_of_entry(path: _Path) -> str | None:
    """Return the component to which a path refers, such as "data" or "model.init", or None."""
    path = path[2:] if path[:1] == ("blocks",) else path
    location = ".".join(path if len(path) == 1 else path[:-1])
    known = ("data", "model", "loss") if len(path) == 1 else ("phases", "probes.own", "model.init")
    return location if location in known else None


def _assign(tree: Any, before: _Path, parts: Sequence[str], value: Any) -> Any:
    part, *rest = parts
    key = ".".join([*before, *parts])
    if isinstance(tree, str | Struct) and location_of_entry(before):
        # A bare name is shorthand for a table with this `kind`.
        tree = {"kind": tree}
    if parts == ["kind"] and isinstance(tree, dict):
        tree = open_table(tree)
    if not isinstance(tree, dict | list):
        raise InputError(
            f"{key}: the value before {part!r} is not a table"
            if rest
            else f"{key}: {before[-1]!r} is a plain value, not a table"
        )
    location: Any = _position(tree, part, key) if isinstance(tree, list) else part
    changed = copy.copy(tree)
    if rest:
        inner = changed.get(location, {}) if isinstance(changed, dict) else changed[location]
        value = _assign(inner, (*before, part), rest, value)
    if value is not None:
        changed[location] = value
    elif isinstance(changed, dict) and location not in changed:
        raise InputError(f"{key}: not set, so there is nothing to remove; omit this option")
    else:
        del changed[location]
    return changed


def _name(entry: Any) -> Any:
    """Return the name of an entry of a list, or None if it has none."""
    if isinstance(entry, dict):
        return entry["name"] if "name" in entry else _name(entry.get("kind"))
    has_name = isinstance(entry, Struct) and "name" in entry.__struct_fields__
    return (entry.name or None) if has_name else None


def _position(entries: list[Any], part: str, key: str) -> int:
    names = [_name(entry) for entry in entries]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    expected = f"expected a name, or an index from 0 to {len(entries) - 1}"
    known = nearest(part, [str(name) for name in names if name])
    raise InputError(f"{key}: unknown entry {part!r}; {expected}{known}")
