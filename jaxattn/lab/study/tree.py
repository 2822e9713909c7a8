"""Trees of plain values, as TOML and JSON hold them: dotted keys, merging, flattening."""

import copy
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxattn.core.errors import InputError

DEEPEST = 50
# Keys of the grid have dots of their own.
_AXIS = re.compile(r"((?:blocks\.[^.]+\.)?(?:axes|zip|halton\.axes))\.(.+)", re.DOTALL)
Path = tuple[str, ...]
Keys = Callable[[Path, Any], Iterable[str]]


def assign(tree: Any, key: str, value: Any) -> Any:
    """Return a tree with `tree[a][b]... = value` for a dotted key; what is not on the way is shared.

    Lists are indexed by number or by an entry's name. None takes the key out.
    """
    if key.count(".") > DEEPEST:
        raise InputError(f"{key:.60}...: nested more than {DEEPEST} times; no setting lies so deep")
    axis = _AXIS.fullmatch(key)
    return _assigned(tree, (), [*axis[1].split("."), axis[2]] if axis else key.split("."), value)


def numbered(tree: Any, key: str) -> str:
    """Write a dotted key with numbers for the entries of lists, which may have names too."""
    parts = []
    for part in key.split("."):
        if isinstance(tree, list):
            entries = {str(k): entry for k, entry in enumerate(tree)}
            named = {entry["name"]: k for k, entry in entries.items() if _has_name(entry)}
            part = named.get(part, part)
            tree = entries.get(part)
        else:
            tree = tree.get(part) if isinstance(tree, dict) else None
        parts.append(part)
    return ".".join(parts)


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


def check_keys(tree: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InputError for an unknown key that up to three tables below have: those are meant, rather."""
    for key in tree:
        places = [] if key in known else [*_places(tree, key)]
        if 0 < len(places) <= 3:
            raise InputError(f"unknown key {key!r}; did you mean {' or '.join(map(repr, places))}?")


def _places(tree: Any, key: str, prefix: str = "") -> Iterator[str]:
    """List the dotted keys below the top that end with a key, entries of lists by their names."""
    entries = (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    )
    for name, x in entries:
        if name == key and prefix:
            yield f"{prefix}{name}"
        part = x["name"] if isinstance(name, int) and _has_name(x) else name
        yield from _places(x, key, f"{prefix}{part}.")


def merge(tree: Any, changes: dict[str, Any], keys: Keys = lambda path, kind: (), path: Path = ()) -> Any:
    """Return a tree with changes in it: tables merge, entries of lists are found by name or number.

    Args:
        tree: tables, or a list of them.
        changes: what is new.
        keys: tells which keys of a table at some path are kept, beside its name, if it is given another kind.
        path: where the tree stands.
    """
    merged = copy.copy(tree)
    for key, value in changes.items():
        place: Any = _position(merged, key, key) if isinstance(merged, list) else key
        old = merged[place] if isinstance(merged, list) else merged.get(place)
        merged[place] = _changed(old, value, keys, (*path, key))
    return merged


def _changed(old: Any, new: Any, keys: Keys, path: Path) -> Any:
    if not (isinstance(new, dict) and isinstance(old, dict | list)):
        return new
    if isinstance(old, dict) and new.get("kind", old.get("kind")) != old.get("kind"):
        kept = {"name", *keys(path, new["kind"])} - {"kind"}
        old = {key: x for key, x in old.items() if key in kept}
    return merge(old, new, keys, path)


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
    except (ValueError, RecursionError):
        return text


def place_of_thing(path: Path) -> str | None:
    """Tell what stands at a path where a table with a kind may: "data", ..., "phases", "model.init"."""
    path = path[2:] if path[:1] == ("blocks",) else path
    place = ".".join(path if len(path) == 1 else path[:-1])
    known = ("data", "model", "loss") if len(path) == 1 else ("phases", "probes.own", "model.init")
    return place if place in known else None


def _assigned(tree: Any, before: Path, parts: Sequence[str], value: Any) -> Any:
    part, *rest = parts
    key = ".".join([*before, *parts])
    if isinstance(tree, str) and place_of_thing(before):
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
        value = _assigned(inner, (*before, part), rest, value)
    if value is not None:
        changed[place] = value
    elif isinstance(changed, dict) and place not in changed:
        raise InputError(f"{key}: is not set, so that it has its default; leave this out")
    else:
        del changed[place]
    return changed


def _has_name(entry: Any) -> bool:
    return isinstance(entry, dict) and "name" in entry


def _position(entries: list[Any], part: str, key: str) -> int:
    names = [entry["name"] if _has_name(entry) else None for entry in entries]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    known = ", ".join([*(str(name) for name in names if name), f"0 to {len(entries) - 1}"])
    raise InputError(f"{key}: no entry {part!r} in the list; there are {known}")
