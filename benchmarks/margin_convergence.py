"""Check Theorem 4.3 for many seeds by comparing the exact flow of p with certified max-margin directions.

    python benchmarks/margin_convergence.py --seeds 10000 --out results/benchmarks

The data satisfy Assumption 1 with V = 50, n = 200, T = 8, d = 2048. Training takes one step of size 200 on E,
then follows the flow of p until ‖p‖ = 1e6. For every seed, the study computes the selection of the final p,
the max-margin direction of that selection with its certificate, and 1 - cos between p and this direction. The
time covers the whole study, from sampling the corpora to writing the page, including compilation.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import jax

import jaxattn as ja
from jaxattn.core.errors import InputError

RELEVANT = 20
UNTIL = 1e6


def study(seeds):
    return ja.Study(
        name="margin_convergence",
        seeds=seeds,
        dtype="float64",
        data=ja.data.Assumption1(vocab_size=50, relevant=RELEVANT, length=8, sequences=200),
        model=ja.models.OneLayer(dim=2048),
        phases=[
            ja.dynamics.OneStep(name="step", step_size=200.0),
            ja.dynamics.ExactFlow(name="limit", until_norm=UNTIL),
        ],
        probes={
            "tokens": False,
            "per_decade": 0,
            "own": [ja.probes.MaxMarginDirection(), ja.probes.RelevantTokens(relevant=RELEVANT)],
        },
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--out", type=Path, help="folder for margin_convergence_SEEDS.json")
    arguments = parser.parse_args()

    try:
        wanted = study(arguments.seeds)
    except InputError as error:
        parser.error(str(error))
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = wanted.run(folder)
        took = time.perf_counter() - begin
        records = found.records
    last = records[(records["phase"] == "limit") & (records["step"] == records["step"].max())]
    ends = last.pivot(index="seed", columns="metric", values="value")
    result = {
        "seeds": len(ends),
        "failed": len(found.failures),
        "reached norm 1e6": int((ends["p_norm"] >= 0.99 * UNTIL).sum()),
        "certified": int((ends["feasible"] == 1).sum()),
        "relevant token selected in every sequence, and nothing else": int(
            (ends["only_relevant_selected"] == 1).sum()
        ),
        "worst 1 - cos": float(ends["one_minus_cosine"].max()),
        "median 1 - cos": float(ends["one_minus_cosine"].median()),
        "worst 1 - cos to the true direction, by its certificate": float(ends["certified_distance"].max()),
        "worst relative duality gap": float(ends["duality_gap"].max()),
        "all of it, s": took,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }
    for name, value in result.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        name = f"margin_convergence_{arguments.seeds}.json"
        (arguments.out / name).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
