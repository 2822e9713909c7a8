"""Sweep files: reading, overriding, extending and writing."""

import codecs
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from jaxattn.core.errors import InputError, RunError, UserCodeError, at, similar
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.grid import GRID
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.reader import merged_tables
from jaxattn.lab.study.tree import assign, check_values, flatten, number_entries, parse

# Maximum file size in bytes, and maximum number of files in a chain of `extends`.
_LARGEST = 16 * 2**20
_LONGEST = 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_D = TypeVar("_D", bound=Definition)


def read_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
    axes: Sequence[str] = (),
    made: Callable[[dict[str, Any], ImportPaths], _D] = Definition,  # type: ignore[assignment]
) -> _D:
    """Read a sweep file and return a validated study.

    Args:
        path: TOML file; if it `extends` another file, it is merged into that file.
        overrides: `key=value` with dotted keys and TOML values, applied last; `key=null` removes a key.
        axes: additional product axes, `key=[value, ...]`.
        made: function that creates a study from tables and a resolver for import paths.

    Raises:
        InputError: the file is missing or malformed, a key is unknown, a type or value is invalid, or an
            override has no effect.
        UserCodeError: custom code raised an exception.
    """
    path = Path(path)
    tree = tables(path)
    change(tree, overrides, axes)
    try:
        study = made(tree, ImportPaths(path.parent))
    except InputError as error:
        raise InputError(_with_option(str(error), str(path), overrides, axes)) from None
    except UserCodeError as error:
        raise error.below(str(path)) from error.__cause__
    check_seen(tree, overrides)
    return study


def _with_option(message: str, path: str, overrides: Sequence[str], axes: Sequence[str]) -> str:
    for option, given, prefix in (("--set", overrides, ""), ("--axis", axes, "axes.")):
        for text in given:
            key = text.partition("=")[0].strip()
            if message.startswith(location := f"{prefix}{key}: "):
                return f"{option} {key}: {message.removeprefix(location)}"
    return f"{path}: {message}"


def change(tree: dict[str, Any], overrides: Sequence[str] = (), axes: Sequence[str] = ()) -> None:
    """Apply overrides `key=value` and axes `key=[value, ...]` to tables in place.

    `key=null` removes a key.
    """
    for option, given in (("--set", overrides), ("--axis", axes)):
        for text in given:
            key, separator, value = text.partition("=")
            if not separator or not key.strip():
                example = "--set model.dim=512" if option == "--set" else "--axis model.dim=[64,512]"
                raise InputError(f"{option} {text}: expected key=value, for example {example}")
            with at(f"{option} {text}"):
                if option == "--axis":
                    changed = assign(tree, f"axes.{key.strip()}", parse(value))
                else:
                    changed = assign(tree, key.strip(), None if value.strip() == "null" else parse(value))
            tree.clear()
            tree |= changed
    flatten_grid(tree)


def write_sweep(tree: dict[str, Any], path: str | Path) -> Path:
    """Write tables as a sweep file; raise RunError if the file cannot be written."""
    path = Path(path)
    try:
        path.write_text(tomli_w.dumps(_without_none(tree)), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); choose another path") from None
    return path


def tables(path: Path, before: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a sweep file, without validation, and merge it into the file that it extends.

    Nested grid keys are flattened to dotted keys. `before` contains the files that extend this one.
    """
    text = _text(path)
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}{_line(text, str(error))}") from None
    with at(str(path)):
        check_values(tree)
    flatten_grid(tree)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    here = (*before, _resolve(path))
    if not isinstance(base, str):
        raise InputError(f"{path}: extends: expected the path of a file, got {base!r}")
    if len(here) > _LONGEST:
        raise InputError(f"{path}: extends: chain of more than {_LONGEST} files; merge some of them")
    if _resolve(path.parent / base) in here:
        raise InputError(f"{path}: extends: {base} extends this file in turn; remove one `extends`")
    with at(str(path)):
        both: dict[str, Any] = merged_tables(
            tables(path.parent / base, here), tree, ImportPaths((before or here)[0].parent)
        )
        return both


def _line(text: str, message: str) -> str:
    """Return ": LINE" with the line that a message such as "... (at line 2, column 9)" names."""
    found = re.search(r"at line (\d+)", message)
    lines = text.splitlines()
    number = int(found[1]) if found else 0
    return f": {lines[number - 1].strip():.80}" if 0 < number <= len(lines) else ""


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, ValueError):
        return path  # Reading the file will raise an error that gives the reason.


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: cannot be read (not a regular file); save the sweep to a file")
        if status.st_size > _LARGEST:
            size = f"{status.st_size / 2**20:,.0f} MiB, more than {_LARGEST / 2**20:.0f} MiB"
            raise InputError(f"{path}: too large for a sweep file ({size}); check the path")
        # Some editors on Windows add a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such sweep file{_nearby(path)}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        encoding = "UTF-16 text" if path.read_bytes()[:2] in _UTF16 else f"not UTF-8 text ({error.reason})"
        raise InputError(f"{path}: {encoding}; save it as UTF-8") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r}: cannot be read ({error})") from None
    if "\0" in text:
        raise InputError(
            f"{path}: UTF-16 text without a byte order mark, or not a text file; save it as UTF-8"
        )
    return text


def flatten_grid(table: dict[str, Any]) -> None:
    """Flatten nested grid keys to dotted keys in place, including the keys in blocks."""
    for key in ("axes", "zip"):
        if isinstance(table.get(key), dict):
            table[key] = flatten(table[key])
    for key in ("cells", "exclude"):
        if isinstance(table.get(key), list):
            table[key] = [flatten(row) if isinstance(row, dict) else row for row in table[key]]
    points = table.get("halton")
    if isinstance(points, dict) and isinstance(points.get("axes"), dict):
        points["axes"] = flatten(points["axes"], leaves=("low", "high"))
    blocks = table.get("blocks")
    for block in blocks.values() if isinstance(blocks, dict) else ():
        if isinstance(block, dict):
            flatten_grid(block)


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(x) for key, x in tree.items() if x is not None}
    return [_without_none(x) for x in tree] if isinstance(tree, list | tuple) else tree


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = similar(path.name, [p.name for p in folder.glob("*.toml")])
    return f"; did you mean {folder / near}?" if near else ""


def check_seen(tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise InputError if an override has no effect because every cell sweeps or sets its key."""
    blocks = tree.get("blocks", {})
    of_file = [*_swept(tree)]
    variants = [[*_of_block(name, block), *of_file] for name, block in blocks.items()] or [of_file]
    for text in overrides:
        key = number_entries(tree, text.partition("=")[0].strip())
        deciding = [
            next(
                (option for own, option in variant if f"{key}.".startswith(f"{number_entries(tree, own)}.")),
                "",
            )
            for variant in variants
        ]
        if all(deciding):
            raise InputError(f"--set {text}: has no effect, because {key} is swept; use {deciding[0]}")


def _of_block(name: str, block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key that a block sweeps or sets, with the command-line option that overrides it."""
    for key, option in _swept(block):
        yield key, option.replace("--axis ", "--set axes.").replace("--set ", f"--set blocks.{name}.")
    for key in flatten({key: x for key, x in block.items() if key not in GRID}):
        yield key, f"--set blocks.{name}.{key}=..."


def _swept(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key that all cells of a grid set, with the command-line option that overrides it."""
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
