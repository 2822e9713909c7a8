import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.params import generic

import jaxattn as ja
from jaxattn.dynamics.flows.joint_coordinates import joint_coordinates, joint_curvature, joint_force

pytestmark = pytest.mark.usefixtures("x64")


@jax.jit
def evaluate(corpus, scores, values):
    forces = joint_force(corpus, scores, values)
    return forces, joint_curvature(corpus, forces)


@pytest.mark.more
def test_joint_forces_and_curvature_match_derivatives_of_the_reference_loss(corpus, textbook):
    both = jax.random.normal(jax.random.key(3), (2, 44))
    forces, curvature = evaluate(corpus, *both)
    scale = np.exp(forces.log_scale)
    gradient = jax.jit(jax.grad(lambda both: textbook(corpus, *both)))
    expected = -gradient(both)
    np.testing.assert_allclose(scale * forces.scores, expected[0], atol=1e-15)
    np.testing.assert_allclose(scale * forces.head, expected[1], atol=1e-15)
    hessian = -jax.jit(jax.jacfwd(gradient))(both)
    np.testing.assert_allclose(scale * curvature, hessian, atol=1e-15)


def test_forces_are_accurate_where_the_loss_underflows(corpus):
    """For values of 1e5 the loss is below e^(-1e4); the directions of the forces do not change."""
    scores = jax.random.normal(jax.random.key(3), (44,))
    values = jnp.asarray(np.sign(scores))
    labels = corpus.replace(targets=jnp.ones_like(corpus.targets))
    near, far = (evaluate(labels, scores, 1e5 + shift + 0.1 * values)[0] for shift in (0, 50))
    np.testing.assert_allclose(far.log_scale - near.log_scale, -50, rtol=1e-12)
    np.testing.assert_allclose(far.head, near.head, rtol=1e-9)
    np.testing.assert_allclose(far.scores, near.scores, rtol=1e-9)


@pytest.fixture(params=["V < d", pytest.param("V > d", marks=pytest.mark.more)])
def flow_and_params(request, corpus):
    dim = 6 if request.param == "V > d" else 48
    params = generic(ja.models.one_layer.init, vocab_size=44, dim=dim, dtype=jnp.float64)
    return joint_coordinates(params.E, params.p, params.v, corpus, 1e3), params


@jax.jit
def at(flow, z):
    return flow.at(z), flow.velocity(z)


def test_velocity_and_jacobian_match_autodiff(flow_and_params, textbook):
    flow, params = flow_and_params
    r = flow.query.offset.shape[0]
    z, other = 0.2 * jax.random.normal(jax.random.key(1), (2, 2 * r))
    lift = np.kron(np.eye(2), np.asarray(flow.query.embeddings if r == 44 else np.eye(6)))

    def direction(pv, E):
        p, v = jnp.split(pv, 2)
        g = jax.grad(lambda p, v: textbook(flow.query.corpus, E @ p, E @ v), (0, 1))(p, v)
        g = jnp.concatenate(g)
        return -g / jnp.linalg.norm(g)

    (local, velocity), start = at(flow, z), jnp.concatenate([params.p, params.v])
    plain = start + z @ lift, params.E
    np.testing.assert_allclose(velocity @ lift, jax.jit(direction)(*plain), atol=1e-13)
    np.testing.assert_array_equal(local.velocity, velocity)
    derivative = jax.jit(jax.jacfwd(direction))(*plain)
    np.testing.assert_allclose(lift.T @ local.jacobian, derivative @ lift.T, atol=1e-11)
    np.testing.assert_allclose(flow.inner(z, other), (z @ lift) @ (other @ lift), rtol=1e-12)
    np.testing.assert_allclose(flow.norm(z), jnp.linalg.norm(z @ lift), rtol=1e-13)


def test_flow_stops_when_p_or_v_reaches_its_norm_limit(flow_and_params):
    flow, params = flow_and_params
    r = flow.query.offset.shape[0]
    u = jnp.ones(2 * r) / flow.norm(jnp.ones(2 * r))
    for until, far in jnp.array([[3.0, 1e9], [1e9, 4.0]]):
        ends = flow.replace(far=far)
        h = ends.to_end(flow.zero, u, until)
        assert not ends.ended(0.99 * h * u, until)
        assert ends.ended(h * u, until)
        moved = [
            part.norm(x, 1.0) for part, x in zip((flow.query, flow.head), jnp.split(h * u, 2), strict=True)
        ]
        np.testing.assert_allclose(moved[0] if far == 1e9 else moved[1], min(until, far), rtol=1e-5)
    np.testing.assert_allclose(flow.far, 1e3 * flow.unit)
    np.testing.assert_allclose(flow.head.norm(flow.head.zero, 1.0), jnp.linalg.norm(params.v), rtol=1e-13)
