"""Sweep files: TOML with overrides to a checked `Sweep`."""

import difflib
import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from jaxattn.data.readers import LOCATIONS
from jaxattn.errors import InputError
from jaxattn.study.check import check, placed, plain
from jaxattn.study.config import Sweep
from jaxattn.study.grid import PRESENTATION, Cell, cells
from jaxattn.study.tree import assign, flatten, merge, parse

__all__ = ["Cell", "cells", "check", "config_hash", "load", "plain", "schema"]


def load(path: Path, overrides: Sequence[str] = (), axes: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: the TOML file; the file that it `extends` is read first, and this one merged into it.
        overrides: `key=value` with dotted keys and TOML values, applied on top.
        axes: `key=[value, ...]`, product axes in addition to the file's.

    Returns:
        The checked sweep.

    Raises:
        InputError: a missing or malformed file, an unknown key, a wrong type or value; names the place.
    """
    tree = _read(path, ())
    for option, given in (("--set", overrides), ("--axis", axes)):
        for text in given:
            key, separator, value = text.partition("=")
            if not separator or not key.strip():
                example = "--set model.dim=512" if option == "--set" else "--axis model.dim=[64,512]"
                raise InputError(f"{option} {text}: expected key=value, for example {example}")
            with placed(f"{option} {text}"):
                assign(tree, ("axes." if option == "--axis" else "") + key.strip(), parse(value))
    with placed(str(path)):
        sweep = check(tree)
        cells(sweep)
    return sweep


def config_hash(config: Sweep) -> str:
    """Hash what determines a cell's numbers: everything but names, figures, axes and the number of seeds."""
    kept = {key: value for key, value in plain(config).items() if key not in PRESENTATION}
    kept["data"] = {key: value for key, value in kept["data"].items() if key not in LOCATIONS}
    return hashlib.sha256(msgspec.json.encode(kept, order="deterministic")).hexdigest()[:16]


def schema() -> dict[str, Any]:
    """Make the JSON schema of sweep files, for editors that complete and check TOML."""
    return msgspec.json.schema(Sweep) | {"title": "jaxattn sweep file"}


def _read(path: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    """Read a file and those that it extends."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such sweep file{_nearby(path)}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    blocks = tree.get("blocks")
    for table in (tree, *(blocks.values() if isinstance(blocks, dict) else ())):
        if isinstance(table, dict):
            _flatten_grid(table)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    here = (*before, path.resolve())
    if not isinstance(base, str):
        raise InputError(f"{path}: extends: expected a path, got {base!r}")
    if (path.parent / base).resolve() in here:
        raise InputError(f"{path}: extends: {base} extends this file in turn; break the circle")
    with placed(str(path)):
        return merge(_read(path.parent / base, here), tree)


def _flatten_grid(table: dict[str, Any]) -> None:
    """Write keys of the grid with dots, as they are looked up."""
    for key in ("axes", "zip"):
        if isinstance(table.get(key), dict):
            table[key] = flatten(table[key])
    for key in ("cells", "exclude"):
        if isinstance(table.get(key), list):
            table[key] = [flatten(row) if isinstance(row, dict) else row for row in table[key]]
    points = table.get("halton")
    if isinstance(points, dict) and isinstance(points.get("axes"), dict):
        points["axes"] = flatten(points["axes"], leaves=("low", "high"))


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = difflib.get_close_matches(path.name, [p.name for p in folder.glob("*.toml")], 1)
    return f"; did you mean {folder / near[0]}?" if near else ""
