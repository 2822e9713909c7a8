"""Measure the run time of each study in the neighbours book at laptop scale, with 1 and with 100 seeds.

    python benchmarks/neighbours.py [--only rates] [--seeds 1 100] --out results/benchmarks

A time covers the whole run, including compilation and the output of tables. Each study runs in its own
process.
"""

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from jaxattn.lab.books import book


def run(name, seeds):
    """Run the study of an item, and return its run time in seconds and its numbers of cells and seeds."""
    study = book.read_book("neighbours").item(name).study("laptop", overrides=[f"seeds={seeds}"])
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        results = study.run(Path(folder) / "run", quiet=True)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "cells": len(results.manifest["cells"]), "seeds": seeds}


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [item.name for item in book.read_book("neighbours").items]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 100])
    parser.add_argument("--out", type=Path, help="folder for neighbours.json")
    given = parser.parse_args()
    if min(given.seeds) < 1:
        parser.error(f"--seeds {min(given.seeds)}; give at least 1")
    rows = {}
    for name in given.only:
        for seeds in given.seeds:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                row = process.submit(run, name, seeds).result()
            rows.setdefault(name, []).append(row)
            print(f"{name:24} {row['cells']:3} × {seeds:3} {row['seconds']:8.1f} s", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        machine = f"{platform.machine()}, {os.cpu_count()} CPU cores"
        text = json.dumps({"machine": machine, "runs": rows}, indent=1)
        (given.out / "neighbours.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
