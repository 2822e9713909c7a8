"""Identity of a run: a hash of what determines its results, except for the seed, devices and versions of JAX.

This is the setting with all defaults, the contents of the files that it names, the code of its custom kinds,
and the modules of this package that compute.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jaxattn.lab.study.definition import Definition, custom_paths
from jaxattn.lab.study.inputs import Inputs
from jaxattn.lab.study.setting import Cell, config_hash

_PACKAGE = Path(__file__).parents[2]
# The only modules of the lab that determine results. Outside the lab, all modules count.
_LAB = (
    "kinds.py",
    "probes",
    "texts",
    "study/seed.py",
    "study/randomness.py",
    "study/setting.py",
    "study/reader.py",
    "study/groups.py",
)
_ENGINE = tuple(
    f"engine/{name}.py"
    for name in (
        "programs",
        "program_cache",
        "devices",
        "records",
        "batch_run",
        "conclusions",
        "continuation",
    )
)
# Code that cannot be hashed gets a number that no other process has, so that its runs are not found again.
_UNKNOWN = secrets.token_hex(8)


class Identity(NamedTuple):
    """Identity of the runs of a cell.

    Attributes:
        key: hash of the setting, the contents of files, and the code.
        setting: the same hash without the code.
        shorter: the key without the number of steps of the last phase; "" if a phase of another length
            differs from this one in earlier steps.
        steps: number of steps of the last phase; 0 if `shorter` is "".
        config: hash of the settings alone.
    """

    key: str
    setting: str
    shorter: str = ""
    steps: int = 0
    config: str = ""


def identities(
    study: Definition, inputs: Inputs | None = None
) -> tuple[dict[int, Identity], dict[str, str | None]]:
    """Return the identity of each cell, by its index, and the hashes of custom code and of files, by name.

    The hash of code that cannot be hashed is None.

    Args:
        study: the study.
        inputs: stores the hashes of the files, to check later that they have not changed.

    Raises:
        InputError: a file cannot be read, or a module has changed since it was imported.
    """
    inputs = inputs or Inputs()
    code: dict[str, str | None] = {path: study.names.code_hash(path) for path in study.custom_kinds}
    found = {}
    for cell in study.cells:
        own = {path: code[path] or _UNKNOWN for path in custom_paths(cell.tables)}
        found[cell.number] = _identity(cell, inputs.of(cell.setting), own)
    return found, code | inputs.hashes


def _identity(cell: Cell, inputs: Mapping[str, str], code: Mapping[str, str]) -> Identity:
    setting = _hash(cell.config_hash, inputs)
    *earlier, last = cell.tables["phases"]
    steps, shorter = last.get("steps"), ""
    if isinstance(steps, int) and not cell.setting.phases[-1].end_key:
        rest = {key: x for key, x in last.items() if key != "steps"}
        tables = {**cell.tables, "phases": [*earlier, rest]}
        without = config_hash(cell.setting, tables, cell.settings.keys())
        shorter = _hash(without, inputs, code, package_hash())
    return Identity(
        _hash(setting, code, package_hash()), setting, shorter, steps if shorter else 0, cell.config_hash
    )


def _hash(*parts: Any) -> str:
    encoded = msgspec.json.encode(parts, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:32]


@cache
def package_hash() -> str:
    """Return the hash of the modules of this package that determine results."""
    state = hashlib.sha256()
    for path in sorted(set(_computing())):
        content = path.read_bytes()
        state.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{len(content)}\0".encode() + content)
    return state.hexdigest()[:32]


def _computing() -> Iterator[Path]:
    for path in _PACKAGE.iterdir():
        if path.name != "lab":
            yield from [path] if path.suffix == ".py" else path.rglob("*.py")
    for name in (*_LAB, *_ENGINE):
        path = _PACKAGE / "lab" / name
        yield from [path] if path.suffix == ".py" else path.rglob("*.py")
