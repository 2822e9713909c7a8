"""Which margin: sign descent maximises the ℓ_∞ margin, normalised descent the ℓ₂ margin."""

import numpy as np
import pytest
from scipy.optimize import linprog

pytestmark = pytest.mark.more


def largest_margin(ahead):
    """Maximise min_i ahead_i·p with ‖p‖_∞ ≤ 1 by a linear program."""
    rows, dim = ahead.shape
    found = linprog(
        [*np.zeros(dim), -1.0],
        A_ub=np.column_stack([-ahead, np.ones(rows)]),
        b_ub=np.zeros(rows),
        bounds=[(-1, 1)] * dim + [(None, None)],
    )
    return -found.fun


def test_sign_descent_maximises_the_linf_margin(run, read):
    without = ("Signum", "Adam", "Adam with a long memory")
    overrides = ("seeds=3", "phases.train.steps=5000", *(f"blocks.{name}=null" for name in without))
    at, study = run("which_margin", *overrides), read("which_margin", *overrides)
    blocks = [cell.settings["block"] for cell in study.cells]
    normalised, sign = blocks.index("normalised descent"), blocks.index("sign descent")
    for cell, own, other in ((normalised, "l2", "linf"), (sign, "linf", "l2")):
        assert (at(f"{own}_margin_share", cell=cell) > 0.9).all()
        assert (at(f"{own}_margin_share", cell=cell) > at(f"{other}_margin_share", cell=cell)).all()
    assert (at("linf_share_of_l2_direction", cell=normalised) < 0.97).any()
    for cell in (normalised, sign):
        assert (at("linf_margin_share", cell=cell) <= 1 + 1e-9).all()
        assert (at("linf_gap", cell=cell) < 1e-8).all()


def test_largest_margin_matches_linear_program(code, read):
    data = read("which_margin").dataset(5).train
    X, p = np.asarray(data.X, float), np.random.default_rng(0).normal(size=data.dim)
    _, facts = code("which_margin", "compare")(p[None], X, np.asarray(data.targets))
    top = (X @ p).argmax(axis=1)
    ahead = np.concatenate([np.delete(x[t] - x, t, axis=0) for x, t in zip(X, top, strict=True)])
    np.testing.assert_allclose(facts["linf_largest_margin"], largest_margin(ahead), rtol=1e-8)
