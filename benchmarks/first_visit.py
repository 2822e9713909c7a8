"""Measure what a new accelerator can do, in two parts of about five minutes each.

    JAX_PLATFORMS=cuda,cpu python benchmarks/first_visit.py first --out first_visit
    JAX_PLATFORMS=cuda,cpu python benchmarks/first_visit.py second --out first_visit

The first part shows whether and how fast jaxattn runs on the accelerator. Read its output before you start
the second part. The second part runs the tests that require a chip, a comparison with PyTorch on the same
card, Theorem 4.3 for 1,000 seeds, and one worker for each GPU. Each step runs in its own process with a time
limit, and its output is written to OUT/STEP.txt. OUT/visit_PART.json lists the card, the JAX version, and the
status and run time of each step. Copy the output to results/published/bench.

Without an accelerator, the script is a rehearsal that shows that the commands start.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
QUICKSTART = [PYTHON, "-m", "jaxattn", "run", "sweeps/quickstart.toml", "--quiet"]
WORKERS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

def main():
    import jax
    jax.config.update("jax_platforms", "cpu")
    import jaxattn as ja
    number = int(sys.argv[1])
    study = ja.Study.read("sweeps/quickstart.toml", [f"seeds={8 * number}", "chunk=8"])
    with ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(study.run(sys.argv[2], executor=pool, report=False))

if __name__ == "__main__":
    main()
"""


def steps(part: str, out: Path, gpus: int) -> dict[str, tuple[int, list[str]]]:
    """Return the time limit in seconds and the command of each step in a part, keyed by step name."""
    if part == "first":
        return {
            "doctor": (60, [PYTHON, "-m", "jaxattn", "doctor"]),
            "quickstart_cold": (120, [*QUICKSTART, "--out", str(out / "cold")]),
            "quickstart_warm": (60, [*QUICKSTART, "--out", str(out / "warm")]),
            "bench": (240, [PYTHON, "benchmarks/bench.py", "--out", str(out / "bench.json")]),
        }
    script = out / "workers.py"
    script.write_text(WORKERS)
    tests = ["-q", "-n", "0", "-m", "device", "tests/benchmarks/test_device.py"]
    return {
        "device_tests": (240, [PYTHON, "-m", "pytest", *tests]),
        "seeds_per_second": (90, [PYTHON, "benchmarks/seeds_per_second.py"]),
        "margin_convergence": (120, [PYTHON, "benchmarks/margin_convergence.py", "--seeds", "1000"]),
        "workers": (120, [PYTHON, str(script), str(gpus), str(out / "workers")]),
    }


def measure(name: str, limit: int, command: list[str], out: Path) -> dict[str, object]:
    """Run a step, write its output to a file, and return its exit status, run time and command."""
    began = time.monotonic()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    # Multiple processes use the card in turn, and one of them uses it together with PyTorch.
    env.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with (out / f"{name}.txt").open("wb") as file:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, timeout=limit, check=False
            )
            status: object = done.returncode
        except subprocess.TimeoutExpired:
            status = f"stopped after {limit} s"
    seconds = round(time.monotonic() - began, 1)
    print(f"{name}: status {status}, {seconds} s", flush=True)
    lines = (out / f"{name}.txt").read_text(errors="replace").splitlines()
    print("\n".join(lines[-20:]), flush=True)
    return {"status": status, "seconds": seconds, "command": " ".join(command)}


def main() -> None:
    """Run the steps of a part and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=("first", "second"))
    parser.add_argument("--only", nargs="*", help="names of steps")
    parser.add_argument("--out", type=Path, default=Path("first_visit"))
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # This process must not hold the card, so another process inspects it.
    look = (
        "import json, jax; from jaxattn.lab.engine.machine import devices_here as here; "
        "print(json.dumps([here(), jax.default_backend(), jax.local_device_count(), jax.__version__]))"
    )
    found = subprocess.run([PYTHON, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    here, platform, count, version = json.loads(found.stdout.splitlines()[-1])
    print(here, flush=True)
    chosen = steps(given.part, out, count if platform == "gpu" else 2)
    if unknown := set(given.only or ()) - chosen.keys():
        parser.error(f"--only: {', '.join(sorted(unknown))}: choose from {', '.join(chosen)}")
    record = {"devices": here, "platform": platform, "jax": version, "steps": {}}
    for name, (limit, command) in chosen.items():
        if not given.only or name in given.only:
            record["steps"][name] = measure(name, limit, command, out)
            (out / f"visit_{given.part}.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
