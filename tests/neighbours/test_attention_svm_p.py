"""Attention as an SVM in p: published programs, and the limit of each start."""

import numpy as np
import pytest
from scipy.optimize import minimize

pytestmark = pytest.mark.more


def by_another_solver(ahead):
    """Minimise ½‖p‖² with ahead·p ≥ 1."""
    constraint = {"type": "ineq", "fun": lambda p: ahead @ p - 1, "jac": lambda p: ahead}
    start = np.linalg.lstsq(ahead, np.ones(len(ahead)), rcond=None)[0]
    options = {"ftol": 1e-14, "maxiter": 500}
    return minimize(
        lambda p: p @ p / 2, start, jac=lambda p: p, constraints=[constraint], method="SLSQP", options=options
    ).fun


def test_solutions_of_the_convex_programs_match_published_values(code):
    """Closed form for one input, another solver for three inputs, and five published digits."""
    program, tokens = code("attention_svm_p", "program"), code("attention_svm_p", "tokens")
    np.testing.assert_allclose(program("global").p, np.array([-0.1, 1]) / 1.01, atol=1e-12)
    np.testing.assert_allclose(program("local", token=1).p, [1, 0], atol=1e-12)
    X = tokens("three")
    for coordinates, printed in ((3, 0.31319), (2, 0.37134)):
        solution = program("three", coordinates=coordinates)
        ahead = (X[:, :1] - X[:, 1:])[:, :, :coordinates].reshape(-1, coordinates)
        assert abs(by_another_solver(ahead) - printed) < 5e-6
        assert abs(solution.p @ solution.p / 2 - printed) < 5e-6
        assert solution.duality_gap < 1e-8


def test_every_initialisation_converges_to_one_of_two_limits(run, read):
    """The two lowest starts end at the local optimum, the others at the certified direction."""
    several = [f"blocks.three, {dynamics}=null" for dynamics in ("normalised", "descent", "flow")]
    overrides = ("phases.train.steps=200", *several, "blocks.global, normalised=null")
    at, study = run("attention_svm_p", *overrides), read("attention_svm_p", *overrides)
    first, away = {}, {}
    for number, cell in enumerate(study.cells):
        block = cell.settings["block"]
        first.setdefault(block, []).append(float(at("first_attention", cell=number)[0]) > 0.5)
        away.setdefault(block, []).append(float(at("one_minus_cosine", cell=number)[0]))
    assert first["global, flow"] == [True] * 6
    assert first["local, normalised"] == first["local, flow"] == [True] * 4 + [False] * 2
    assert max(away["global, flow"] + away["local, flow"]) < 1e-9
