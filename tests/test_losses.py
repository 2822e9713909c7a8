import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from jaxattn import losses


def test_logistic_equals_the_formula_and_survives_large_logits(rng, x64):
    logits, labels = rng.normal(size=30), rng.choice([-1, 1], 30)
    expected = np.log(1 + np.exp(-labels * logits)).mean()
    np.testing.assert_allclose(
        losses.logistic(jnp.asarray(logits), jnp.asarray(labels)), expected, rtol=1e-14
    )
    np.testing.assert_allclose(losses.logistic(jnp.array([-1e5, 1e5]), jnp.array([1, 1])), 5e4)


def test_cross_entropy_equals_the_formula(rng, x64):
    logits, labels = 5 * rng.normal(size=(30, 4)), rng.integers(0, 4, 30)
    expected = -log_softmax(logits, axis=1)[np.arange(30), labels].mean()
    got = losses.cross_entropy(jnp.asarray(logits), jnp.asarray(labels))
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def test_two_class_cross_entropy_of_f_and_0_is_the_logistic_loss(rng, x64):
    f, y = jnp.asarray(rng.normal(size=20)), jnp.asarray(rng.choice([-1, 1], 20))
    both = jnp.stack([jnp.zeros(20), f], axis=1)
    np.testing.assert_allclose(losses.cross_entropy(both, (y + 1) // 2), losses.logistic(f, y), rtol=1e-13)
    np.testing.assert_allclose(losses.classification(both, (y + 1) // 2), losses.classification(f, y))


def test_accuracy_counts_right_signs_and_largest_logits():
    assert losses.accuracy(jnp.array([1.0, -2, 0, 3]), jnp.array([1, 1, 1, 1])) == 0.5
    assert losses.accuracy(jnp.array([[1.0, 2], [3, 0]]), jnp.array([1, 1])) == 0.5


def test_gradient_of_the_logistic_loss_is_minus_y_sigmoid(rng, x64):
    f, y = jnp.asarray(rng.normal(size=9)), jnp.asarray(rng.choice([-1, 1], 9))
    got = jax.grad(losses.logistic)(f, y)
    np.testing.assert_allclose(got, -y / (1 + np.exp(y * f)) / 9, rtol=1e-13)
