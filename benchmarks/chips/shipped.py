"""Count memory traffic, operations and launches of shipped sweeps on chips that this machine lacks.

    python benchmarks/chips/shipped.py --out results/benchmarks --data-dir DIRECTORY_OF_TFDS    # a table
    python benchmarks/chips/shipped.py --renew tests/benchmarks/chips/ceilings.toml             # for tests

The compilers require a separate environment:

    pip install -e . -r benchmarks/chips/requirements.txt
"""

import argparse
import json
import math
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import tomli_w
from imdb import folder_of_imdb

from chips.plan import plan, quantity, seconds
from jaxattn.lab.api import Study

ROOT = Path(__file__).parents[2]
CEILINGS = ("launches", "bytes", "temporaries")
# Tolerance factors for the tests, because a different patch release of the compiler may fuse fewer
# operations.
SLACK = {"launches": 1.0, "bytes": 1.03, "temporaries": 1.1}
# Minimum memory traffic per seed in bytes. On IMDB, E is (7,813, 2,048). Each of the 3.88 million distinct
# entries stores a position and a count in 3 bytes, and is read in both directions.
EMBEDDINGS, ENTRIES = 4 * 7813 * 2048, 2 * 3 * 3_880_000
# Both the scores and the gradient read E. Adam reads and writes E and its two moments.
ADAM_ON_E, ON_P = 8 * EMBEDDINGS, 2 * EMBEDDINGS
# E is read twice. The counts, positions and gathered values of 48,000 entries are read once in each
# direction.
QUICKSTART = 2 * 4 * 200 * 202 + 240_000 + 270_000


def _rows():
    """For each table row, yield the title, sweep file, overrides, program and minimum traffic in bytes.

    The minimum is None if it is unknown.
    """
    quick, flow, layer, one_step = (
        f"sweeps/{name}.toml"
        for name in ("quickstart", "margin_convergence", "imdb_one_layer", "imdb_one_step")
    )
    for n in (64, 1024):
        yield f"quickstart, {n:,} seeds", quick, (f"seeds={n}",), "query.advance", n * QUICKSTART
    for n in (1, 16, 64):
        title = f"imdb_one_layer, {n} seed{'s' * (n > 1)}"
        yield title, layer, (f"seeds={n}",), "joint.advance", n * ADAM_ON_E + ENTRIES
    yield "imdb_one_step, E", one_step, (), "embed.advance", 3 * EMBEDDINGS + ENTRIES
    yield "imdb_one_step, p", one_step, (), "query.advance", ON_P + ENTRIES
    for n in (16, 1024):
        overrides = ("axes={}", f"seeds={n}")
        yield f"margin_convergence, {n:,} seeds", flow, overrides, "query.begin", None
    two_layers = "sweeps/paper/fig1_imdb/study.toml"
    yield "fig1_imdb, two layers, 256 reviews", two_layers, ("seeds=1",), "joint.advance", None


ROWS = tuple(_rows())
TARGETS = ("h200", "a100", "v5e")


def compiled(case):
    """Compile the programs of a case, and return lists of their rows by program name.

    Each list contains one row per compile group.
    """
    study = Study.read(ROOT / case["sweep"], case.get("overrides", ()))
    found = {}
    for row in plan(study, case["target"], only=case.get("only", ())).programs:
        found.setdefault(".".join(filter(None, (row.phase, row.program))), []).append(row)
    return found


def renew(path):
    """Recompute the ceilings (upper limits on counts) of all cases in a file, and rewrite the file."""
    head = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    cases = tomllib.loads(path.read_text())["case"]
    for case in cases:
        found = compiled(case)
        case["ceilings"] = {
            name: {key: math.ceil(max(getattr(row, key) for row in rows) * SLACK[key]) for key in CEILINGS}
            for name, rows in found.items()
            if rows[0].where == case["target"]
        }
        print(case["target"], case["sweep"], *case.get("overrides", ()), len(found), flush=True)
    path.write_text(head + tomli_w.dumps({"case": cases}))


def measure(folder, data_dir, targets, rows):
    """Compile the program of each row for every target, and update chips.json and chips.md."""
    path = folder / "chips.json"
    held = json.loads(path.read_text()) if path.exists() else []
    found = {(row["what"], row["target"]): row for row in held}
    for title, sweep, overrides, program, _ in ROWS:
        for target in targets if title in rows else ():
            own = overrides + ((f"data.data_dir='{data_dir}'",) if "imdb" in sweep else ())
            case = {"target": target, "sweep": sweep, "overrides": own, "only": [program]}
            (row,) = compiled(case)[program]
            counted = {key: x for key, x in asdict(row).items() if x is not None}
            found[title, target] = {"what": title, "target": target} | counted
            print(found[title, target], flush=True)
            order = [(title, target) for title, *_ in ROWS for target in TARGETS]
            every = [found[key] for key in order if key in found]
            path.write_text(json.dumps(every, indent=1) + "\n")
            (folder / "chips.md").write_text(markdown(every))


def markdown(rows):
    """Return the rows as a Markdown table."""
    heads = "a step, or the flow", "on", "bytes", "of the floor", "launches", "at least", "temporaries"
    lines = ["| " + " | ".join((*heads, "compiling")) + " |", "|" + "---|" * 8]
    floors = {title: least for title, *_, least in ROWS}
    for row in rows:
        first = f"| {row['what']} | {row['target']} |"
        if row["where"] != row["target"]:
            lines.append(f"{first} {row.get('error') or 'on the host: float64'} | | | | | |")
            continue
        sizes = [f"{quantity(row[key])}B" for key in ("bytes", "temporaries")]
        least, compiling = seconds(row["seconds_at_least"]), f"{row['compile_s']:.0f} s"
        floor = floors[row["what"]]
        ratio = f"{row['bytes'] / floor:.2f}" if floor else ""
        cells = sizes[0], ratio, f"{row['launches']:.0f}", least, sizes[1], compiling
        lines.append(f"{first} {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data-dir", type=folder_of_imdb)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--rows", nargs="+", default=[title for title, *_ in ROWS])
    parser.add_argument("--renew", type=Path)
    options = parser.parse_args()
    if options.renew:
        renew(options.renew)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        measure(options.out, options.data_dir, options.targets, options.rows)


if __name__ == "__main__":
    main()
