"""Sweep files: TOML with overrides to a checked `Sweep`, and its axes to cells."""

import copy
import difflib
import hashlib
import itertools
import re
import tomllib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jaxattn.data.readers import LOCATIONS
from jaxattn.errors import InputError
from jaxattn.study.config import Sweep

# Settings that do not change any number of a run: they may change between a run and its continuation.
PRESENTATION = ("name", "description", "figures", "seeds", "axes", "blocks")


class Cell(NamedTuple):
    """One setting of the axes: its number in the grid, the axis values, and the config they make."""

    number: int
    settings: dict[str, Any]
    config: Sweep


def load(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: the TOML file.
        overrides: `key=value` with dotted keys and TOML values, applied on top.

    Returns:
        The checked sweep.

    Raises:
        InputError: a missing or malformed file, an unknown key, a wrong type or value; names the place.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such sweep file{_nearby(path)}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.strip():
            raise InputError(f"--set {override}: expected key=value, for example --set model.dim=512")
        with _placed(f"--set {override}"):
            assign(tree, key.strip(), _parse(value))
    blocks = tree.get("blocks")
    for table in (tree, *(blocks.values() if isinstance(blocks, dict) else ())):
        if isinstance(table, dict) and isinstance(table.get("axes"), dict):
            table["axes"] = _flatten(table["axes"])
    with _placed(str(path)):
        sweep = check(tree)
        cells(sweep)
    return sweep


def check(tree: dict[str, Any]) -> Sweep:
    """Turn a tree of plain values into a checked `Sweep`; InputError names the key and a near right one."""
    try:
        sweep = msgspec.convert(tree, Sweep)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), tree)) from None
    names = [phase.name for phase in sweep.phases]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"phases: two phases are named {name!r}; give each its own name")
    for index, phase in enumerate(sweep.phases):
        for parameter in phase.train:
            if parameter not in ("E", "p", "v"):
                raise InputError(f"phases[{index}].train: {parameter!r} is not one of E, p, v")
    if sweep.probes.max_margin and all(tuple(phase.train) != ("p",) for phase in sweep.phases):
        raise InputError("probes.max_margin: no phase moves p alone; add one, or leave it out")
    if sweep.probes.low >= sweep.probes.high:
        raise InputError(f"probes.low: {sweep.probes.low} is not below probes.high = {sweep.probes.high}")
    return sweep


def cells(sweep: Sweep) -> list[Cell]:
    """List the cells of a sweep: block after block the product of the axes, the last axis fastest.

    Raises:
        InputError: a block or an axis over an unknown key, or a value that makes a cell impossible; names
            the cell.
    """
    result: list[Cell] = []
    for name, block in sweep.blocks.items() or [("", {})]:
        with _placed(f"blocks.{name}" if name else ""):
            for key in block:
                if key in PRESENTATION and key != "axes":
                    raise InputError(f"{key} cannot differ between blocks")
            tree = merge(plain(sweep) | {"blocks": {}}, block)
            axes = check(tree).axes
            for values in itertools.product(*axes.values()):
                result.append(_cell(len(result), tree, name, dict(zip(axes, values, strict=True))))
    return result


def _cell(number: int, tree: dict[str, Any], block: str, settings: dict[str, Any]) -> Cell:
    tree = copy.deepcopy(tree) | {"axes": {}}
    named = {"block": block} if block else {}
    place = ", ".join(f"{key} = {value!r}" for key, value in (named | settings).items())
    with _placed(f"axes: cell {number} ({place})" if place else ""):
        for key, value in settings.items():
            if key.partition(".")[0] in PRESENTATION:
                raise InputError(f"{key} cannot be an axis")
            assign(tree, key, value)
        return Cell(number, named | settings, check(tree))


def merge(tree: Any, changes: dict[str, Any]) -> Any:
    """Return a tree with changes in it: tables merge, entries of lists are found by name or number.

    A table that is given another `kind` is replaced, since it has other keys; it keeps its name.
    """
    merged: Any = copy.copy(tree)
    for key, value in changes.items():
        place: Any = _position(merged, key, key) if isinstance(merged, list) else key
        old = merged[place] if isinstance(merged, list) else merged.get(place)
        if (
            isinstance(value, dict)
            and isinstance(old, dict)
            and value.get("kind", old.get("kind")) != old.get("kind")
        ):
            value = {"name": old["name"]} | value if "name" in old else value
        elif isinstance(value, dict) and isinstance(old, dict | list):
            value = merge(old, value)
        merged[place] = value
    return merged


def assign(tree: Any, key: str, value: Any) -> None:
    """Set `tree[a][b]... = value` for a dotted key; lists are indexed by number or by an entry's name."""
    *parents, last = key.split(".")
    if parents and parents[0] == "axes":
        parents, last = ["axes"], key.partition(".")[2]
    for part in parents:
        tree = _child(tree, part, key)
    if isinstance(tree, list):
        tree[_position(tree, last, key)] = value
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise InputError(f"{key}: {parents[-1]!r} holds a plain value, not a table")


def config_hash(config: Sweep) -> str:
    """Hash what determines a cell's numbers: everything but names, figures, axes and the number of seeds."""
    kept = {key: value for key, value in plain(config).items() if key not in PRESENTATION}
    kept["data"] = {key: value for key, value in kept["data"].items() if key not in LOCATIONS}
    return hashlib.sha256(msgspec.json.encode(kept, order="deterministic")).hexdigest()[:16]


def plain(config: Sweep) -> dict[str, Any]:
    """Write a config as JSON would hold it: tables and lists of plain values."""
    return msgspec.json.decode(msgspec.json.encode(config))


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


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


class _placed:
    """Prefix the message of any InputError with the place it was found at."""

    def __init__(self, place: str):
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InputError) and self.place:
            raise InputError(f"{self.place}: {error}") from None


def _explain(message: str, tree: Any) -> str:
    """Put msgspec's message key first and add the nearest right key or value."""
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    text = text.replace("Object contains unknown field", "unknown key").replace("`", "'")
    text = text.replace("Object missing required field", "missing key")
    text = text[:1].lower() + text[1:]
    unknown = re.fullmatch(r"unknown key '(.*)'", text)
    kind = re.fullmatch(r"invalid (?:value|enum value) '(.*)'", text)
    if unknown:
        text += _suggest(unknown[1], _known_keys(place, tree))
    elif kind:
        text += _suggest(kind[1], _known_values(place))
    return f"{place}: {text}" if place else text


def _suggest(given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, 1, cutoff=0.4)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}" if known else ""


def _known_keys(place: str, tree: Any) -> list[str]:
    tables = _tables(place.split("[")[0])
    if len(tables) == 1:
        return [field.name for field in msgspec.structs.fields(tables[0])]
    value: Any = tree
    for part in re.findall(r"\w+", place):
        value = value[int(part)] if isinstance(value, list) else value[part]
    chosen = next(table for table in tables if table.__struct_config__.tag == value["kind"])
    return ["kind", *(field.name for field in msgspec.structs.fields(chosen))]


def _known_values(place: str) -> list[str]:
    section, _, key = place.rpartition(".")
    tables = _tables(section.split("[")[0])
    if key == "kind":
        return [str(table.__struct_config__.tag) for table in tables]
    fields = [field for table in tables for field in msgspec.structs.fields(table) if field.name == key]
    return [str(value) for field in fields for value in typing.get_args(field.type)]


def _tables(section: str) -> list[type[msgspec.Struct]]:
    """List the types that a section of a sweep file may have; the file itself for no section."""
    declared: Any = {"": Sweep, **{field.name: field.type for field in msgspec.structs.fields(Sweep)}}[
        section
    ]
    declared = getattr(declared, "__origin__", declared) if hasattr(declared, "__metadata__") else declared
    if typing.get_origin(declared) is tuple:
        declared = typing.get_args(declared)[0]
    options = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    return [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = difflib.get_close_matches(path.name, [p.name for p in folder.glob("*.toml")], 1)
    return f"; did you mean {folder / near[0]}?" if near else ""
