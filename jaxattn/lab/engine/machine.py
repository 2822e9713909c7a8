"""Check whether this machine can run studies."""

import math
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from jaxattn.core.errors import InputError
from jaxattn.lab.storage.files import cache_folder

# Returns a state, "ok", "note" or "broken", and a description.
Check = Callable[[], tuple[str, str]]


class Finding(NamedTuple):
    """Result of one check: its name, its state ("ok", "note" or "broken") and a description."""

    name: str
    state: str
    found: str


def examine(compiled: Path) -> list[Finding]:
    """Run all checks, and return their results. A check that raises an exception is reported as "broken".

    Args:
        compiled: folder of the compilation cache.
    """
    checks: dict[str, Check] = {
        "python": lambda: ("ok", platform.python_version()),
        "packages": _packages,
        "address space": _address_space,
        "devices": _devices,
        "float64": _float64,
        "jaxlib": _jaxlib,
        "compiled programs": lambda: _folder(compiled),
        "cached corpora": lambda: _folder(cache_folder()),
        "tensorflow-datasets": _datasets,
        "free disk here": _disk,
    }
    return _run_checks(checks)


@cache
def devices_here() -> str:
    """Return the devices of this process, with what is unusual about them, as one line."""
    checks: dict[str, Check] = {
        "address space": _address_space,
        "devices": _devices,
        "float64": _float64,
        "jaxlib": _jaxlib,
    }
    findings = _run_checks(checks)
    return "; ".join(x.found for x in findings if x.name == "devices" or x.state != "ok")


def _run_checks(checks: Mapping[str, Check]) -> list[Finding]:
    findings = []
    for name, check in checks.items():
        try:
            findings.append(Finding(name, *check()))
        except InputError as error:
            # Stop here: with this problem, initialising a device would kill the process.
            return [*findings, Finding(name, "broken", str(error))]
        except Exception as error:  # Report any other exception as the result of the check.
            findings.append(Finding(name, "broken", f"{type(error).__name__}: {error}".partition("\n")[0]))
    return findings


def _packages() -> tuple[str, str]:
    from jaxattn.lab.engine.description import PACKAGES

    return "ok", ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)


def _address_space() -> tuple[str, str]:
    from jaxattn.lab.engine import memory

    notes: list[str] = []
    memory.check_address_space(notes.append)
    limit = memory.address_space()
    return ("note", notes[0]) if notes else ("ok", f"{limit / 2**30:.1f} GiB" if limit else "no limit")


def _devices() -> tuple[str, str]:
    import jax

    from jaxattn.core import backend

    backend.local_devices()
    devices = jax.devices()
    kinds = {device.device_kind for device in devices}
    return "ok", f"{len(devices)} × {', '.join(sorted(kinds))}; {os.cpu_count()} CPU cores"


def _float64() -> tuple[str, str]:
    import jax
    import jax.numpy as jnp

    from jaxattn.core import backend

    lacking = []
    with jax.enable_x64(True):
        if not float(jnp.float64(1) + jnp.float64(1e-15)) > 1:
            lacking.append("1 + 1e-15 is 1")
        # exp(-200) underflows in float32.
        if not abs(float(jnp.exp(jnp.float64(-200.0))) / math.exp(-200) - 1) < 1e-12:
            lacking.append("exp(-200) is wrong")
        try:
            solved = jnp.linalg.solve(jnp.array([[0.0, 2.0], [4.0, 0.0]]), jnp.array([2.0, 4.0]))
            if jnp.abs(solved - 1).max() > 1e-14:
                lacking.append("linear systems are solved incorrectly")
        except (jax.errors.JaxRuntimeError, NotImplementedError):
            lacking.append("linear systems cannot be solved")
    if not lacking:
        return "ok", "works"
    found = ", ".join(lacking)
    if backend.has_host():
        return "note", f"{found}; computations in float64 run on the CPU of the host"
    return "broken", found


def _jaxlib() -> tuple[str, str]:
    import jax

    from jaxattn.lab.engine.devices import known_bug

    found = known_bug(jax.default_backend())
    return ("note", found) if found else ("ok", "no known problem with this version on this machine")


def _folder(path: Path) -> tuple[str, str]:
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    if not os.access(above, os.W_OK):
        return "note", f"{path}: not writable, so nothing is cached; set JAXATTN_CACHE to another folder"
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 2**20
    return "ok", f"{path}: {len(files)} files, {size:.0f} MiB"


def _datasets() -> tuple[str, str]:
    folder = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")))
    if not folder.is_dir():
        return "note", f"{folder}: no such folder; set data.data_dir or TFDS_DATA_DIR"
    return "ok", f"{folder}: {', '.join(sorted(p.name for p in folder.iterdir() if p.is_dir())) or 'empty'}"


def _disk() -> tuple[str, str]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return ("ok" if free > 1 else "note"), f"{free:.1f} GiB"
