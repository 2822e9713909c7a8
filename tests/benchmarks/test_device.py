"""Tests on an accelerator: reproducibility, memory against the plan, time against the roofline.

Every case runs in a separate process, because a device reports the peak memory of a process.
"""

import os
import subprocess
import sys

import bench
import jax
import pytest
from bench import CASES, REVIEWS, read

pytestmark = pytest.mark.device
# Launches and repeated reads make programs slower than their minimum traffic.
SLOWER = 4.0


@pytest.fixture(scope="module", autouse=True)
def chip():
    """Skip without an accelerator."""
    if jax.default_backend() == "cpu":
        pytest.skip("no accelerator here, or JAX_PLATFORMS does not name it")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure a case once in a separate process, at its smallest number of seeds."""
    known = {}

    def one(case):
        if case.name not in known:
            file = tmp_path_factory.mktemp("bench") / "bench.json"
            words = ["--only", case.name, "--seeds", str(case.seeds[0]), "--out", str(file)]
            env = {name: x for name, x in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
            subprocess.run([sys.executable, bench.__file__, *words, "--quiet"], env=env, check=True)
            report = read(file)
            known[case.name] = report.machine, next(x for x in report.measured if x.case == case.name)
        return known[case.name]

    return one


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_bitwise_reproducible(case, measured):
    machine, found = measured(case)
    assert machine.platform != "cpu"
    assert found.same_bits


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_memory_use_stays_below_the_plan(case, measured):
    """The plan determines the size of batches, so a device must not use more memory."""
    _, found = measured(case)
    assert found.peak_mib is not None
    assert found.planned_mib / 2 < found.peak_mib <= found.planned_mib


def test_step_time_is_close_to_the_memory_bound(measured):
    """A step of Adam on E reads E twice, and reads and writes E and its two moments: eight passes over E."""
    case = next(case for case in CASES if "Adam" in case.name)
    machine, found = measured(case)
    moved = 8 * 4 * REVIEWS["vocab_size"] * case.study.base.model.dim
    least_us = 1e6 * moved / (machine.copied_gb_s * 1e9)
    assert least_us < found.step_us < SLOWER * least_us
