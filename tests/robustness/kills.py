"""SIGKILL at random moments of a small study, which then ends with the numbers of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import damages
import jax

# Saves after every step, so that most kills hit something that is being written.
CHILD = """
import sys
from pathlib import Path
from jaxattn import Study
from jaxattn.engine.execute import Clock
from jaxattn.engine.progress import Reporter
from jaxattn.engine.run import run
class Telling(Reporter):
    def update(self, *_):
        print("step", flush=True)
study = Study.read(sys.argv[1], ["seeds=7", "chunk=3", "phases.query.steps=20", "probes.per_decade=2"])
with Telling(quiet=True) as reporter:
    print("begun", flush=True)
    run(study, Path(sys.argv[2]), command="test", reporter=reporter, clock=Clock(0.0, 0.0, float("inf")))
"""


def attack(count: int, seed: int) -> dict[str, int]:
    """Kill a study `count` times; what is killed is continued until it is finished, then another begins.

    Returns:
        How often it was killed where, and how many folders ended with the numbers of an undisturbed run.

    Raises:
        AssertionError: other numbers, an exception, a traceback.
    """
    outcomes: Counter[str] = Counter()
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _run(root / "undisturbed", root / "compiled", None)
        expected = damages._read(root / "undisturbed")
        killed, number = 0, 0
        while killed < count or (root / str(number)).exists():
            wait = (moments.randint(0, 8), moments.uniform(0, 0.15)) if killed < count else None
            folder = root / str(number)
            case = f"seed {seed}, kill {killed}, folder {number}"
            try:
                was = _run(folder, root / "compiled", wait)
                if was:
                    killed += 1
                    outcomes[was] += 1
                    continue
                damages._same(damages._read(folder), expected)
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            outcomes["folders that ended with the same numbers"] += 1
            number += 1
    return dict(sorted(outcomes.items()))


def _run(folder: Path, compiled: Path, wait: tuple[int, float] | None) -> str:
    """Run or continue, and kill after some steps and seconds; tell where, and nothing if it ended."""
    cache = jax.config.jax_compilation_cache_dir or str(compiled)
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", CHILD, str(damages.SMALL), str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        if wait is None:
            _, said = process.communicate()
        else:
            steps, seconds = wait
            seen = [process.stdout.readline() for _ in range(1 + steps)]
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
    if process.returncode == -signal.SIGKILL:
        return "killed before its first step" if "step\n" not in seen else "killed on its way"
    assert process.returncode == 0, said
    assert "Traceback" not in said, said
    return ""
