"""Short runs of neighbours."""

from pathlib import Path

import pytest

import jaxattn as ja

SHIPPED = Path(__file__).parents[2] / "sweeps" / "neighbours"


@pytest.fixture
def read():
    """Read a neighbour's study, with overrides."""

    def make(name, *overrides):
        return ja.Study.read(SHIPPED / name / "study.toml", overrides)

    return make


@pytest.fixture
def run(tmp_path, read):
    """Run a neighbour with overrides; give metrics at the end, (seeds,), or at a step, by name."""

    def make(name, *overrides):
        results = read(name, *overrides).run(tmp_path / name, quiet=True)
        assert results.failures.empty

        def at(metric, step=None):
            rows = results.records[results.records["metric"] == metric]
            rows = rows[rows["step"] == (rows["step"].max() if step is None else step)]
            return rows.sort_values("seed")["value"].to_numpy()

        return at

    return make
