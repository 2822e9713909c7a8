import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxattn.models.projection import scores_and_values


@pytest.fixture(params=[(), (1,), (3,)], ids=["one head", "a column", "three heads"])
def arrays(request, rng, x64):
    E, p, v = rng.normal(size=(7, 5)), rng.normal(size=5), rng.normal(size=(5, *request.param))
    return tuple(map(jnp.asarray, (E, p, v)))


def plain(E, p, v):
    return E @ p, E @ v


def weighted(project, weights):
    """A function of E, p and v whose derivatives by each differ from token to token."""

    def call(*arrays):
        return sum((jnp.sin(x) * w).sum() for x, w in zip(project(*arrays), weights, strict=True))

    return call


def test_projections_are_those_of_two_products(arrays):
    for mine, other in zip(scores_and_values(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-14)


@pytest.mark.parametrize("by", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_derivatives_are_those_of_two_products(rng, arrays, by):
    weights = [jnp.asarray(rng.normal(size=x.shape)) for x in plain(*arrays)]
    mine, theirs = (jax.grad(weighted(f, weights), by)(*arrays) for f in (scores_and_values, plain))
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def test_one_of_the_two_alone_is_differentiated(arrays):
    for kind in (0, 1):
        gradient = jax.grad(lambda E, p, v, kind=kind: scores_and_values(E, p, v)[kind].sum(), (0, 1, 2))
        expected = jax.grad(lambda E, p, v, kind=kind: plain(E, p, v)[kind].sum(), (0, 1, 2))
        for one, other in zip(gradient(*arrays), expected(*arrays), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)


def test_second_derivatives_forward_over_reverse(rng, arrays):
    weights = [jnp.asarray(rng.normal(size=x.shape)) for x in plain(*arrays)]
    check_grads(jax.grad(weighted(scores_and_values, weights), (0, 1, 2)), arrays, order=1, modes=("fwd",))


def test_vmapped_equals_looped(rng, x64):
    E, p, v = (jnp.asarray(rng.normal(size=(4, *shape))) for shape in ((7, 5), (5,), (5,)))
    call = jax.grad(lambda E, p, v: sum((x**2).sum() for x in scores_and_values(E, p, v)), (0, 1, 2))
    for vmapped, looped in zip(jax.vmap(call)(E, p, v), zip(*map(call, E, p, v), strict=True), strict=True):
        np.testing.assert_allclose(vmapped, jnp.stack(looped), rtol=1e-13)
    one = jax.vmap(call, (None, 0, None))(E[0], p, v[0])
    np.testing.assert_allclose(one[0][2], call(E[0], p[2], v[0])[0], rtol=1e-13)


def test_a_step_reads_the_embeddings_twice(rng):
    E, p, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((700, 50), (50,), (50,)))
    gradient = jax.grad(lambda p, v, E: sum((x**2).sum() for x in scores_and_values(E, p, v)), (0, 1))
    program = jax.jit(gradient).lower(p, v, E).compile().as_text()
    assert program.count(" dot(") == 2
