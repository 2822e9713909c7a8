"""Measure the time that a study spends outside its compiled programs, and the time to resume the study.

    python benchmarks/orchestration.py --seeds 1000 --out results/benchmarks

The study of benchmarks/seeds_per_second.py runs as with `jaxattn run`. Every compilation and every call of a
compiled program is timed. The remaining wall time is overhead: planning, checkpoints, tables and progress.
Finally, `jaxattn run` is timed on the finished study.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
from seeds_per_second import STUDY

import jaxattn as ja
from jaxattn.lab.engine import batch_run, devices, programs
from jaxattn.lab.engine import run_study as engine
from jaxattn.lab.engine.progress import Reporter


def timed(function, spent):
    """Wrap a function so that the duration of each call is appended to the list `spent`.

    The duration includes the time until the results are ready.
    """

    def call(*arguments, **options):
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((arguments, options))):
            return function(*arguments, **options)
        begin = time.perf_counter()
        result = jax.block_until_ready(function(*arguments, **options))
        spent.append(time.perf_counter() - begin)
        return result

    return call


def watch(spent):
    """Patch jaxattn so that the duration of each program call and each compilation is appended to a list."""
    programs.BatchedFunction.__call__ = timed(programs.BatchedFunction.__call__, spent)
    programs.Programs.compile = timed(programs.Programs.compile, spent)
    batch_run.seed_keys = timed(batch_run.seed_keys, spent)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument(
        "--repeats", type=int, default=3, help="number of runs, of which the median is reported"
    )
    parser.add_argument("--out", type=Path, default=None, help="folder for orchestration.json")
    options = parser.parse_args()
    devices.use_all_cores()
    spent = []
    watch(spent)
    study = ja.Study.from_tables(STUDY.tree | {"seeds": options.seeds})
    runs, resumed = [], []
    for _ in range(options.repeats):
        spent.clear()
        # Force each run to recompile.
        jax.clear_caches()
        with tempfile.TemporaryDirectory() as folder:
            path, results = study.write(Path(folder) / "study.toml"), Path(folder) / "results"
            begin = time.perf_counter()
            with Reporter(quiet=True) as reporter:
                engine.run_study(study, results, command="benchmark", reporter=reporter)
            runs.append((time.perf_counter() - begin, sum(spent)))
            command = [sys.executable, "-m", "jaxattn", "run", str(path), "--out", str(results), "--quiet"]
            subprocess.run(command, check=True, capture_output=True)  # draws the figures
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            resumed.append(time.perf_counter() - begin)
    wall, programs = sorted(runs, key=lambda run: 1 - run[1] / run[0])[len(runs) // 2]
    result = {
        "seeds": options.seeds,
        "wall_s": wall,
        "programs_s": programs,
        "orchestration_s": wall - programs,
        "orchestration_share": 1 - programs / wall,
        "orchestration_share_of_every_run": [1 - programs / wall for wall, programs in runs],
        "resume_finished_s": statistics.median(resumed),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "orchestration.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
