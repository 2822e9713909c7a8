"""Time the same batches of a study in this process and in a pool of workers.

    python benchmarks/workers.py --workers 2 --batches 64

Every batch is one run on small arrays and uses one core, so N workers can be up to N times as fast. (For
large arrays, XLA computes products on all cores, so a single process is as fast as the workers.) The times
include the start of the workers, their imports and their compilation. A preliminary run fills the cache of
compiled programs.
"""

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import jaxattn as ja


def study(batches: int, steps: int) -> ja.Study:
    """Return a study with one cell, in which computation takes most of the time."""
    return ja.Study(
        name="workers",
        seeds=batches,
        chunk=1,
        data=ja.data.Assumption1(vocab_size=200, relevant=20, length=8, sequences=100),
        model=ja.models.OneLayer(dim=32),
        phases=[ja.dynamics.Descent(name="all", train=("*",), optimizer="adam", step_size=0.01, steps=steps)],
        probes={"per_decade": 0, "tokens": False},
    )


def main() -> None:
    """Run the study in one process and in a worker pool, and print the times and whether results agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    wanted = study(given.batches, given.steps)
    with tempfile.TemporaryDirectory() as place:
        study(1, given.steps).run(Path(place, "first"), quiet=True, report=False)
        began = time.monotonic()
        alone = wanted.run(Path(place, "alone"), quiet=True, report=False)
        one = time.monotonic() - began
        began = time.monotonic()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.workers, mp_context=context) as pool:
            pooled = wanted.run(Path(place, "pool"), quiet=True, report=False, executor=pool)
        several = time.monotonic() - began
    same = np.array_equal(alone.records["value"], pooled.records["value"], equal_nan=True)
    print(f"{given.batches} batches: one process {one:.1f} s, {given.workers} workers {several:.1f} s")
    print(f"ratio {several / one:.2f}; the same bits: {same}")


if __name__ == "__main__":
    main()
