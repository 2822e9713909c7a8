"""What a run has spent, over all processes that worked at it: time, and the most memory held at once."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PROCESS = Path("/proc/self")


class Meter(NamedTuple):
    """Tells what was spent since it was started, and before.

    Attributes:
        started: when, on the monotonic clock.
        wall_time_s: what earlier processes took.
        peak_memory_mib: what they held.
    """

    started: float
    wall_time_s: float = 0.0
    peak_memory_mib: float = 0.0

    def after(self, *earlier: Mapping[str, Any]) -> "Meter":
        """Add what earlier processes told last: of several, the largest, as each tells the whole."""
        time_s, mib = (max(each.get(key) or 0.0 for each in earlier) for key in self._fields[1:])
        return self._replace(wall_time_s=time_s, peak_memory_mib=mib)

    def read(self) -> dict[str, float | None]:
        """Tell the seconds and the MiB; those are None where the system does not know them."""
        spent = self.wall_time_s + time.monotonic() - self.started
        held = max(self.peak_memory_mib, peak_mib() or 0.0)
        return {"wall_time_s": round(spent, 3), "peak_memory_mib": round(held) or None}


def start() -> Meter:
    """Start a meter; the peak begins anew, where the system can."""
    forget_peak()
    return Meter(time.monotonic())


def forget_peak() -> None:
    """Begin anew, where the system can: from now on, `peak_mib` tells of what was held since."""
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def peak_mib() -> float | None:
    """Tell the most memory held since the start of the process, or since `forget_peak`; None if unknown."""
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)
