"""The most memory that this process has held at once."""

import contextlib
from pathlib import Path

_PROCESS = Path("/proc/self")


def forget() -> None:
    """Begin anew, where the system can: from now on, `mib` tells of what was held since."""
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def mib() -> float | None:
    """Tell the most memory held since the start of the process, or since `forget`; None if unknown."""
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), None)
