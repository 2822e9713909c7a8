"""The attacks in small numbers; `python tests/robustness` runs them in full."""

import importlib
from pathlib import Path

import pytest

# Kills and damages are slow tests, because they first make the folders to attack.
SMALL = {"sweep_files": 20, "corpora": 8}
MORE = {
    "forged": 21,
    "kills": 12,
    "damages": 60,
    "swaps": 40,
    "buckets": 17,
    "sweep_files": 300,
    "corpora": 60,
}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *SMALL.items(),
        pytest.param("forged", 2, marks=pytest.mark.more),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE.items()),
    ],
)
def test_injected_faults_lead_to_correct_results_or_errors(monkeypatch, name, count):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    module = importlib.import_module(name)
    # Tests may be delayed by other processes on the machine.
    monkeypatch.setattr(module, "LONGEST_S", 3600.0, raising=False)
    outcomes = module.attack(count, seed=0)
    assert sum(outcomes.values()) >= count
