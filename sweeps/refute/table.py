"""Print the results of searches as Markdown tables: python sweeps/refute/table.py [FOLDER]."""

import json
import sys
from pathlib import Path

# Labels of the note docs/notes/refute.md, by the name of the folder.
LABELS = {
    "frank_wolfe": "R1",
    "frank_wolfe_repaired": "R1",
    "trained_head": "R2",
    "all_relevant": "R3",
    "two_relevant": "R4",
    "cells": "C2",
    "diagonal_linear": "C5",
    "single_leader": "C3",
}


def row(folder):
    """Return the row of a search: verdict, what was found, number of instances, wall and CPU seconds."""
    found = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    record, shown = folder / "counterexample.json", "–"
    if record.is_file():
        text = json.dumps(json.loads(record.read_text(encoding="utf-8"))["instance"])
        text = text.replace('"', "")
        shown = f"[`{text}`](../../results/published/refute/{folder.name}.html)"
    label = f"{LABELS[folder.name]} " if folder.name in LABELS else ""
    counts = f"{found['inside']:,} | {found['seconds']:.0f} | {found['cpu_seconds']:.0f}"
    return f"| {label}`{folder.name}` | {found['verdict']} | {shown} | {counts} |"


def table(folders):
    """Return a table of the searches in some folders."""
    head = "| claim | verdict | found | N | seconds | CPU seconds |\n|---|---|---|---|---|---|"
    return "\n".join([head, *(row(one) for one in folders if (one / "verdict.json").is_file())])


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "results/published/refute")
    print(table(where / name for name in LABELS))
    print()
    print(table(sorted(where.glob("own_*"))))
