"""Time a descent step for multiple values of d. In span coordinates, the time does not depend on d.

    python benchmarks/step_by_dim.py --out results/benchmarks

The script prints the time per step in microseconds (median over alternating repeats in one process) and its
ratio to the time for d = V + 2, for p alone and for E, p and v together. Rows with "axes" run the same loop
on (V, d) arrays, which is required for Adam and other methods that depend on the axes of R^d.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxattn as ja
from jaxattn.lab.study import seed

SIZES = (
    {"vocab_size": 200, "length": 16, "sequences": 512},
    {"vocab_size": 50, "length": 8, "sequences": 200},
)
DIMS = (2048, 4096)


def looped(sizes, dim, train, in_span):
    """Compile a descent, and return a function that times its steps, in microseconds per step."""
    study = ja.Study(
        name="step",
        data=ja.data.Independent(relevant=20, **sizes),
        model=ja.models.OneLayer(dim=dim),
        phases=[ja.dynamics.Descent(name="all", train=train, optimizer="sgd", step_size=0.1, steps=10)],
    )
    setting = study.base if in_span else study.base._replace(model=ja.models.OneLayer(dim=dim))
    data_key, key, _ = seed.keys(0)
    corpora = jax.jit(lambda: seed.draw_data(setting, data_key))()
    params = jax.jit(lambda: seed.initial_params(setting, corpora, key, ()))()
    initial_state = seed.begin_phase(setting, 0, params, corpora, key)
    # Pass the data as an argument: if they were constants, the program would differ from a study's program.
    advance = jax.jit(lambda carried, data, steps: seed.advance(setting, 0, carried, data, steps))

    def run(steps):
        began = time.perf_counter()
        jax.block_until_ready(advance(initial_state, corpora, jnp.int32(steps)))
        return 1e6 * (time.perf_counter() - began) / steps

    run(1)
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for step_by_dim.json")
    given = parser.parse_args()
    rows = []
    for sizes in SIZES:
        for train in (["p"], ["E", "p", "v"]):
            least = sizes["vocab_size"] + 2
            runs = {("span", dim): looped(sizes, dim, train, True) for dim in (least, *DIMS)}
            runs |= {("axes", dim): looped(sizes, dim, train, False) for dim in DIMS}
            times = {name: [] for name in runs}
            for _ in range(given.repeats):
                for name, run in runs.items():
                    times[name].append(run(given.steps))
            medians = {name: statistics.median(x) for name, x in times.items()}
            for (form, dim), median in medians.items():
                ratio = round(median / medians["span", least], 2)
                row = sizes | {"train": ", ".join(train), "form": form, "dim": dim}
                rows.append(row | {"us": round(median, 1), "ratio": ratio})
                print(row, f"{median:.1f} us, {ratio:.2f} x", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        found = {"jax": jax.__version__, "processor": platform.machine(), "rows": rows}
        (given.out / "step_by_dim.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
