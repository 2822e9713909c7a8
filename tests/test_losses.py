import jax
import jax.numpy as jnp
import mpmath
import msgspec
import numpy as np
import pytest
from scipy.special import log_softmax

import jaxattn as ja
from jaxattn import losses
from jaxattn.lab import kinds

LOSSES = kinds.classes(kinds.LOSSES)
# Compiled as a whole, which is faster than to compile each operation.
logistic, cross_entropy, classification, accuracy = map(
    jax.jit, (losses.logistic, losses.cross_entropy, losses.classification, losses.accuracy)
)


@jax.jit
def of_first(logits):
    """Return the cross-entropy of one example of class 0, and its gradient."""
    return jax.value_and_grad(lambda f: losses.cross_entropy(f, jnp.array([0]))[0])(logits)


def test_logistic_matches_the_formula_for_large_logits(rng, x64):
    logits, labels = rng.normal(size=30), rng.choice([-1, 1], 30)
    expected = np.log(1 + np.exp(-labels * logits))
    np.testing.assert_allclose(logistic(logits, labels), expected, rtol=1e-14)
    np.testing.assert_allclose(logistic(np.array([-1e5, 1e5]), np.array([1, 1])), [1e5, 0])


def test_cross_entropy_matches_the_formula(rng, x64):
    logits, labels = 5 * rng.normal(size=(30, 4)), rng.integers(0, 4, 30)
    expected = -log_softmax(logits, axis=1)[np.arange(30), labels]
    got = cross_entropy(logits, labels)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gap", [5.0, 18.0, 38.0, 60.0])
def test_cross_entropy_of_confident_examples_does_not_cancel(gap, dtype, x64):
    """logsumexp(f) - f_y is exactly 0 from a gap of about 17 on in float32, and so is its gradient."""
    value, gradient = of_first(np.array([[gap, 0.0, -1.0]], dtype))
    others = mpmath.exp(-gap) + mpmath.exp(-gap - 1)
    exact = [-others / (1 + others), mpmath.exp(-gap) / (1 + others), mpmath.exp(-gap - 1) / (1 + others)]
    # Rounding of the difference of logits.
    tolerance = 4 * gap * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(float(value), float(mpmath.log1p(others)), rtol=tolerance)
    np.testing.assert_allclose(gradient[0], np.array(exact, float), rtol=tolerance)


def test_two_class_cross_entropy_is_the_logistic_loss(rng, x64):
    f, y = rng.normal(size=20), rng.choice([-1, 1], 20)
    both = np.stack([np.zeros(20), f], axis=1)
    np.testing.assert_allclose(cross_entropy(both, (y + 1) // 2), logistic(f, y), rtol=1e-13)
    np.testing.assert_allclose(classification(both, (y + 1) // 2), classification(f, y))


@pytest.mark.parametrize("kind", LOSSES)
def test_no_value_is_outside_of_the_declared_bounds(rng, kind):
    low, high = LOSSES[kind].bounds
    assert (low, high) == (0, np.inf)
    numbers = rng.normal(size=(100, 4)) * 10.0 ** rng.integers(-3, 2, (100, 1))
    if kind == "squared_error":
        cases = [(LOSSES[kind](), numbers, numbers[::-1])]
    else:
        smoothed = LOSSES[kind](smoothing=0.3)
        cases = [] if kind == "cross_entropy" else [(smoothed, numbers[:, 0], rng.choice([-1, 1], 100))]
        cases += [] if kind == "logistic" else [(smoothed, numbers, rng.integers(0, 4, 100))]
    for loss, outputs, targets in cases:
        assert float(np.min(jax.jit(loss.__call__)(outputs, targets))) >= low


def test_accuracy_counts_correct_signs_and_largest_logits():
    assert accuracy(np.array([1.0, -2, 0, 3]), np.array([1, 1, 1, 1])) == 0.5
    assert accuracy(np.array([[1.0, 2], [3, 0]]), np.array([1, 1])) == 0.5


def test_logits_without_a_single_largest_class_count_as_wrong():
    rounded = np.float32(1 - 41 * np.float32(1 / 41))
    assert rounded != 0
    logits = np.array([rounded, -rounded, 0, 0.4, -1e-4], np.float32)
    assert accuracy(logits, np.array([1, 1, 1, 1, -1])) == np.float32(0.4)
    many = [[0.3, 0.3 + rounded, 0.1], [0.3, 0.3 + rounded, 0.1], [0, 0, 0], [0.2, 0.1, -np.inf]]
    assert accuracy(np.array(many, np.float32), np.array([0, 1, 0, 0])) == 0.25
    assert accuracy(np.array([np.nan, np.inf, -np.inf, 1.0]), np.array([1, 1, 1, 1])) == 0.5
    assert accuracy(np.ones(41, np.float32), np.ones(41, int)) == 1


def test_gradient_of_the_logistic_loss_is_minus_y_sigmoid(rng, x64):
    f, y = map(jax.device_put, (rng.normal(size=9), rng.choice([-1, 1], 9)))
    got = jax.jit(jax.grad(lambda f: losses.mean(losses.logistic, f, y)))(f)
    np.testing.assert_allclose(got, -y / (1 + np.exp(y * f)) / 9, rtol=1e-13)


TWO_CLASSES = {
    "classification": lambda m: np.log(1 + np.exp(-m)),
    "logistic": lambda m: np.log(1 + np.exp(-m)),
    "exponential": lambda m: np.exp(-m),
    "squared": lambda m: (1 - m) ** 2 / 2,
    "hinge": lambda m: max(0, 1 - m),
}
K_CLASSES = {
    "classification": lambda f, y: -log_softmax(f)[y],
    "cross_entropy": lambda f, y: -log_softmax(f)[y],
    "exponential": lambda f, y: sum(np.exp(f[j] - f[y]) for j in range(len(f)) if j != y),
    "squared": lambda f, y: sum((f[j] - (j == y)) ** 2 for j in range(len(f))) / 2,
    "hinge": lambda f, y: max(0, 1 + max(f[j] for j in range(len(f)) if j != y) - f[y]),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", TWO_CLASSES)
def test_two_class_losses_match_the_smoothed_expectation(rng, x64, name, smoothing):
    f, y = 2 * rng.normal(size=20), rng.choice([-1, 1], 20)
    loss, formula = LOSSES[name](smoothing=smoothing), TWO_CLASSES[name]
    expected = [
        (1 - smoothing) * formula(b * a) + smoothing / 2 * (formula(a) + formula(-a))
        for a, b in zip(f, y, strict=True)
    ]
    weights = rng.random(20)
    each, mean = jax.jit(lambda f, y, w: (loss(f, y), losses.mean(loss, f, y, w)))(f, y, weights)
    np.testing.assert_allclose(each, expected, rtol=1e-13)
    np.testing.assert_allclose(mean, weights @ expected, rtol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", K_CLASSES)
def test_multiclass_losses_match_the_smoothed_expectation(rng, x64, name, smoothing):
    f, y = 2 * rng.normal(size=(20, 4)), rng.integers(0, 4, 20)
    loss, formula = LOSSES[name](smoothing=smoothing), K_CLASSES[name]
    expected = [
        (1 - smoothing) * formula(a, b) + smoothing / 4 * sum(formula(a, k) for k in range(4))
        for a, b in zip(f, y, strict=True)
    ]
    each, mean = jax.jit(lambda f, y: (loss(f, y), losses.mean(loss, f, y)))(f, y)
    np.testing.assert_allclose(each, expected, rtol=1e-13)
    np.testing.assert_allclose(mean, np.mean(expected))


@pytest.mark.parametrize("smoothing", [pytest.param(0.0, marks=pytest.mark.more), 0.3])
@pytest.mark.parametrize(("name", "classes"), [*((x, 2) for x in TWO_CLASSES), *((x, 4) for x in K_CLASSES)])
def test_derivatives_match_finite_differences(rng, x64, name, classes, smoothing):
    f, way = rng.normal(size=(2, 9) if classes == 2 else (2, 9, 4))
    y = jax.device_put(rng.choice([-1, 1], 9) if classes == 2 else rng.integers(0, 4, 9))
    loss = LOSSES[name](smoothing=smoothing)

    @jax.jit
    def slopes(f):
        """Return the mean loss, its gradient, and the derivatives of both along a line, in every mode."""

        def value(f):
            return losses.mean(loss, f, y)

        def slope(f):
            return jax.jvp(value, (f,), (way,))[1]

        gradient = jax.grad(value)
        forward = [jax.jvp(g, (f,), (way,))[1] for g in (slope, gradient)]
        reverse = [jax.grad(g)(f) for g in (slope, lambda f: jnp.vdot(gradient(f), way))]
        return value(f), gradient(f), slope(f), forward, reverse

    step = 1e-5
    (low, low_gradient, *_), (high, high_gradient, *_) = slopes(f - step * way), slopes(f + step * way)
    _, gradient, slope, (twice, along), reverse = slopes(f)
    np.testing.assert_allclose([slope, np.vdot(gradient, way)], (high - low) / (2 * step), rtol=1e-6)
    curvature = (high_gradient - low_gradient) / (2 * step)
    np.testing.assert_allclose([along, *reverse], [curvature] * 3, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(twice, np.vdot(curvature, way), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"squared_error"}))
def test_losses_with_traced_smoothing_are_finite_for_large_margins(name):
    """e^100 overflows in float32, so a weight of 0 must remove it, also from the gradient."""
    loss = LOSSES[name]()
    f, y = (
        (np.float32([[200, 100, 0]]), jnp.array([0]))
        if name == "cross_entropy"
        else (np.float32([100]), jnp.array([1]))
    )

    def total(f, smoothing):
        return msgspec.structs.replace(loss, smoothing=smoothing)(f, y).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(f, 0.0)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert gradient.dtype == jnp.float32
    many = jax.jit(jax.vmap(total, in_axes=(None, 0)))(f / 100, np.float32([0.0, 0.2]))
    alone = jax.jit(LOSSES[name](smoothing=0.2).__call__)(f / 100, y)
    np.testing.assert_allclose(many[1], np.sum(alone), rtol=1e-6)


def test_error_for_incompatible_logits_suggests_a_suitable_loss():
    with pytest.raises(ja.InputError, match="got 3; use cross_entropy"):
        losses.Logistic()(jnp.zeros((2, 3)), jnp.zeros(2, jnp.int32))
    with pytest.raises(ja.InputError, match="use logistic"):
        losses.CrossEntropy()(jnp.zeros(2), jnp.ones(2, jnp.int32))


def test_settings_are_validated_on_reading():
    assert msgspec.convert({"smoothing": 0.1}, losses.Hinge) == losses.Hinge(smoothing=0.1)
    for wrong in ({"smoothing": 1.5}, {"smoothing": -0.1}, {"smooth": 0.1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, losses.Hinge)


def test_squared_error_is_half_the_squared_distance(rng):
    for shape in ((7,), (7, 3), (7, 3, 2)):
        f, y = rng.normal(size=(2, *shape))
        expected = [0.5 * np.sum((a - b) ** 2) for a, b in zip(f, y, strict=True)]
        found = jax.jit(losses.SquaredError().__call__)(f, y)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
