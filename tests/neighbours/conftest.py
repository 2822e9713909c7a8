"""Short runs of neighbours."""

from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

SHIPPED = Path(__file__).parents[2] / "sweeps" / "neighbours"


@pytest.fixture
def read():
    """Read the study of a neighbour with overrides."""

    def make(name, *overrides):
        return ja.Study.read(SHIPPED / name / "study.toml", overrides)

    return make


@pytest.fixture
def code():
    """Import a function from a file of a neighbour, by default the one with its name."""

    def load(name, function, file=None):
        return ImportPaths(SHIPPED / name).load(f"{file or name}.py:{function}")

    return load


@pytest.fixture
def run(tmp_path, read):
    """Run a neighbour with overrides; return metrics at the end or at a step, (seeds,), by name.

    For several cells or phases, the arguments select one.
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
