"""Oracle of the tests of attention heads, and the folder of the code."""

import sys
from pathlib import Path

import clarabel
import numpy as np
import pytest
from scipy import sparse

sys.path.append(str(Path(__file__).parents[3] / "sweeps" / "findings" / "heads"))


@pytest.fixture(scope="session")
def clarabel_direction():
    """Compute the shortest vector with features @ p ≥ 1."""

    def solve(features):
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
        m, size = features.shape
        cones, limits = [clarabel.NonnegativeConeT(m)], -np.ones(m)
        P, A = sparse.identity(size, format="csc"), sparse.csc_matrix(-features)
        return np.array(clarabel.DefaultSolver(P, np.zeros(size), A, limits, cones, settings).solve().x)

    return solve
