"""Short runs of neighbours."""

from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

SHIPPED = Path(__file__).parents[2] / "sweeps" / "neighbours"


@pytest.fixture
def read():
    """Read a neighbour's study, with overrides."""

    def make(name, *overrides):
        return ja.Study.read(SHIPPED / name / "study.toml", overrides)

    return make


@pytest.fixture
def code():
    """Import a function of a neighbour's own file."""
    return lambda name, function: ImportPaths(SHIPPED / name).load(f"{name}.py:{function}")


@pytest.fixture
def run(tmp_path, read):
    """Run a neighbour with overrides; give metrics at the end, (seeds,), or at a step, by name.

    Of a study with several cells or phases, name those that are meant.
    """

    def make(name, *overrides):
        results = read(name, *overrides).run(tmp_path / name, quiet=True)
        assert results.failures.empty

        def at(metric, step=None, *, cell=0, phase=None):
            rows = results.records[results.records["metric"] == metric]
            rows = rows[(rows["cell"] == cell) & (rows["phase"] == (phase or results.phases[-1]))]
            rows = rows[rows["step"] == (rows["step"].max() if step is None else step)]
            return rows.sort_values("seed")["value"].to_numpy()

        return at

    return make
