import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.attention.scores import from_query, from_vectors, linear, one_layer, require_values
from jaxattn.theory import Scores, max_margin, relaxed_max_margin, selection

N, T, D, Q = 6, 4, 5, 3


@pytest.fixture
def tokens(rng):
    """Return X, z, a mask that drops some tokens, and targets."""
    mask = np.ones((N, T), bool)
    mask[1, 3] = mask[4, 0] = False
    return rng.normal(size=(N, T, D)), rng.normal(size=(N, Q)), mask, rng.choice([-1, 1], N)


def tops(scores, chosen):
    """Return the indices of the selected tokens of every sequence."""
    index, mask = np.asarray(scores.corpus.bags.index), np.asarray(chosen.mask)
    return [sorted(index[x][mask[x]].tolist()) for x in range(N)]


@pytest.mark.parametrize("traced", [False, True])
def test_selection_for_vector_sequences_matches_a_loop_implementation(tokens, rng, traced):
    X, _, mask, targets = tokens
    p = rng.normal(size=D)
    make = jax.jit(from_vectors) if traced else from_vectors
    with jax.enable_x64(True):
        scores = make(X, targets, mask=mask)
        found = tops(scores, selection(p, scores))
    expected = [[i * T + max(np.flatnonzero(mask[i]), key=lambda t: X[i, t] @ p)] for i in range(N)]
    assert found == expected
    np.testing.assert_array_equal(scores.corpus.targets, targets)


def test_query_scores_match_the_matrix_product(tokens, rng):
    X, z, mask, targets = tokens
    W = rng.normal(size=(D, Q))
    scores = from_query(X, z, targets, mask=mask)
    expected = np.array([[x @ W @ z[i] for x in X[i]] for i in range(N)])
    np.testing.assert_allclose(scores.keys @ W.ravel(), expected.ravel(), rtol=1e-12)


def test_max_margin_matrix_matches_nnls(tokens, rng):
    """Solve min ‖W‖_F s.t. (x_top - x_t)ᵀ W z ≥ 1 by SciPy's NNLS on the dual problem."""
    from scipy.optimize import nnls

    X, z, mask, targets = tokens
    scores = from_query(X, z, targets, mask=mask)
    chosen = selection(rng.normal(size=D * Q), scores)
    solution = max_margin(scores, chosen)
    assert solution.duality_gap < 1e-10
    rows = [
        np.outer(X[i, top[0] - i * T] - X[i, t], z[i]).ravel()
        for i, top in enumerate(tops(scores, chosen))
        for t in range(T)
        if mask[i, t] and i * T + t != top[0]
    ]
    u, off = nnls(np.vstack([np.array(rows).T, np.ones(len(rows))]), np.eye(D * Q + 1)[-1])
    p = np.array(rows).T @ u / off**2
    np.testing.assert_allclose(solution.p, p, rtol=1e-6, atol=1e-8)


def test_equivalent_bags_and_vectors_have_the_same_margin(rng):
    """A corpus without repeated tokens is equivalent to a set of vectors."""
    E = rng.normal(size=(12, 20))
    corpus = ja.data.from_sequences(np.arange(12).reshape(3, 4).tolist(), [1, -1, 1], vocab_size=12)
    bags, vectors = Scores(E, corpus), from_vectors(E.reshape(3, 4, 20), np.array([1, -1, 1]))
    p = rng.normal(size=20)
    one, other = (max_margin(x, selection(p, x)) for x in (bags, vectors))
    np.testing.assert_array_equal(one.p, other.p)
    v = rng.normal(size=20)
    first, second = (relaxed_max_margin(x, selection(p, x), points=E @ np.diag(v)) for x in (bags, vectors))
    np.testing.assert_array_equal(first.p, second.p)


def test_keys_of_a_linear_function_equal_its_jacobian(tokens):
    X, z, _, targets = tokens
    expected = from_query(X, z, targets)
    like = {"A": np.zeros((D, Q), np.float32), "b": np.zeros(1)}

    def function(params):
        return (jnp.einsum("ntd,de,ne->nt", X, params["A"], z) + params["b"] * X[..., 0]).ravel()

    scores = linear(function, like, expected.corpus)
    np.testing.assert_allclose(scores.keys[:, :-1], expected.keys, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(scores.keys[:, -1], X[..., 0].ravel())


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda p: p + 1, "at p = 0"),
        (lambda p: p + 1e-3 * p**2, "second derivative"),
        (lambda p: p * p[0] * p[1], "second derivative"),
        (jax.nn.relu, "relative deviation .* from Φ p"),
        (jnp.abs, "relative deviation .* from Φ p"),
        (lambda p: p[:2], r"shape \(2,\)"),
    ],
)
def test_nonlinear_functions_are_rejected(function, why):
    corpus = ja.data.from_sequences([[0, 1], [2]], [1, -1], vocab_size=3)
    with pytest.raises(ja.InputError, match=why):
        linear(function, np.zeros(3), corpus)


def test_values_are_computed_in_float64(rng):
    corpus = ja.data.from_sequences([[0, 1], [2]], [1, -1], vocab_size=3)
    E, v = (rng.normal(size=size).astype(np.float32) / 500**0.5 for size in ((2, 3, 500), (2, 500)))
    params = ja.models.one_layer.Params(E=jax.device_put(E[0]), p=v[0], v=jax.device_put(v[0]))
    scores = one_layer(params, corpus)
    assert scores.keys is params.E
    expected = np.asarray(params.E, float) @ np.asarray(params.v, float)
    np.testing.assert_allclose(scores.values, expected, rtol=1e-13)
    seeds = ja.models.one_layer.Params(E=jax.device_put(E), p=v, v=jax.device_put(v))
    expected = np.einsum("svd,sd->sv", np.asarray(seeds.E, float), np.asarray(seeds.v, float))
    np.testing.assert_allclose(one_layer(seeds, corpus).values, expected, rtol=1e-13)


def test_invalid_input_is_rejected(tokens):
    X, z, mask, targets = tokens
    with pytest.raises(ja.InputError, match="targets"):
        from_vectors(X, targets[:2])
    with pytest.raises(ja.InputError, match="mask: shape"):
        from_vectors(X, targets, mask=mask[:, :2])
    with pytest.raises(ja.InputError, match="values: shape"):
        from_vectors(X, targets, values=X)
    with pytest.raises(ja.InputError, match="sequence 2 has no token"):
        from_vectors(X, targets, mask=mask & (np.arange(N) != 2)[:, None])
    with pytest.raises(ja.InputError, match="z"):
        from_query(X, z[:2], targets)
    with pytest.raises(ja.InputError, match=r"values: expected shape \(24,\), .* got none"):
        require_values(from_vectors(X, targets))
