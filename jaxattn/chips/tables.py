"""Tables of what was compiled for a chip, for people."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

# What a program may do that costs more than its bytes say, in words.
_NOTES = {
    "scatter_adds": "scatter-adds",
    "compare_and_swaps": "compare-and-swap loops",
    "collectives": "collectives",
    "float64": "float64 operations",
    "conditionals": "conditionals",
}
_UNITS = ("", "k", "M", "G", "T", "P")
Rows = Sequence[Any]


def programs(rows: Rows) -> pd.DataFrame:
    """Lay out programs (`plan.ChipProgram`): where they run, and what a step of each, or a call, comes to."""
    return pd.DataFrame([_program(row) for row in rows])


def groups(rows: Rows) -> pd.DataFrame:
    """Lay out compile groups (`plan.ChipGroup`): how many lanes fit, and the time at least."""
    return pd.DataFrame(
        {
            "group": row.group,
            "lanes": row.lanes,
            "together": row.together,
            "fitting": f"{row.fitting:,}" if row.held else "on the host",
            "batches": row.batches,
            "memory of a lane": f"{quantity(row.per_lane)}B",
            "of a device": f"{quantity(row.held)}B",
            "compile": f"{row.compile_s:.0f} s",
            "time at least": seconds(row.seconds_at_least),
        }
        for row in rows
    )


def sentence(rows: Rows, target: str) -> str:
    """Say in one line how much was compiled, and what was not."""
    here = [row for row in rows if row.where == target]
    host = [row for row in rows if row.on_host]
    failed = [row for row in rows if row.error]
    said = [f"{len(here)} programs compile for {target}"]
    said += [f"{len(host)} need float64 and run on the host's CPU"] * bool(host)
    said += [f"{len(failed)} do not compile: {failed[0].error}"] if failed else []
    return "; ".join(said)


def quantity(x: int | float) -> str:
    """Write a number with three digits and a prefix: 12.3 M."""
    power = 0
    while abs(x) >= 999.5 and power < len(_UNITS) - 1:
        x, power = x / 1000, power + 1
    return f"{x:.3g} {_UNITS[power]}"


def seconds(x: int | float) -> str:
    """Write a time in the unit that suits it."""
    for size, unit in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x * 1e6:.3g} µs"


def _program(row: Any) -> dict[str, Any]:
    first = {"group": row.group, "phase": row.phase, "program": row.program, "where": row.where}
    if row.bytes is None:
        empty = dict.fromkeys(("per", "bytes", "flops", "launches", "at least", "memory", "compile"), "")
        return first | empty | {"notes": row.error}
    notes = {words: getattr(row, name) for name, words in _NOTES.items()}
    return first | {
        "per": row.per,
        "bytes": f"{quantity(row.bytes)}B",
        "flops": quantity(row.flops).strip(),
        "launches": f"{row.launches:.0f}",
        "at least": seconds(row.seconds_at_least),
        "memory": f"{quantity(row.held)}B",
        "compile": f"{row.compile_s:.1f} s",
        "notes": ", ".join(f"{number} {words}" for words, number in notes.items() if number),
    }
