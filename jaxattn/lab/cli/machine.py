"""Commands that look at this machine: what a run will find on it, and how fast it is."""

import math
import os
import platform
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, NamedTuple

from tyro.conf import Positional, arg

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.cli.console import print_table, say
from jaxattn.lab.cli.options import Quiet, compiled_folder, of_this_machine
from jaxattn.lab.storage.files import cache_folder


def doctor() -> int:
    """Check this machine: devices, versions, float64, folders, disk, known troubles; exit with 1 if broken.

    Example: jaxattn doctor
    """
    import pandas as pd

    findings = examine(compiled_folder())
    print_table("Doctor", pd.DataFrame(findings))
    return int(any(finding.state == "broken" for finding in findings))


def bench(
    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="[FILE ...]")] = (),
    /,
    only: Annotated[tuple[str, ...], arg(metavar="WORD ...")] = (),
    seeds: Annotated[int | None, arg(metavar="N")] = None,
    repeats: int = 3,
    out: Annotated[Path | None, arg(metavar="FILE")] = None,
    quiet: Quiet = False,
) -> int:
    """Measure this machine: time of a step of each kind, whether bits repeat, memory against the plan.

    With files of it, measures nothing and shows them side by side.
    Example: jaxattn bench --out bench.json

    Args:
        files: Files that were written with --out.
        only: Measure the cases with one of these words in their names only.
        seeds: Measure up to so many seeds side by side.
        repeats: Passes after the first, of which the median counts.
        out: Write what was measured to this file.
    """
    from jaxattn import bench as benchmark
    from jaxattn.lab.engine.devices import use_all_cores
    from jaxattn.lab.engine.progress import Reporter

    if files:
        if only or out or seeds is not None:
            raise InputError("bench: files are shown as they are; leave --only, --seeds and --out out")
        print_table("µs a step and seed", benchmark.beside([benchmark.read(path) for path in files]))
        return 0
    of_this_machine(out or "")
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: give at least 1")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: give at least 1")
    cases = [case for case in benchmark.CASES if not only or any(word in case.name for word in only)]
    if not cases:
        known = "; ".join(case.name for case in benchmark.CASES)
        raise InputError(f"--only {' '.join(only)}: in no name; there are {known}")
    use_all_cores()
    report = benchmark.Report(benchmark.machine(), [])
    wanted = [(case, n) for case in cases for n in case.seeds if seeds is None or n <= seeds]
    with Reporter(quiet) as reporter:
        for number, (case, together) in enumerate(wanted):
            reporter.update(f"{case.name}, {together} seeds", number / len(wanted))
            try:
                report.measured.append(benchmark.measure(case, together, repeats))
            except RunError as error:
                reporter.warn(f"left out: {error}")
            if out is not None:
                benchmark.write(report, out)
    print_table(report.title, benchmark.table(report))
    if out is not None:
        say(out)
    return 0


class Finding(NamedTuple):
    """One thing looked at: its name, whether it is "ok", a "note" or "broken", and what was found."""

    name: str
    state: str
    found: str


def examine(compiled: Path) -> list[Finding]:
    """Look at everything.

    Args:
        compiled: the folder of compiled programs.

    Returns:
        The findings; a check that fails itself is "broken".
    """
    checks: dict[str, Callable[[], tuple[str, str]]] = {
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
    findings = []
    for name, check in checks.items():
        try:
            findings.append(Finding(name, *check()))
        except InputError as error:
            # Whatever starts a device would end this process.
            return [*findings, Finding(name, "broken", str(error))]
        except Exception as error:  # whatever is wrong with the machine is what is asked for
            findings.append(Finding(name, "broken", f"{type(error).__name__}: {error}".partition("\n")[0]))
    return findings


def _packages() -> tuple[str, str]:
    from jaxattn.lab.engine.manifest import PACKAGES

    return "ok", ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)


def _address_space() -> tuple[str, str]:
    from jaxattn.lab.engine import memory

    notes: list[str] = []
    memory.check_address_space(notes.append)
    limit = memory.address_space()
    return ("note", notes[0]) if notes else ("ok", f"{limit / 2**30:.1f} GiB" if limit else "no limit")


def _devices() -> tuple[str, str]:
    import jax

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
        # Beyond the exponents of float32.
        if not abs(float(jnp.exp(jnp.float64(-200.0))) / math.exp(-200) - 1) < 1e-12:
            lacking.append("exp(-200) is wrong")
        try:
            solved = jnp.linalg.solve(jnp.array([[0.0, 2.0], [4.0, 0.0]]), jnp.array([2.0, 4.0]))
            if jnp.abs(solved - 1).max() > 1e-14:
                lacking.append("a linear system is solved wrongly")
        except (jax.errors.JaxRuntimeError, NotImplementedError):
            lacking.append("no linear system can be solved")
    if not lacking:
        return "ok", "works"
    found = ", ".join(lacking)
    if backend.has_host():
        return "note", f"{found}; what needs float64 runs on the host's CPU"
    return "broken", found


def _jaxlib() -> tuple[str, str]:
    import jax

    from jaxattn.lab.engine.devices import trouble

    found = trouble(jax.default_backend())
    return ("note", found) if found else ("ok", "no known trouble with this version here")


def _folder(path: Path) -> tuple[str, str]:
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    if not os.access(above, os.W_OK):
        return "note", f"{path}: not writable, so nothing is kept; set JAXATTN_CACHE to another folder"
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 2**20
    return "ok", f"{path}: {len(files)} files, {size:.0f} MiB"


def _datasets() -> tuple[str, str]:
    folder = Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")))
    if not folder.is_dir():
        return "note", f"{folder}: no such folder; give data.data_dir, or set TFDS_DATA_DIR"
    return "ok", f"{folder}: {', '.join(sorted(p.name for p in folder.iterdir() if p.is_dir())) or 'empty'}"


def _disk() -> tuple[str, str]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return ("ok" if free > 1 else "note"), f"{free:.1f} GiB"
