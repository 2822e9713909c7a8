"""Measure the effect of a code change on run time by benchmarking this tree and a revision in turn.

    python benchmarks/pairs.py REV [--rounds 6] [--data-dir DIRECTORY_OF_TFDS] --out results/benchmarks

Each tree runs its own version of the benchmark. The order alternates from round to round. Each round gives
the ratio of the time of this tree to the time of the revision. The result is the geometric mean of the ratios
over rounds. Its interval is Student's t interval for the mean of the logarithms.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from imdb import folder_of_imdb
from scipy import stats

HERE = Path(__file__).parents[1]
# Scripts with their arguments, and the output keys that contain times.
BENCHMARKS = (
    ("max_margin", ("--only", "batch", "--seeds", "64", "256"), ("again_s",)),
    ("margin_convergence", ("--seeds", "64"), ("all of it, s",)),
    ("step_by_dim", ("--steps", "200", "--repeats", "5"), ("us",)),
    ("orchestration", ("--seeds", "200", "--repeats", "1"), ("wall_s",)),
)
WITH_DATA = (("imdb_gradient", (), ("seconds",)),)


def times(value, keys, path=(), wanted=False):
    """Yield (name, seconds) for each number nested under one of `keys` in the output of a benchmark."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from times(one, keys, (*path, key), wanted or key in keys)
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from times(one, keys, (*path, str(place)), wanted)
    elif wanted:
        yield " / ".join(path), float(value)


def measure(tree, name, arguments, keys):
    """Run a benchmark in a source tree and return its times in seconds by name."""
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(
            [sys.executable, f"benchmarks/{name}.py", *arguments, "--out", out],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        found = [json.loads(file.read_text("utf-8")) for file in Path(out).glob("*.json")]
    return dict(pair for one in found for pair in times(one, keys))


def ratios(there, name, arguments, keys, rounds):
    """Run a benchmark in both trees in turn, and return lists of time ratios by name, one ratio per round."""
    found = {}
    for turn in range(rounds):
        trees = [HERE, there] if turn % 2 else [there, HERE]
        seconds = {tree: measure(tree, name, arguments, keys) for tree in trees}
        for figure in seconds[HERE].keys() & seconds[there].keys():
            found.setdefault(f"{name}: {figure}", []).append(seconds[HERE][figure] / seconds[there][figure])
    return found


def interval(values):
    """Return the geometric mean of ratios and its 95 % interval as a list [mean, low, high]."""
    logs = np.log(values)
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    return [float(np.exp(logs.mean() + x)) for x in (0, -half, half)]


def tell(measured):
    """Print the mean ratio of each timing and its interval, and return them by name."""
    rows = {figure: interval(values) for figure, values in measured.items()}
    for figure, (mean, low, high) in sorted(rows.items()):
        print(f"{mean:5.2f} [{low:.2f}, {high:.2f}]  {figure}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", help="names of the benchmarks to run")
    parser.add_argument("--data-dir", type=folder_of_imdb, help="directory of tensorflow-datasets")
    parser.add_argument("--out", type=Path, help="folder for pairs.json")
    given = parser.parse_args()
    wanted = list(BENCHMARKS)
    if given.data_dir:
        wanted += [(name, ("--data-dir", given.data_dir), keys) for name, _, keys in WITH_DATA]
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "there"
        subprocess.run(["git", "worktree", "add", "--detach", there, given.revision], cwd=HERE, check=True)
        try:
            for benchmark in wanted:
                if given.only is None or benchmark[0] in given.only:
                    rows |= tell(ratios(there, *benchmark, given.rounds))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=HERE, check=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"against": given.revision, "rounds": given.rounds, "ratios": rows}, indent=1)
        (given.out / "pairs.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
