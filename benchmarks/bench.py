"""Measure step time, bitwise reproducibility and memory of each kind of phase on this machine.

python benchmarks/bench.py --out mine.json          # measure, print a table and write it to a file
python benchmarks/bench.py mine.json other.json     # compare machines
"""

import argparse
import gc
import hashlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pandas as pd

from jaxattn.core import backend
from jaxattn.core.errors import InputError, RunError, first_line, writing
from jaxattn.data.corpus import Corpus
from jaxattn.data.generators import Assumption1, Independent
from jaxattn.data.token_ids import from_flat
from jaxattn.dynamics import ExactFlow
from jaxattn.dynamics.descents.descent_phase import Descent
from jaxattn.lab import cli
from jaxattn.lab.api import Study
from jaxattn.lab.cli.commands import check_once
from jaxattn.lab.cli.console import print_error, print_line, print_table
from jaxattn.lab.cli.options import require_local_folder
from jaxattn.lab.engine import devices, memory
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.programs import seed_keys
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage import files, provenance
from jaxattn.lab.study.groups import compile_groups
from jaxattn.models.one_layer import OneLayer
from jaxattn.models.two_layer import TwoLayer

# Maximum size of a report file in bytes; a typical file has a few kilobytes.
MAX_BYTES = 2**24
# Sizes of the IMDB dataset, with a vocabulary of the words that occur at least 45 times.
REVIEWS = {"sequences": 25_000, "vocab_size": 7_813}


@dataclass(frozen=True)
class Case:
    """Benchmark case.

    Attributes:
        name: name of the case.
        study: a study with one cell, whose first phase is timed.
        seeds: numbers of vmapped seeds.
        steps: number of steps by which the measured time is divided; 1 for a path that is computed in one
            call.
    """

    name: str
    study: Study
    seeds: tuple[int, ...]
    steps: int


def reviews(*, sequences: int, vocab_size: int) -> Corpus:
    """Return a fixed synthetic corpus with review-like lengths and Zipf-distributed tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.2, 0.6, sequences), 10, 2_000).astype(int)
    weight = 1 / np.arange(1, vocab_size + 1)
    tokens = rng.choice(vocab_size, lengths.sum(), p=weight / weight.sum())
    return from_flat(tokens, lengths, rng.choice([-1, 1], sequences), vocab_size=vocab_size)


def _case(
    name: str, seeds: tuple[int, ...], data: Any, model: Any, phase: Any, dtype: str = "float32"
) -> Case:
    probes = {"tokens": False, "per_decade": 0}
    study = Study(name="bench", data=data, model=model, phases=[phase], probes=probes, dtype=dtype)
    return Case(name, study, seeds, 1 if isinstance(phase, ExactFlow) else phase.steps)


def _of_reviews(**sizes: int) -> Any:
    return {"kind": reviews, **(REVIEWS | sizes)}


def _descent(steps: int, *train: str, optimizer: str = "sgd") -> Descent:
    return Descent(name="descent", train=train, optimizer=optimizer, step_size=1e-3, steps=steps)


CASES = (
    _case(
        "corpora of their own, p",
        (1, 16, 64, 256, 1024),
        Independent(vocab_size=200, relevant=40, length=16, sequences=512),
        OneLayer(dim=512),
        _descent(200, "p"),
    ),
    _case("reviews, p", (1, 16, 64), _of_reviews(), OneLayer(dim=2048), _descent(10, "p")),
    _case(
        "reviews, E and p and v by Adam",
        (1,),
        _of_reviews(),
        OneLayer(dim=2048),
        _descent(10, "E", "p", "v", optimizer="adam"),
    ),
    _case(
        "two layers, 512 reviews, E and p and v",
        (1,),
        _of_reviews(sequences=512),
        TwoLayer(dim=256),
        _descent(2, "E", "p", "v"),
    ),
    _case(
        "exact flow of p to 1e6",
        (1, 64),
        Assumption1(vocab_size=50, relevant=20, length=8, sequences=200),
        OneLayer(dim=2048),
        ExactFlow(name="flow"),
        dtype="float64",
    ),
)


# Size in bytes of the array that is copied to measure memory bandwidth.
_COPIED = 2**28


class Measured(msgspec.Struct, frozen=True):
    """Measurements for a case and a number of seeds.

    Attributes:
        case: name of the case.
        seeds: number of vmapped seeds.
        first_s: time of the first pass in seconds, including compilation.
        step_us: time per step and seed in microseconds, median over passes. For exact flows, time per path.
        passes: number of passes in the median.
        same_bits: True if the results of all passes are bitwise identical.
        planned_mib: predicted peak memory of a device.
        peak_mib: measured peak memory of a device so far, including earlier cases; None if the device does
            not report it.
    """

    case: str
    seeds: int
    first_s: float
    step_us: float
    passes: int
    same_bits: bool
    planned_mib: float
    peak_mib: float | None


class Machine(msgspec.Struct, frozen=True):
    """Description of the machine that made a report.

    Attributes:
        device: kind of the devices.
        platform: "cpu", "gpu" or "tpu".
        devices: number of devices; on a CPU, number of cores.
        copied_gb_s: copy bandwidth of one device for a large array in GB/s, counting reads and writes.
        python: version of Python.
        jax: version of JAX.
        made_by: version, commit and code hash of jaxattn.
    """

    device: str
    platform: str
    devices: int
    copied_gb_s: float
    python: str
    jax: str
    made_by: dict[str, str | None]


def machine() -> Machine:
    """Return a description of this machine and its devices."""
    local = jax.local_devices()
    return Machine(
        device=local[0].device_kind if local[0].platform != "cpu" else platform.machine(),
        platform=local[0].platform,
        devices=len(local),
        copied_gb_s=bandwidth() / 1e9,
        python=platform.python_version(),
        jax=jax.__version__,
        made_by=provenance.installed(),
    )


def bandwidth() -> float:
    """Measure the copy bandwidth of one device for a large array, in bytes read and written per second."""
    copied = jax.jit(lambda x: x + 1)
    x = jax.block_until_ready(copied(jnp.zeros(_COPIED // 4, jnp.float32)))
    return 2 * _COPIED / min(_timed(lambda: copied(x))[0] for _ in range(5))


def measure(case: Case, seeds: int, repeats: int) -> Measured:
    """Measure the time, reproducibility and memory of a case.

    Args:
        case: the case.
        seeds: number of vmapped seeds.
        repeats: number of passes after the first, at least 1.

    Returns:
        The measurements.

    Raises:
        RunError: the case does not fit in memory.
    """
    try:
        with backend.precision(case.study.dtype):
            return _measure(case, seeds, repeats)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        raise RunError(f"{case.name}, {seeds} seeds: {first_line(error)}") from None


def _measure(case: Case, seeds: int, repeats: int) -> Measured:
    (group,) = compile_groups(case.study.cells)
    shared = group.setting.data.shared
    runs = devices.pad_to_devices([(group.cells[0], seed) for seed in range(seeds)], shared)
    data_keys, keys, _ = seed_keys([seed for _, seed in runs])
    numbers = group.hyperparameters([cell for cell, _ in runs])
    programs = ProgramCache().of(group)
    loaded = programs.draw(data_keys, numbers)
    params = programs.start(loaded, keys, numbers)
    made = programs.phase(0, loaded)
    steps = made.probe_steps[-1]

    def once() -> Any:
        carried = made.begin(params, loaded.splits, numbers, keys)
        return made.advance(carried, loaded.splits, numbers, jnp.int32(steps)).state.params

    (first_s, bits), *passes = [_timed(once) for _ in range(1 + repeats)]
    return Measured(
        case=case.name,
        seeds=seeds,
        first_s=first_s,
        step_us=1e6 * statistics.median(seconds for seconds, _ in passes) / case.steps / seeds,
        passes=repeats,
        same_bits=all(again == bits for _, again in passes),
        planned_mib=memory.peak(group, programs, len(runs)) / 2**20,
        peak_mib=_peak(),
    )


def _timed(function: Callable[[], Any]) -> tuple[float, list[str]]:
    """Return the time in seconds until the result of a call is ready, and a hash of each result array."""
    begin = time.perf_counter()
    found = jax.block_until_ready(function())
    took = time.perf_counter() - begin
    return took, [hashlib.sha256(np.asarray(x).tobytes()).hexdigest() for x in jax.tree.leaves(found)]


def _peak() -> float | None:
    every = [device.memory_stats() for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in every if stats and "peak_bytes_in_use" in stats]
    return max(peaks) / 2**20 if peaks else None


class Report(msgspec.Struct, frozen=True):
    """Measurements made on one machine."""

    machine: Machine
    measured: list[Measured]

    @property
    def title(self) -> str:
        """Short description of the machine."""
        it = self.machine
        return f"{it.devices} × {it.device}, copies {it.copied_gb_s:.0f} GB/s, jax {it.jax}"


def write(report: Report, path: Path) -> Path:
    """Write a report as JSON and return its path.

    Raises:
        RunError: the file cannot be written.
    """
    with writing(path, "give another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        InputError: the file does not exist, or is not a report.
    """
    try:
        content = files.read_file(path, None, maximum=MAX_BYTES)
        return msgspec.json.decode(content, type=Report)
    except files.Damaged as error:
        raise InputError(f"{error}; give a file that bench.py --out wrote") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InputError(f"{path}: not a file of bench.py, which writes one with --out") from None


def table(report: Report) -> pd.DataFrame:
    """Return the measurements in a report as a display table."""
    return pd.DataFrame(
        {
            "case": row.case,
            "seeds": row.seeds,
            "µs a step and seed": row.step_us,
            "first pass, s": row.first_s,
            "same bits": "yes" if row.same_bits else "NO",
            "planned MiB": round(row.planned_mib),
            "peak MiB so far": "-" if row.peak_mib is None else f"{row.peak_mib:.0f}",
        }
        for row in report.measured
    )


def beside(reports: Sequence[Report]) -> pd.DataFrame:
    """Return a table that compares the times per step and seed in several reports, in microseconds.

    The table has a row for each case and number of seeds, and a column for each report.
    """
    keys = dict.fromkeys((row.case, row.seeds) for report in reports for row in report.measured)
    found = [{(row.case, row.seeds): row.step_us for row in report.measured} for report in reports]
    frame = pd.DataFrame([{"case": case, "seeds": seeds} for case, seeds in keys])
    for number, (report, own) in enumerate(zip(reports, found, strict=True), start=1):
        # Number the columns, because two machines can have the same description.
        frame[f"{number}: {report.title}"] = [f"{own[key]:.3g}" if key in own else "-" for key in keys]
    return frame


def run(options: argparse.Namespace) -> None:
    """Measure the selected cases, or compare report files, and print a table."""
    if options.files:
        if options.only or options.out or options.seeds is not None:
            raise InputError("--only, --seeds and --out do not apply to files; remove them")
        print_table("µs a step and seed", beside([read(path) for path in options.files]))
        return
    require_local_folder(options.out or "")
    for name in ("seeds", "repeats"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise InputError(f"--{name} {number}: give at least 1")
    cases = [case for case in CASES if not options.only or any(word in case.name for word in options.only)]
    if not cases:
        known = "; ".join(case.name for case in CASES)
        raise InputError(f"--only {' '.join(options.only)}: no case name contains it; the cases are {known}")
    devices.use_all_cores()
    report = Report(machine(), [])
    wanted = [(case, n) for case in cases for n in case.seeds if options.seeds is None or n <= options.seeds]
    with Reporter(options.quiet) as reporter:
        for number, (case, together) in enumerate(wanted):
            reporter.update(f"{case.name}, {together} seeds", number / len(wanted))
            try:
                report.measured.append(measure(case, together, options.repeats))
            except RunError as error:
                reporter.warn(f"left out: {error}")
            if options.out is not None:
                write(report, options.out)
    print_table(report.title, table(report))
    if options.out is not None:
        print_line(options.out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files written with --out")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="measure only cases whose names contain one of these",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="largest number of vmapped seeds to measure")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        metavar="N",
        help="number of passes after the first, of which the median is reported",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the measurements to this file")
    parser.add_argument("--quiet", action="store_true", help="print results and errors only")
    options = parser.parse_args()
    # Use the command line's thresholds for garbage collection.
    gc.set_threshold(*cli.RARELY)
    try:
        check_once(sys.argv[1:])
        run(options)
    except InputError as error:
        return print_error(error, 2)
    except RunError as error:
        return print_error(error, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
