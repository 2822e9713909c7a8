"""One small file of what was measured on one machine, and several of them side by side."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pandas as pd

from jaxattn.bench.measurement import Machine, Measured
from jaxattn.core.errors import InputError, RunError


class Report(msgspec.Struct, frozen=True):
    """A machine, and what was measured on it."""

    machine: Machine
    measured: list[Measured]

    @property
    def title(self) -> str:
        """Name the machine in a few words."""
        it = self.machine
        return f"{it.devices} × {it.device}, copies {it.copied_gb_s:.0f} GB/s, jax {it.jax}"


def write(report: Report, path: Path) -> Path:
    """Write a report as JSON, machine and rows by name.

    Raises:
        RunError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}; give another file") from None
    return path


def read(path: Path) -> Report:
    """Read a report back.

    Raises:
        InputError: no such file, or not one of these.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except msgspec.DecodeError:
        raise InputError(f"{path}: not a file of `jaxattn bench`; it makes one with --out") from None


def table(report: Report) -> pd.DataFrame:
    """Lay out one machine's rows for reading."""
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
    """Lay out the µs a step and seed of several machines, one column each, in the order of the first."""
    keys = dict.fromkeys((row.case, row.seeds) for report in reports for row in report.measured)
    found = [{(row.case, row.seeds): row.step_us for row in report.measured} for report in reports]
    frame = pd.DataFrame([{"case": case, "seeds": seeds} for case, seeds in keys])
    for number, (report, own) in enumerate(zip(reports, found, strict=True), start=1):
        # Two machines of one kind are two columns.
        frame[f"{number}: {report.title}"] = [f"{own[key]:.3g}" if key in own else "-" for key in keys]
    return frame
