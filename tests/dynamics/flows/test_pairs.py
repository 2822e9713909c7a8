"""Second-order forces of pairs, and their derivative, compared with automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics.flows.force import curvature_bound, curvature_product, score_force, token_curvature
from jaxattn.dynamics.flows.pairs import Pairs, no_pairs

pytestmark = pytest.mark.usefixtures("x64")
# Pairs (0, 2), (1, 2) and (0, 3) with coupled terms.
TOP, LOW = np.array([0, 1, 0], np.int32), np.array([2, 2, 3], np.int32)
M = np.array([[0.7, -0.2, 0.1], [-0.2, 0.5, 0.3], [0.1, 0.3, -0.4]])


@pytest.fixture(params=[2, 3], ids=["K = 2", "K = 3"])
def problem(request):
    rng = np.random.default_rng(5)
    labels = rng.choice([-1, 1], 12) if request.param == 2 else rng.integers(0, 3, 12)
    corpus = ja.data.from_sequences(
        rng.integers(0, 6, (12, 4)).tolist(), labels.tolist(), vocab_size=6, num_classes=request.param
    )
    values = rng.normal(size=6) if request.param == 2 else rng.normal(size=(6, 3))
    return corpus, jnp.asarray(rng.normal(size=6)), jnp.asarray(values)


@pytest.fixture
def pairs():
    top, low, log_size, sign = (np.array(x) for x in jax.tree.leaves(no_pairs(jnp.float64)))
    top[:3], low[:3], log_size[:3, :3], sign[:3, :3] = TOP, LOW, np.log(np.abs(M)), np.sign(M)
    return Pairs(top=top, low=low, log_size=log_size, sign=sign)


@jax.jit
def forces(corpus, scores, values, pairs):
    """Return the force of the tokens alone, the force with pairs, and that of the pairs on tokens."""
    plain = score_force(corpus, scores, values)
    both = pairs.add_to(plain, scores)
    return plain, both, both.pairs.on_tokens(6)


def second_order_loss(scores):
    x = jnp.exp(scores[LOW] - scores[TOP])
    return x @ M @ x / 2


def test_force_with_pairs_is_the_gradient_of_the_loss_with_their_second_order_terms(problem, pairs):
    _, scores, _ = problem
    plain, both, of_pairs = forces(*problem, pairs)
    expected = plain.force * jnp.exp(plain.log_scale) - jax.jit(jax.grad(second_order_loss))(scores)
    total = (both.force + of_pairs) * jnp.exp(both.log_scale)
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.more
def test_curvature_with_pairs_is_the_hessian_of_the_loss_with_their_second_order_terms(problem, pairs):
    corpus, scores, _ = problem
    plain, both, _ = forces(*problem, pairs)
    expected = token_curvature(corpus, plain) * jnp.exp(plain.log_scale) - jax.hessian(second_order_loss)(
        scores
    )
    matrix = token_curvature(corpus, both) * jnp.exp(both.log_scale)
    np.testing.assert_allclose(matrix, expected, rtol=1e-12, atol=1e-14)
    for x in np.random.default_rng(7).normal(size=(3, 6)):
        product = curvature_product(corpus, both, jnp.asarray(x)) * jnp.exp(both.log_scale)
        np.testing.assert_allclose(product, expected @ x, rtol=1e-11, atol=1e-13)
    lengths = jnp.asarray(np.random.default_rng(8).uniform(1, 2, 6))
    bound = curvature_bound(corpus, both, lengths) * jnp.exp(both.log_scale)
    assert (np.abs(expected) @ lengths * lengths <= bound * (1 + 1e-12)).all()
