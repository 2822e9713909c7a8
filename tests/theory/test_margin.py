import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxattn as ja
from jaxattn.errors import InputError


def selected(corpus, p, E):
    """The selection as lists of tokens, by a loop over sequences."""
    ids, mask = ja.models.reference.padded_sequences(corpus)
    scores = np.asarray(E, np.float64) @ np.asarray(p, np.float64)
    spread = scores[np.unique(ids[mask])]
    tie = 1e-9 * (spread.max() - spread.min())
    result = []
    for row, real in zip(ids, mask, strict=True):
        tokens = np.unique(row[real])
        result.append((tokens[scores[tokens] >= scores[tokens].max() - tie], tokens))
    return result


def solve(corpus, p, E):
    """The max-margin direction by clarabel, or None if it finds the problem infeasible."""
    pairs, ties = set(), set()
    for chosen, tokens in selected(corpus, p, E):
        pairs |= {(s, t) for s in chosen for t in tokens if t not in chosen}
        ties |= {(chosen[0], s) for s in chosen[1:]}
    A = np.array([E[s] - E[t] for s, t in sorted(pairs)]).reshape(-1, E.shape[1])
    B = np.array([E[s] - E[t] for s, t in sorted(ties)]).reshape(-1, E.shape[1])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    cones = [clarabel.ZeroConeT(len(B)), clarabel.NonnegativeConeT(len(A))]
    rows, right = sp.csc_matrix(np.vstack([B, -A])), np.r_[np.zeros(len(B)), -np.ones(len(A))]
    quadratic = sp.csc_matrix(sp.eye(E.shape[1]))
    solver = clarabel.DefaultSolver(quadratic, np.zeros(E.shape[1]), rows, right, cones, settings)
    solution = solver.solve()
    return None if "Infeasible" in str(solution.status) else np.array(solution.x)


def instance(seed):
    rng = np.random.default_rng(seed)
    V, d, n = rng.integers(4, 20), rng.integers(3, 30), rng.integers(2, 25)
    sequences = [rng.integers(0, V, rng.integers(1, 7)).tolist() for _ in range(n)]
    corpus = ja.data.from_sequences(sequences, [1] * n, vocab_size=int(V))
    E, p = rng.normal(size=(V, d)), rng.normal(size=d)
    if seed % 3 == 0:
        scores = E @ p
        E[:3] += np.outer(scores.max() - scores[:3], p) / (p @ p)
    return corpus, p, E


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("solver", ["exact", "cutting"])
def test_solvers_agree_with_an_independent_one(seed, solver):
    corpus, p, E = instance(seed)
    chosen = ja.theory.selection(p, E, corpus)
    mm = ja.theory.max_margin(E, corpus, chosen, solver=solver)
    expected = solve(corpus, p, E)
    assert mm.feasible == (expected is not None)
    if mm.feasible and np.isfinite(mm.margin):
        np.testing.assert_allclose(mm.p, expected, rtol=1e-6, atol=1e-7 * np.linalg.norm(expected))
        assert mm.duality_gap < 1e-9
        assert mm.primal_residual < 1e-8
        np.testing.assert_allclose(mm.margin, 1 / np.linalg.norm(mm.p), rtol=1e-9)
        rebuilt = (mm.multipliers[:, None] * (E[mm.pairs[:, 0]] - E[mm.pairs[:, 1]])).sum(0)
        rebuilt += (mm.tie_multipliers[:, None] * (E[mm.ties[:, 0]] - E[mm.ties[:, 1]])).sum(0)
        np.testing.assert_allclose(mm.p, rebuilt, atol=1e-7 * np.linalg.norm(expected))
        assert (mm.multipliers > 0).all()


def test_selection_equals_a_loop_and_does_not_depend_on_the_length_of_p():
    for seed in range(12):
        corpus, p, E = instance(seed)
        for scale in (1.0, 1e-6, 1e9):
            chosen = ja.theory.selection(scale * p, E, corpus)
            index, mask = np.asarray(corpus.bags.index), np.asarray(chosen.mask)
            owner = np.broadcast_to(np.asarray(corpus.bags.owner)[:, None], mask.shape)
            for number, (expected, _) in enumerate(selected(corpus, p, E)):
                got = np.sort(index[mask & (owner == number)])
                np.testing.assert_array_equal(got, expected)


def test_batch_equals_single_problems():
    def draw(key):
        corpus_key, E_key, p_key = jax.random.split(key, 3)
        corpus = ja.data.assumption1(corpus_key, vocab_size=20, relevant=6, length=5, sequences=40)
        E = jax.random.normal(E_key, (20, 30))
        return corpus, E, jax.random.normal(p_key, (30,))

    with jax.enable_x64(True):
        corpora, E, p = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 6))
        chosen = jax.vmap(ja.theory.selection)(p, E, corpora)
        batch = ja.theory.max_margin_batch(E, corpora, chosen)
        for k in range(6):
            corpus, single = jax.tree.map(lambda x: x[k], (corpora, chosen))  # noqa: B023
            alone = ja.theory.max_margin(E[k], corpus, single)
            assert alone.feasible == batch.feasible[k]
            if alone.feasible:
                np.testing.assert_allclose(batch.p[k], alone.p, atol=1e-8 * np.linalg.norm(alone.p))
                assert batch.duality_gap[k] < 1e-10


def test_infeasible_and_empty_problems_are_answers_with_reasons():
    corpus = ja.data.from_sequences([[0, 1], [1, 0], [2]], [1, -1, 1], vocab_size=3)
    same = np.ones((3, 2))
    p = np.array([1.0, 0.0])
    everything = ja.theory.max_margin(same, corpus, ja.theory.selection(p, same, corpus))
    assert everything.feasible
    assert everything.margin == np.inf
    two = ja.data.from_sequences([[0, 1], [1, 2], [2, 0]], [1, -1, 1], vocab_size=3)
    E = np.eye(3)
    cyclic = ja.theory.Selection(jnp.asarray([[True, False], [True, False], [False, True]]))
    mm = ja.theory.max_margin(E, two, cyclic)
    assert not mm.feasible
    assert mm.reason
    with pytest.raises(InputError, match="NaN"):
        ja.theory.selection(np.array([np.nan, 0.0]), same, corpus)


def test_one_minus_cosine_keeps_small_angles():
    a = np.array([1.0, 0.0])
    b = np.array([np.cos(1e-9), np.sin(1e-9)])
    np.testing.assert_allclose(ja.theory.one_minus_cosine(3 * a, 7 * b), 0.5e-18, rtol=1e-6)
    np.testing.assert_allclose(ja.theory.cosine(a, np.array([1.0, 1.0])), 0.5**0.5)
