"""Measure the proven gaps and run times of exact certificates, and run the independent checker on them.

    python benchmarks/certificates.py --seeds 1000 --out results/benchmarks
    python benchmarks/certificates.py --seeds 0 --large --out results/benchmarks

Each seed defines one problem in the setting of claim T4.3: Assumption 1 with V = 50, 20 relevant tokens, n =
200, T = 8 and d = 2,048, after one step of size 200 on E, with all relevant tokens selected. `--large` adds a
random corpus with 25,000 sequences and 7,800 tokens (see max_margin.py). The checker runs in a separate
process that imports only the standard library.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from max_margin import batch_problem, large_problem, large_selections

import jaxattn as ja
from jaxattn.theory import check_certificate

CHECKER = Path(check_certificate.__file__)


def checked(path):
    """Run the checker on a certificate and return its verdict and the time in seconds."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-I", "-S", CHECKER, path], capture_output=True, text=True)
    return done.stdout.partition(":")[0], time.perf_counter() - begin


def measure(scores, chosen, solution, path):
    """Write and check one certificate, and return the proven gap, the floating-point gap and the times."""
    begin = time.perf_counter()
    gap = ja.theory.write_certificate(path, scores, chosen, solution).gap
    written = time.perf_counter() - begin
    said, took = checked(path)
    return {
        "accepted": said == "accepted",
        "proven_gap": gap,
        "floating_gap": float(solution.duality_gap),
        "write_s": written,
        "check_s": took,
    }


def measure_seeds(seeds):
    """Write and check one certificate per seed, and return the largest gaps and the median times."""
    E, corpora, chosen = batch_problem(seeds, relevant=20)
    begin = time.perf_counter()
    solutions = ja.theory.max_margin_batch(ja.theory.Scores(E, corpora), chosen)
    solved = time.perf_counter() - begin
    corpora, masks = jax.tree.map(np.asarray, corpora), np.asarray(chosen.mask)

    def one(seed):
        corpus, solution = jax.tree.map(lambda x: x[seed], (corpora, solutions))
        # Within a batch, support sets are padded with zero multipliers.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "certificate.json"
            return measure(
                ja.theory.Scores(E[seed], corpus), ja.theory.Selection(masks[seed]), solution, path
            )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(one, range(seeds)))
    return {
        "seeds": seeds,
        "accepted": sum(row["accepted"] for row in rows),
        "largest_proven_gap": max(row["proven_gap"] for row in rows),
        "largest_floating_gap": max(row["floating_gap"] for row in rows),
        "median_write_s": float(np.median([row["write_s"] for row in rows])),
        "median_check_s": float(np.median([row["check_s"] for row in rows])),
        "solve_s": solved,
    }


def measure_large():
    """Write and check a certificate for each feasible selection of the large problem, and return the rows."""
    E, p, corpus, rng = large_problem()
    rows = []
    for name, chosen in large_selections(E, p, corpus, rng):
        scores = ja.theory.Scores(E, corpus)
        solution = ja.theory.max_margin(scores, chosen)
        if solution.feasible:
            with tempfile.TemporaryDirectory() as folder:
                row = measure(scores, chosen, solution, Path(folder) / "certificate.json")
            rows.append({"selection": name, "pairs": int(solution.num_pairs), **row})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="problems of the claim T4.3")
    parser.add_argument("--large", action="store_true", help="a problem of the size of IMDB, too")
    parser.add_argument("--out", type=Path, help="folder for certificates.json")
    arguments = parser.parse_args()
    if arguments.seeds < 0:
        parser.error(f"--seeds {arguments.seeds}: give 0 or more")
    result = {}
    if arguments.seeds:
        result["seeds"] = measure_seeds(arguments.seeds)
        print(json.dumps(result["seeds"]), flush=True)
    if arguments.large:
        result["large"] = measure_large()
    result["machine"] = {"processor": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__}
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "certificates.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
