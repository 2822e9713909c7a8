"""Claims in sweeps/refute, compared with closed forms, other solvers, and the library."""

import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

import jaxattn as ja
from jaxattn.lab.refute import Integers, Space, exact, read_claim, refute
from jaxattn.lab.refute.batch import score_batch, verdict
from jaxattn.lab.refute.space import from_lists, pick, repaired, sample, stack
from jaxattn.lab.study.import_paths import ImportPaths

ROOT = Path(__file__).parents[3]
SWEEPS = ROOT / "sweeps" / "refute"
SCRIPTS = sorted([*SWEEPS.glob("checks/*.py"), *ROOT.glob("results/published/refute/*/check.py")])
NAMES = [
    *(f"{name}.py" for name in ("frank_wolfe", "trained_head", "all_relevant", "two_relevant")),
    "frank_wolfe.py:repaired",
    *(f"{name}.py" for name in ("cells", "diagonal_linear", "single_leader")),
    *(f"own_query.py:{name}" for name in ("margin", "certificate", "powers", "order")),
    *(f"own_head.py:{name}" for name in ("relaxed", "tied", "clock", "certified")),
    *(f"own_full.py:{name}" for name in ("cover", "values", "query")),
]


def load(name):
    """Read a claim, and return it with the module in which it is defined."""
    claim = read_claim(str(SWEEPS / name))
    return claim, sys.modules[claim.exact.__module__]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_check_scripts_are_short_and_confirm_their_instance(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 30
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-I", "-S", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.perf_counter() - began < 10  # a second on an idle machine


@pytest.mark.parametrize("name", NAMES)
def test_claims_state_their_source_and_hypothesis(name):
    claim, _ = load(name)
    assert claim.statement
    assert claim.source
    assert claim.hypothesis
    assert "≤" in claim.statement or name == "single_leader.py"


@pytest.mark.parametrize("name", ["frank_wolfe.py", "trained_head.py", "two_relevant.py", "cells.py"])
def test_statements_hold_for_the_control_instance(name):
    claim, _ = load(name)
    control = from_lists(claim.control)
    assert claim.assumptions(control) == ""
    assert not claim.exact(control).violated


def test_frank_wolfe_matches_the_recursion_of_two_tokens():
    """Tokens a and -b on a line: each moves to the other until 0 is outside, then the outer to the inner."""
    claim, _ = load("frank_wolfe.py")
    for a, b, step in ((3, -1, 575), (4, -1, 224)):
        x, bound = [Fraction(a), Fraction(b)], 2 * Fraction(a - b) ** 2
        for t in range(step + 1):
            low, high = min(x), max(x)
            x = [c + Fraction(2, t + 2) * ((low if c > 0 else high) - c) for c in x]
        found = claim.exact(from_lists({"tokens": [[a], [b]], "B": [[1]]}))
        assert found.witness["step"] == step
        assert (found.left, found.right) == (max(c * c for c in x) / 2, bound / (step + 1))
        assert found.violated
        assert found.boundary == ""
    tokens = [[3, -4, 3], [1, 1, -1], [1, 1, -1], [-8, -1, 2]]
    known = from_lists({"tokens": tokens, "B": np.eye(3, dtype=int)})
    assert claim.assumptions(known) == ""
    assert claim.exact(known).witness["step"] == 27


def test_frank_wolfe_rejects_ties_and_clouds_without_the_origin():
    claim, _ = load("frank_wolfe.py")
    assert claim.exact(from_lists({"tokens": [[2], [-1]], "B": [[1]]})).boundary
    assert "outside" in claim.assumptions(from_lists({"tokens": [[3], [1]], "B": [[1]]}))
    assert "semidefinite" in claim.assumptions(from_lists({"tokens": [[3], [-1]], "B": [[-1]]}))


def test_the_repaired_frank_wolfe_statement_excludes_the_counterexample():
    repaired = replace(load("frank_wolfe.py:repaired")[0], batch=1)
    instance = from_lists({"tokens": [[3], [-1]], "B": [[1]]})
    assert repaired.assumptions(instance) == "0 leaves the convex hull"
    symmetric = from_lists({"tokens": [[2, 1], [-2, -1], [1, -3], [-1, 3]], "B": [[1, 0], [0, 1]]})
    assert score_batch(repaired, stack([instance])).tolist() == [-np.inf]
    assert np.isfinite(score_batch(repaired, stack([symmetric])))


def test_frank_wolfe_score_matches_exact_arithmetic():
    claim, _ = load("frank_wolfe.py")
    instances = [from_lists({"tokens": [[a], [-1]], "B": [[1]]}) for a in (3, 4)]
    # The tokens 4 and -3 meet at 1/2, and break the bound after the horizon of the search, from t = 784.
    scores = score_batch(claim, stack([*instances, from_lists({"tokens": [[4], [-3]], "B": [[1]]})]))
    assert (scores > 0).tolist() == [True, True, False]


def test_control_of_the_frank_wolfe_rate_has_the_origin_in_its_hull_at_all_steps():
    """The cloud stays symmetric about 0, so the proof of the theorem applies to it."""
    claim, module = load("frank_wolfe.py")
    x, B = (module.exact.matrix(claim.control[name]) for name in ("tokens", "B"))
    for t in range(12):
        assert {tuple(token) for token in x} == {tuple(-a for a in token) for token in x}
        x, tie = module.exact_step(x, B, t)
        assert not tie


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("points", "labels", "sine"),
    [([[2, 2], [2, -2], [1, 3]], [1, -1, 1], Fraction(1, 26)), ([[1, 0], [-2, 1]], [1, -1], Fraction(1, 50))],
)
def test_directions_of_a_trained_head_match_the_library(points, labels, sine):
    claim, _ = load("trained_head.py")
    found = claim.exact(from_lists({"points": points, "labels": labels}))
    assert found.left == sine
    E = np.concatenate([[[0, 0]], points]).astype(float)
    corpus = ja.data.from_sequences([[0, i + 1] for i in range(len(points))], labels, vocab_size=len(E))
    p_mm = np.array([float(Fraction(x)) for x in found.witness["p_mm"]])
    scores = ja.theory.Scores(E, corpus)
    chosen = ja.theory.selection(p_mm, scores)
    np.testing.assert_allclose(ja.theory.max_margin(scores, chosen).p, p_mm, atol=1e-9)
    relaxed = ja.theory.relaxed_max_margin(scores, chosen)
    np.testing.assert_allclose(relaxed.p, [float(Fraction(x)) for x in found.witness["p_relax"]], atol=1e-9)
    np.testing.assert_allclose(relaxed.v, [float(Fraction(x)) for x in found.witness["v_mm"]], atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_limits_with_two_relevant_tokens_match_the_library():
    """`relaxed_max_margin` requires half a margin of the pair with tied = 1/2, and a margin with tied = 1."""
    claim, module = load("two_relevant.py")
    instance = from_lists({"E": [[3, 1], [-2, -1], [2, -3], [-1, -1], [-3, 3]]})
    found = claim.exact(instance)
    scores = ja.theory.Scores(instance["E"].astype(float), module.CORPUS)
    p = np.array([float(Fraction(x)) for x in found.witness["p_*"]])
    chosen = ja.theory.selection(p, scores)
    for tied, name in ((0.5, "p_*"), (1.0, "p_relax")):
        expected = ja.theory.relaxed_max_margin(scores, chosen, tied=tied).p
        np.testing.assert_allclose(expected, [float(Fraction(x)) for x in found.witness[name]], atol=1e-9)
    ours, relaxed, apart = module.approximate(instance["E"][None].astype(float))
    np.testing.assert_allclose(ours[0], p, atol=1e-9)
    assert apart[0] == pytest.approx(1 - np.sqrt(1 - float(found.left)), rel=1e-9)
    assert not np.allclose(ours, relaxed)


def test_covers_are_those_of_a_list():
    _, module = load("all_relevant.py")
    assert module.covers([[0, 2], [1, 2]]) == [[0, 2], [2, 1]]
    assert module.covers([[0, 0], [1, 1]]) == []


def test_smallest_cost_matches_a_linear_program(rng):
    claim, module = load("diagonal_linear.py")
    checked = 0
    for index in range(30):
        instance = pick(sample(claim.space, index % 3, 1, rng), 0)
        X, y, above, below = (np.array(instance[name]) for name in ("X", "y", "above", "below"))
        expected = linprog(np.append(above, below), A_eq=np.hstack([X, -X]), b_eq=y)
        reason, best, k = module.outcome(instance)
        assert (best is None) == (expected.status == 2)
        if best is not None:
            assert float(best) == pytest.approx(expected.fun, abs=1e-8)
        if not reason and not isinstance(k, str):
            np.testing.assert_allclose(X @ np.array(k, float), y, atol=1e-12)
            checked += 1
    assert checked > 10


def test_a_wrong_algorithm_is_detected(monkeypatch):
    """Without the signs, least squares is another algorithm; its k costs more in some instance."""
    claim, module = load("diagonal_linear.py")
    whole = module.least_squares
    monkeypatch.setattr(module, "least_squares", lambda X, y, own, signs: whole(X, y, own[:1], signs))
    rng = np.random.default_rng(0)
    batch = sample(claim.space, 1, 60, rng)
    assert (claim.score(batch) > 0).any()


def test_tokens_keep_to_their_cells_and_a_wrong_cell_is_detected():
    claim, _ = load("cells.py")
    batch = repaired(claim.space, sample(claim.space, 1, 300, np.random.default_rng(0)))
    inside = [i for i in range(300) if claim.assumptions(pick(batch, i)) == ""]
    assert len(inside) > 20
    assert not any(claim.exact(pick(batch, i)).violated for i in inside)
    scores = score_batch(claim, batch)
    assert set(np.flatnonzero(np.isfinite(scores))) == set(inside)
    # Outside the hypothesis (B is indefinite), tokens change their aim.
    turned = from_lists({"tokens": [[2], [-1], [1]], "B": [[-1]], "steps": [2] * 8})
    assert claim.assumptions(turned)
    assert claim.exact(turned).left > 0


def test_ties_on_open_sets_are_recognised(rng):
    claim, module = load("single_leader.py")
    tokens, unit = [[1, 0], [0, 1], [3, 2]], [[[1, 0], [0, 1]]] * 3
    tied = from_lists({"tokens": tokens, "B": np.zeros((3, 2, 2), int), "V": unit})
    assert claim.exact(tied).left == 1
    assert claim.assumptions(tied) == "B is not invertible"
    symmetric = from_lists({"tokens": [[1, 1], [2, 0], [0, 2]], "B": unit, "V": unit})
    assert claim.exact(symmetric).boundary == "the start itself ties"
    # The form of random maps is not zero, and is zero for antisymmetric blocks.
    B = np.array(exact.matrix(rng.integers(-2, 3, (2, 2))), object)
    M = [np.array(exact.matrix(rng.integers(-2, 3, (2, 2))), object) for _ in range(2)]
    assert not module.identically_zero(B, M, M)
    J = np.array(exact.matrix([[0, 1], [-1, 0]]), object)
    assert module.identically_zero(J, M, M) == all(not (m.T @ J.T @ m + (m.T @ J.T @ m).T).any() for m in M)


@pytest.mark.usefixtures("x64")
def test_small_programs_of_heads_match_the_library():
    setting = ImportPaths(SWEEPS).load("own_head.py:ONE")
    rng = np.random.default_rng(1)
    E, p = rng.normal(size=(6, 4, 3)), rng.normal(size=(6, 3))
    found, _, _, tops = setting.program(E, p)
    for index in range(6):
        scores = ja.theory.Scores(E[index], setting.corpus)
        chosen = ja.theory.selection(p[index], scores)
        expected = ja.theory.relaxed_max_margin(scores, chosen)
        if expected.feasible:
            np.testing.assert_allclose(found[index], expected.p, atol=1e-7)
        scored = E[index] @ p[index]
        assert tops[index].tolist() == [max(x, key=lambda s: scored[s]) for x in setting.sequences]


def test_measured_claims_need_both_tolerances():
    """The measure is x₀², and x₀² - 1 with the smaller tolerance; the statement allows 3."""
    measured = ImportPaths(SWEEPS).load("measured.py:measured")
    claim = measured(
        lambda batch, rtol: np.where(batch["x"][:, 0] == 9, -np.inf, batch["x"][:, 0] ** 2 - (rtol < 1e-6)),
        tolerance=3.0,
        quantity="x₀²",
        size=2,
        statement="x₀² ≤ 3",
        source="a test",
        hypothesis="",
        space=Space({"x": Integers("n", -9, 9)}, ({"n": 2},)),
        control={"x": [0, 0]},
    )
    batch = {"x": np.array([[1, 0], [2, 0], [3, 1], [9, 0], [-2, 5]])}
    assert score_batch(claim, batch).tolist() == [-2, 1, 6, -np.inf, 1]
    assert [claim.evidence(pick(batch, i)).contradicts for i in range(5)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert claim.kind == "numerical counterexample"
    assert claim.exact(pick(batch, 2)).left == 9
    assert not claim.exact(pick(batch, 3)).violated
    assert verdict(claim, pick(batch, 2)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "budget", "largest"),
    [
        ("frank_wolfe.py", 30, 3),
        ("trained_head.py", 120, 4),
        ("all_relevant.py", 120, 4),
        ("two_relevant.py", 120, 4),
    ],
)
def test_refuted_statements_are_found_within_their_budget(name, budget, largest, tmp_path):
    found = refute(SWEEPS / name, budget=budget, out=tmp_path)
    assert found.verdict == load(name)[0].kind
    entries = np.concatenate([x.ravel() for x in found.counterexample.instance.values()])
    assert np.abs(entries).max() <= largest
