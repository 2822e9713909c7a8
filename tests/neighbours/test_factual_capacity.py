"""Capacity of an associative memory."""

from itertools import product
from math import log

import numpy as np
import pytest
from scipy.optimize import linprog

pytestmark = pytest.mark.more


def test_load_determines_the_number_of_facts(code):
    """N log N = load d² up to rounding."""
    for load, d in product((0.3, 0.7, 1.2), (8, 45)):
        n = code("factual_capacity", "number")(load, d)
        assert (n - 0.5) * log(n - 0.5) <= load * d**2 <= (n + 0.5) * log(n + 0.5)


def test_number_of_recalled_facts_matches_linear_programs(read, run):
    """A linear program finds W with u_i·W e_i ≥ 1 + u_j·W e_i for all j ≠ i, or proves that none exists."""
    feasible = []
    overrides = ("axes=null", "figures=null", "data.dim=4", "data.load=0.8", "phases.train.steps=1500")
    study = read("factual_capacity", *overrides)
    for seed in range(8):
        data = study.dataset(seed).train
        e, u = np.asarray(data.e, float), np.asarray(data.u, float)
        n = len(e)
        rows = [np.outer(u[j] - u[i], e[i]).ravel() for i in range(n) for j in range(n) if i != j]
        found = linprog(np.zeros(16), A_ub=rows, b_ub=-np.ones(len(rows)), bounds=(None, None))
        feasible.append(found.status == 0)
    recalled = run("factual_capacity", *overrides, "seeds=8")("train_accuracy") == 1
    assert recalled.sum() > 0
    assert not (recalled & ~np.array(feasible)).any()
    assert recalled.sum() >= np.sum(feasible) - 1
