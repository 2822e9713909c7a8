import numpy as np
import pytest

from jaxattn.theory import active_set as module
from jaxattn.theory.active_set import _Factor, _most_violated, active_set
from jaxattn.theory.certificate import bounds


@pytest.fixture(params=["every pair", "pools"])
def pricing(request, monkeypatch):
    """Scan all pairs in each step, or pools of pairs."""
    monkeypatch.setattr(module, "_WHOLE", 0 if request.param == "pools" else 10**9)


def many_pairs(rng, margin):
    """Each of 80 tokens above each of 80 others, in 12 dimensions: more pairs than are sorted."""
    rows = rng.normal(size=(160, 12))
    rows[:, 0] = margin * np.where(np.arange(160) < 80, 1, -1) * (1 + rng.exponential(size=160))
    better, worse = (x.ravel() for x in np.meshgrid(np.arange(80), np.arange(80, 160), indexing="ij"))
    return rows / np.linalg.norm(rows, axis=1).max(), better, worse


@pytest.mark.usefixtures("pricing")
@pytest.mark.parametrize("margin", [1.0, 0.1, 0.03])
def test_active_set_solver_is_exact_with_thousands_of_pairs(margin):
    for seed in range(4):
        rows, better, worse = many_pairs(np.random.default_rng(seed), margin)
        multipliers, steps = active_set(rows, better, worse, tolerance=1e-10, max_steps=10_000)
        lower, upper = bounds(rows[better] - rows[worse], multipliers)
        np.testing.assert_allclose(lower, upper, rtol=1e-12)
        assert (multipliers > 0).sum() <= 12
        assert steps < 300


@pytest.mark.usefixtures("pricing")
def test_active_set_solver_proves_infeasibility():
    for seed in range(4):
        rows, better, worse = many_pairs(np.random.default_rng(seed), 0.0)
        multipliers, _ = active_set(rows, better, worse, tolerance=1e-10, max_steps=10_000)
        assert (multipliers >= 0).all()
        w = multipliers @ (rows[better] - rows[worse])
        assert np.linalg.norm(w) < 1e-15 * multipliers.sum()


@pytest.mark.usefixtures("pricing")
def test_problems_with_more_active_pairs_than_dimensions_are_solved():
    """Differences (1, ±1, ±1, ±1): all eight are tight at p = (1, 0, 0, 0)."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    rows = np.vstack([np.zeros(4), np.c_[np.ones(8), signs]]) / 2
    found = active_set(rows, np.arange(1, 9), np.zeros(8, int), tolerance=1e-10, max_steps=1000)
    w = found.multipliers @ rows[1:]
    np.testing.assert_allclose(w / w[0], [1, 0, 0, 0], atol=1e-14)
    np.testing.assert_allclose(bounds(rows[1:], found.multipliers), 0.5, rtol=1e-14)


def test_last_iterate_is_returned_after_the_maximum_number_of_steps(rng):
    rows, better, worse = many_pairs(rng, 0.03)
    multipliers, steps = active_set(rows, better, worse, tolerance=1e-10, max_steps=5)
    assert 5 <= steps < 10
    lower, upper = bounds(rows[better] - rows[worse], multipliers)
    assert lower < 0.999 * upper


def test_updated_factorisation_matches_the_active_differences(rng):
    vectors = rng.normal(size=(40, 8))
    vectors[1::3] = vectors[::3][: len(vectors[1::3])] + 1e-7 * vectors[1::3]
    factor = _Factor(8)
    for number, n in enumerate(vectors):
        if len(factor.active) == 8 or rng.uniform() < 0.3 * (len(factor.active) > 0):
            factor.delete(rng.integers(len(factor.active)))
        inside, z = factor.split(n)
        np.testing.assert_allclose(factor.q @ inside + z, n, atol=1e-13)
        np.testing.assert_allclose(factor.q.T @ z, 0, atol=1e-13 * np.linalg.norm(z))
        factor.append(number, inside, z)
        np.testing.assert_allclose(factor.q @ factor.r, vectors[factor.active].T, atol=1e-13)
        np.testing.assert_allclose(factor.q.T @ factor.q, np.eye(len(factor.active)), atol=1e-13)
        right = rng.normal(size=len(factor.active))
        for matrix, x in ((factor.r, factor.solve(right)), (factor.r.T, factor.solve(right, transpose=True))):
            np.testing.assert_allclose(matrix @ x, right, atol=1e-14 * (1 + np.linalg.norm(x)))


def test_candidate_pool_contains_the_most_violated_pair_of_each_token(rng):
    violation, worse = rng.normal(size=8000), rng.integers(0, 100, 8000)
    best = [max(np.flatnonzero(worse == token), key=violation.__getitem__) for token in range(100)]
    expected = sorted(best, key=violation.__getitem__, reverse=True)
    assert _most_violated(violation, worse, 0.1).tolist() == expected[:64]
    assert _most_violated(violation, worse, violation.max() - 1e-9).tolist() == expected[:1]
