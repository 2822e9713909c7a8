"""Coordinates compared with d-dimensional vectors, and leaps of tokens compared with a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.params import generic

import jaxattn as ja
from jaxattn.dynamics.flows.coordinates import coordinates, leap

pytestmark = pytest.mark.usefixtures("x64")


@jax.jit
def at(flow, z):
    return flow.at(z)


compiled_coordinates = jax.jit(coordinates)


def plain_basis(flow, E):
    """Return B as an array, (r, d)."""
    return np.eye(E.shape[1]) if flow.basis is None else np.asarray(E)


@pytest.fixture(params=["V < d", pytest.param("V > d", marks=pytest.mark.more), "V < d, equal embeddings"])
def flow_and_params(request, corpus):
    dim = 6 if request.param == "V > d" else 48
    params = generic(ja.models.one_layer.init, vocab_size=44, dim=dim, dtype=jnp.float64)
    if "equal" in request.param:
        params = params.replace(E=jax.device_put(np.asarray(params.E)[[0, 0, *range(2, 44)]]))
    return compiled_coordinates(params.E, params.p, np.asarray(params.E) @ params.v, corpus), params


@pytest.fixture
def vectors(flow_and_params):
    """Return the coordinates of three generic points."""
    flow, _ = flow_and_params
    return np.random.default_rng(1).normal(size=(3, *flow.offset.shape))


@pytest.mark.more
def test_number_of_coordinates_is_the_smaller_of_V_and_d(flow_and_params):
    flow, params = flow_and_params
    assert flow.offset.shape == (min(params.E.shape),)
    np.testing.assert_allclose(flow.unit, 1 / np.linalg.norm(params.E, axis=1).max(), rtol=1e-14)


def test_norms_and_angles_match_plain_vectors(flow_and_params, vectors):
    flow, params = flow_and_params

    @jax.jit
    def measure(flow, vectors):
        x, y, z = vectors
        norms = flow.norm(x), flow.norm(x, -0.7)
        sine = flow.sine(z, x / flow.norm(x))
        return flow.p(z), flow.p(vectors), flow.metric(x), flow.inner(x, y), *norms, flow.ahead(z, x), sine

    one, every, metric, inner, norm, shifted, ahead, sine = measure(flow, vectors)
    B, start = np.asarray(plain_basis(flow, params.E)), np.asarray(params.p)
    x, y, z = np.asarray(vectors)
    p, velocity = start + B.T @ z, B.T @ x
    np.testing.assert_allclose(one, p, atol=1e-13)
    np.testing.assert_allclose(every, start + np.asarray(vectors) @ B, atol=1e-13)
    np.testing.assert_allclose(metric, B @ velocity, atol=1e-13)
    np.testing.assert_allclose(inner, velocity @ (B.T @ y), rtol=1e-13)
    np.testing.assert_allclose(norm, np.linalg.norm(velocity), rtol=1e-13)
    np.testing.assert_allclose(shifted, np.linalg.norm(velocity - 0.7 * start), rtol=1e-13)
    np.testing.assert_allclose(ahead, p @ velocity, rtol=1e-12)
    across = velocity - (velocity @ p) / (p @ p) * p
    np.testing.assert_allclose(sine, np.linalg.norm(across) / np.linalg.norm(velocity), rtol=1e-12)


@pytest.mark.parametrize("angle", [1e-3, 1e-9])
def test_sine_of_a_small_angle_is_accurate(corpus, angle):
    """In two dimensions the angle between p and the velocity is known; 1 - cos² would round to 0."""
    E = np.random.default_rng(2).normal(size=(44, 2))
    flow = compiled_coordinates(E, np.array([1.0, 0.0]), E @ E[0], corpus)
    velocity = np.array([np.cos(angle), np.sin(angle)])
    found = jax.jit(type(flow).sine)(flow, np.array([1e5, 0.0]), velocity)
    np.testing.assert_allclose(found, np.sin(angle), rtol=1e-6)


def test_velocity_and_jacobian_match_autodiff(flow_and_params, vectors, textbook):
    """Moving z moves p by Bᵀ z: Bᵀ u is the unit direction at p, and Bᵀ ∂u/∂z its derivative along Bᵀ."""
    flow, params = flow_and_params
    B = plain_basis(flow, params.E)

    def direction(p, E, values):
        g = jax.grad(lambda p: textbook(flow.corpus, E @ p, values))(p)
        return -g / jnp.linalg.norm(g)

    z = 0.2 * vectors[0]
    local = at(flow, z)
    E = np.asarray(params.E)
    plain = params.p + B.T @ z, E, E @ params.v
    np.testing.assert_allclose(B.T @ local.velocity, jax.jit(direction)(*plain), atol=1e-13)
    derivative = jax.jit(jax.jacfwd(direction))(*plain)
    np.testing.assert_allclose(B.T @ local.jacobian, derivative @ B.T, atol=1e-11)
    np.testing.assert_allclose(jax.jit(type(flow).velocity)(flow, z), local.velocity, rtol=0, atol=1e-15)


def test_log_slope_matches_a_difference_quotient(flow_and_params, vectors):
    flow, params = flow_and_params
    z = 0.2 * vectors[0]
    local = at(flow, z)
    p = params.p + plain_basis(flow, params.E).T @ z
    plain = jax.jit(jax.grad(lambda p: ja.dynamics.loss(params.replace(p=p), flow.corpus)))(p)
    np.testing.assert_allclose(local.log_gradient_norm, np.log(np.linalg.norm(plain)), rtol=1e-13)
    h = 1e-5
    ahead, behind = (at(flow, z + step * local.velocity).log_gradient_norm for step in (h, -h))
    np.testing.assert_allclose(local.log_slope, (ahead - behind) / (2 * h), rtol=1e-7)


@pytest.mark.parametrize(("score", "balanced"), [(0.0, True), (1e-13, True), (1e-9, False), (1.0, False)])
def test_forces_are_balanced_if_their_sum_is_rounding_error(score, balanced):
    """X = (0, 1) under both labels, values ±1, scores ±a/2: f = tanh(a/2), and each net force is f/2."""
    corpus = ja.data.from_sequences([[0, 1], [0, 1]], [1, -1], vocab_size=2)
    E = np.array([[0.5, 1.0], [-0.5, -1.0]])
    flow = compiled_coordinates(E, np.array([score, 0.0]), E[:, 1], corpus)
    local = at(flow, np.zeros(2))
    assert local.balanced == balanced
    assert np.isfinite(local.velocity).all()
    assert np.isfinite(local.jacobian).all()
    if score == 0:
        assert local.log_gradient_norm == -np.inf
        np.testing.assert_array_equal(local.velocity, 0)


def by_loop(sequences, before, after):
    """Compute the largest min(below the top before, above the old top after) of all tokens, over 2."""
    largest = -np.inf
    for tokens in sequences:
        top = max(tokens, key=lambda token: before[token])
        for token in tokens:
            largest = max(largest, min(before[top] - before[token], after[token] - after[top]))
    return largest / 2


@pytest.mark.parametrize("sizes", [pytest.param((3, 5, 1, 6, 2), marks=pytest.mark.more), (3, 90, 1, 60, 2)])
def test_leap_matches_a_loop(sizes):
    """Sequences have one row or several."""
    rng = np.random.default_rng(0)
    sequences = [rng.choice(100, size, replace=False).tolist() for size in sizes]
    corpus = ja.data.from_sequences(sequences, [1, -1, 1, -1, 1], vocab_size=100)
    before, other = 10 * rng.normal(size=(2, 100))
    compiled = jax.jit(leap)
    for after in (before, before[::-1], other, before + 5):
        expected = by_loop(sequences, before, after)
        np.testing.assert_allclose(compiled(corpus, before, after), expected, rtol=1e-12)
