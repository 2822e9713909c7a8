"""The attacks in small; `python tests/robustness` runs them in full."""

import importlib
from pathlib import Path

import pytest

# Kills and damages are in the slow set alone: there are folders to make before there is anything to attack.
SMALL = {"sweep_files": 40, "corpora": 8}
MORE = {
    "forged": 12,
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
def test_nothing_is_silently_wrong(monkeypatch, name, count):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    module = importlib.import_module(name)
    # Tests may share a machine with others, that keeps them waiting.
    monkeypatch.setattr(module, "LONGEST_S", 3600.0, raising=False)
    outcomes = module.attack(count, seed=0)
    assert sum(outcomes.values()) >= count
