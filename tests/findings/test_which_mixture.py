"""The flow in log r, compared with a closed form, and a short run of the item."""

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import Loaded, Splits
from jaxattn.lab import books
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.theory import Scores

FOLDER = Path(__file__).parents[2] / "sweeps" / "findings" / "which_mixture"
certify_joint_limit = ImportPaths(FOLDER).load("joint_limit.py:certify_joint_limit")


@pytest.fixture
def code(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return lambda name: ImportPaths(FOLDER).load(name)


@pytest.mark.parametrize("c", [1.0, 0.3])
def test_two_mirrored_pairs_match_the_closed_form(code, c):
    """w² - s/c - e^(2cs)/(2c²) is conserved, so 2 c s = 2 log w + log(2 c²) asymptotically."""
    E = np.array([[1.0, c, 0, 0], [0, -c, 0, 0], [-1, c, 0, 0], [0, -c, 0, 0]])
    corpus = ja.data.from_sequences([[0, 1], [2, 3]] * 2, [1, -1] * 2, vocab_size=4)
    log_w = 18.0
    s = (2 * log_w + np.log(2 * c**2)) / (2 * c)
    p, v = np.array([0, s, 0, 0]), np.exp(log_w) * np.eye(4)[0]
    limit = certify_joint_limit(Scores(E, corpus), p, v)
    assert limit.holds
    np.testing.assert_allclose(limit.p, np.eye(4)[1] / (2 * c), atol=1e-12)
    far, basis, log_r = code("which_mixture.py:begin")(E, p, v, corpus, limit)
    assert log_r == pytest.approx(log_w, abs=1e-12)
    times, points, came = code("far.py:follow")(far, basis @ p, log_r, 1e3)
    assert came
    expected = (2 * times + np.log(2 * c**2)) / (2 * c)
    found = points @ basis
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-3)
    np.testing.assert_allclose(found[:, [0, 2, 3]], 0, atol=1e-9)


def test_velocity_matches_a_loop_implementation(code):
    """Weights by a generic minimiser and forces pair by pair, at small r."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    E = rng.normal(size=(6, 5))
    ids, labels = np.array([[0, 1, 2], [1, 0, 3], [4, 0, 1], [0, 4, 5]]), np.ones(4)
    excess = np.where(ids < 2, 0, np.where(ids == 4, 0.3, -0.7))
    point, log_r = np.where(ids < 2, ids, -1), 2.0
    p = rng.normal(size=5)
    q = np.exp((E @ p)[ids])
    q /= q.sum(axis=1, keepdims=True)
    held = np.stack([(q * (ids == s)).sum(axis=1) for s in (0, 1)], axis=1)
    # Multipliers that result from some weights.
    multipliers = np.array([0.3, 0.5, 0.2, 0.4]) @ held
    far = code("far.py:Far")(E, ids, np.zeros(ids.shape), excess, point, multipliers)
    rest = np.exp(log_r) * (q * excess).sum(axis=1)
    best = minimize(
        lambda b: np.exp(-held @ b - rest).sum() + multipliers @ b,
        np.zeros(2),
        method="Nelder-Mead",
        tol=1e-13,
    )
    w = np.exp(-held @ best.x - rest)
    np.testing.assert_allclose(w @ held, multipliers, atol=1e-5)
    beta = np.where(point >= 0, best.x[point], 0)
    expected = np.zeros(5)
    for X in range(len(labels)):
        for i in range(3):
            for j in range(i):
                steep = excess[X, i] - excess[X, j]
                pull = np.exp(2 * log_r) * steep + np.exp(log_r) * (beta[X, i] - beta[X, j]) * (steep == 0)
                expected += w[X] * q[X, i] * q[X, j] * pull * (E[ids[X, i]] - E[ids[X, j]])
    np.testing.assert_allclose(far(log_r, p), expected, rtol=1e-4)
    # A positive multiplier for a token that occurs nowhere has no solution; the integrator must not see 0.
    unsolvable = code("far.py:Far")(E, ids, np.zeros(ids.shape), excess, point, np.append(multipliers, 0.1))
    assert np.isnan(unsolvable.velocity(log_r, p[None])[0]).all()


def test_shared_and_per_seed_corpora_give_the_same_measurements(code):
    E = np.array([[1.0, 1, 0, 0], [0, -1, 0, 0], [-1, 1, 0, 0], [0, -1, 0, 0]])
    corpus = ja.data.from_sequences([[0, 1], [2, 3]] * 2, [1, -1] * 2, vocab_size=4)
    history = np.stack([18 * np.eye(4)[1], np.exp(18) * np.eye(4)[0]])[None, None]
    params = ja.models.one_layer.Params(E=E[None], p=history[:, 0, 0], v=history[:, 0, 1])
    probe = code("which_mixture.py:Mixture")(follows=False)
    each = [
        probe.conclude(history, params, None, Loaded(Splits(train=data), shared, ()))[1]
        for data, shared in ((corpus, True), (jax.tree.map(lambda x: np.asarray(x)[None], corpus), False))
    ]
    assert each[0]["certified"] == [1]
    for name, found in each[0].items():
        np.testing.assert_array_equal(found, each[1][name])


@pytest.mark.slow
def test_mixture_measures_are_computed_for_a_short_run(code, tmp_path):
    item = books.read_book(FOLDER.parent).item("which_mixture")
    results = item.study("full", overrides=["seeds=2", 'blocks={ "two relevant" = {} }']).run(
        tmp_path / "run", quiet=True
    )
    assert results.failures.empty
    found, tables = item.measure({"study": results})
    shares = {finding.id: finding.value for finding in found}
    assert shares["two-relevant.certified"] == 1
    assert shares["two-relevant.confirmed"] == 1
    (row,) = tables["Every corpus"].to_dict("records")
    assert row["largest 1 - cos at log r = 1e4"] < 1e-6
    assert row["median 1 - cos to p_relax"] > 1e-3


def test_documentation_page_contains_the_published_table():
    root = FOLDER.parents[2]
    page = (root / "docs" / "notes" / "which_mixture.md").read_text(encoding="utf-8")
    table = root / "results" / "published" / "mixture" / "table.md"
    assert table.read_text(encoding="utf-8").strip() in page


@pytest.mark.parametrize(("gap", "certified"), [(8.0, True), (-0.4, False)])
@pytest.mark.more
def test_token_near_the_top_prevents_convergence_to_p_star_if_its_gap_is_small(code, gap, certified):
    """Token 2 has a larger y γ than the top token 0, and rises if its distance to 0 is small enough."""
    E = np.array([[1.0, 40, 0], [-1, 40, 0], [3, -10, 40], [-9, 0, 0]])
    corpus = ja.data.from_sequences([[0, 2], [0, 3], [3, 2], [1]], [1, 1, -1, -1], vocab_size=4)
    log_r = 18.0
    pairs = np.array([E[0] - E[3], E[0] - E[2]])
    p = np.linalg.pinv(pairs) @ [2 * log_r + 7.1, 2 * log_r + 7.1 + gap]
    limit = certify_joint_limit(Scores(E, corpus), p, np.exp(log_r) * np.eye(3)[0])
    assert limit.holds == certified
    far, basis, log_r = code("which_mixture.py:begin")(E, p, np.exp(log_r) * np.eye(3)[0], corpus, limit)
    with np.errstate(all="ignore"):
        _, points, came = code("far.py:follow")(far, basis @ p, log_r, 1e3, steps=200)
    p_star = pairs[0] / (pairs[0] @ pairs[0])
    there = came and ja.theory.one_minus_cosine(points[-1] @ basis, p_star) < 1e-5
    assert there == certified
