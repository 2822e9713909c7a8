"""Print the results of searches as Markdown tables: python sweeps/refute/table.py [FOLDER]."""

import json
import sys
from pathlib import Path

ROWS = {
    "R1": "frank_wolfe",
    "R2": "trained_head",
    "R3": "all_relevant",
    "R4": "two_relevant",
    "C2": "cells",
    "C5": "diagonal_linear",
    "C3": "single_leader",
}


def row(name, folder):
    """Return the cells of a search: verdict, what was found, numbers of instances, seconds."""
    found = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    record = folder / "counterexample.json"
    shown = "–"
    if record.is_file():
        instance = json.loads(record.read_text(encoding="utf-8"))["instance"]
        text = json.dumps(instance).replace('"', "")
        shown = f"`{text}`"
    counts = f"{found['inside']:,} | {found['seconds']:.0f} | {found['cpu_seconds']:.0f}"
    return f"| {name} | {found['verdict']} | {shown} | {counts} |"


def table(names, folder):
    """Return a table of the searches that are in a folder."""
    head = "| claim | verdict | found | N | seconds | CPU seconds |\n|---|---|---|---|---|---|"
    rows = [
        row(label, folder / name)
        for label, name in names.items()
        if (folder / name / "verdict.json").is_file()
    ]
    return "\n".join([head, *rows])


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "results/published/refute")
    print(table({f"{label} [`{name}`]({name}.py)": name for label, name in ROWS.items()}, where))
    print()
    own = sorted(path.name for path in where.glob("own_*"))
    print(table({f"`{name}`": name for name in own}, where))
