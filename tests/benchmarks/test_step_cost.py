"""Upper bound of the cost of a step of p, relative to its two sparse products."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "step_against_scipy", Path(__file__).resolve().parents[2] / "benchmarks/step_against_scipy.py"
)
benchmark = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(benchmark)

# Relative to the time of SciPy's two sparse products, which alternate with the steps in this process.
CEILING = 1.8


@pytest.mark.slow
@pytest.mark.parametrize("sizes", benchmark.SIZES, ids=lambda sizes: f"n = {sizes['sequences']}")
def test_a_step_on_p_costs_little_more_than_two_matrix_products(sizes):
    assert benchmark.measure(sizes, number=500, repeats=11)["ratio"] < CEILING
