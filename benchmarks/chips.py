"""What the programs of shipped sweeps move, compute and launch on chips that need not be here.

    python benchmarks/chips.py --out results/benchmarks --data-dir DIRECTORY_OF_TFDS    # a table
    python benchmarks/chips.py --renew tests/chips/ceilings.toml                        # for the tests

Needs the compilers: pip install "jaxattn[aot]", in an environment of its own.
"""

import argparse
import json
import math
import tomllib
from dataclasses import asdict
from pathlib import Path

import tomli_w

from jaxattn.api import Study
from jaxattn.chips.tables import quantity, seconds

ROOT = Path(__file__).parents[1]
CEILINGS = ("launches", "bytes", "temporaries")
# Of what is measured: another patch release of a compiler may fuse a little less.
SLACK = {"launches": 1.0, "bytes": 1.03, "temporaries": 1.1}
# Name of a row, sweep, overrides, program.
ROWS = (
    ("quickstart, 64 seeds", "sweeps/quickstart.toml", ("seeds=64",), "query.advance"),
    ("quickstart, 1,024 seeds", "sweeps/quickstart.toml", ("seeds=1024",), "query.advance"),
    ("imdb_one_layer, 1 seed", "sweeps/imdb_one_layer.toml", ("seeds=1",), "joint.advance"),
    ("imdb_one_layer, 16 seeds", "sweeps/imdb_one_layer.toml", ("seeds=16",), "joint.advance"),
    ("imdb_one_layer, 64 seeds", "sweeps/imdb_one_layer.toml", ("seeds=64",), "joint.advance"),
    ("margin_convergence, 16 seeds", "sweeps/margin_convergence.toml", ("axes={}",), "query.begin"),
    ("fig1_imdb, two layers", "jaxattn/paper/sweeps/fig1_imdb.toml", ("seeds=1",), "joint.advance"),
)
TARGETS = ("h200", "a100", "v5e")


def compiled(case):
    """Compile the programs of a case: rows by the names of programs."""
    study = Study.read(ROOT / case["sweep"], case.get("overrides", ()))
    found = study.plan(target=case["target"], only=case.get("only", ())).programs
    return {".".join(filter(None, (row.phase, row.program))): row for row in found}


def renew(path):
    """Measure the cases of a file of ceilings again, and write them."""
    head = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))
    cases = tomllib.loads(path.read_text())["case"]
    for case in cases:
        found = compiled(case)
        case["ceilings"] = {
            name: {key: math.ceil(getattr(row, key) * SLACK[key]) for key in CEILINGS}
            for name, row in found.items()
            if row.where == case["target"]
        }
        print(case["target"], case["sweep"], *case.get("overrides", ()), len(found), flush=True)
    path.write_text(head + tomli_w.dumps({"case": cases}))


def measure(folder, data_dir, targets, rows):
    """Compile the program of every row for every target; what a file holds of others stays."""
    path = folder / "chips.json"
    held = json.loads(path.read_text()) if path.exists() else []
    found = {(row["what"], row["target"]): row for row in held}
    for title, sweep, overrides, program in ROWS:
        for target in targets if title in rows else ():
            own = overrides + ((f"data.data_dir='{data_dir}'",) if "imdb" in sweep else ())
            case = {"target": target, "sweep": sweep, "overrides": own, "only": [program]}
            row = compiled(case)[program]
            found[title, target] = {"what": title, "target": target} | {
                key: x for key, x in asdict(row).items() if x is not None
            }
            print(found[title, target], flush=True)
            order = [(title, target) for title, *_ in ROWS for target in TARGETS]
            every = [found[key] for key in order if key in found]
            path.write_text(json.dumps(every, indent=1) + "\n")
            (folder / "chips.md").write_text(markdown(every))


def markdown(rows):
    """Lay out the rows."""
    head = "| a step, or the flow | on | bytes | launches | at least | temporaries | compiling |"
    lines = [head, "|" + "---|" * 7]
    for row in rows:
        first = f"| {row['what']} | {row['target']} |"
        if row["where"] != row["target"]:
            lines.append(f"{first} {row['error'] or 'on the host: float64'} | | | | |")
            continue
        sizes = [f"{quantity(row[key])}B" for key in ("bytes", "temporaries")]
        least, compiling = seconds(row["seconds_at_least"]), f"{row['compile_s']:.0f} s"
        cells = sizes[0], f"{row['launches']:.0f}", least, sizes[1], compiling
        lines.append(f"{first} {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data-dir", type=Path)
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
