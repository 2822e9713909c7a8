import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics import LogDescent, Task, log_excess_loss, run

pytestmark = pytest.mark.usefixtures("x64")
METHODS = ("normalized", "polyak", "dual_acceleration", "log_time")


@pytest.fixture(scope="module")
def separable():
    """Return parameters after a step on E, and a corpus that satisfies Assumption 1."""
    with jax.enable_x64(True):
        data_key, model_key = jax.random.split(jax.random.key(3))
        corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=64, dtype=jnp.float64)
        return jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=100.0))(params), corpus


def after(method, step_size, problem, steps, **changes):
    """Return the state after some steps; all step sizes, numbers of steps and starts share a program."""
    params, corpus = problem
    phase = LogDescent(name="q", method=method, step_size=jnp.asarray(step_size), steps=3000)
    return run(phase, Task(data=corpus), params.replace(**changes), steps=steps)


def excess(p, params, corpus):
    """Compute L - L*, with L* from a loop over sequences."""
    values = np.asarray(params.E) @ np.asarray(params.v)
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    labels = np.asarray(corpus.targets)
    best = [max(y * values[row[real]]) for row, real, y in zip(ids, mask, labels, strict=True)]
    return ja.dynamics.loss(params.replace(p=p), corpus) - np.log1p(np.exp(-np.array(best))).mean()


@pytest.mark.more
def test_log_excess_loss_matches_a_loop(separable):
    params, corpus = separable
    for scale in (0.0, 1.0, 10.0):
        p = scale * params.p
        log_excess = log_excess_loss(corpus, params.E @ p, params.E @ params.v)
        np.testing.assert_allclose(np.exp(log_excess), excess(p, params, corpus), rtol=1e-12)


def test_log_excess_loss_for_two_tokens_matches_the_closed_form():
    """X = (0, 1), y = 1, γ = (1, -1), a = (s, 0): D = 2 / (1 + e^s), even where this is e^(-5000)."""
    corpus = ja.data.from_sequences([[0, 1]], [1], vocab_size=2)
    for s in (0.0, 3.0, 30.0, 5000.0):
        got = jax.jit(log_excess_loss)(corpus, jnp.array([s, 0.0]), jnp.array([1.0, -1.0]))
        log_distance = np.log(2) - np.logaddexp(0, s)
        sigma = 1 / (1 + np.e)
        plain = np.log1p(sigma * np.expm1(np.exp(log_distance)))
        expected = np.log(plain) if s < 25 else np.log(sigma) + log_distance
        np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_log_excess_loss_is_minus_infinity_if_all_attention_is_on_the_best_tokens():
    corpus = ja.data.from_sequences([[0], [1, 1]], [1, -1], vocab_size=2)
    assert jax.jit(log_excess_loss)(corpus, jnp.array([1.0, 2.0]), jnp.array([1.0, -1.0])) == -jnp.inf


@pytest.mark.parametrize("norm", [pytest.param(10.0, marks=pytest.mark.more), 3000.0])
def test_dual_acceleration_uses_the_gradient_of_the_log_excess_loss(separable, norm):
    """The first step is 2 η times -∂ log(L - L*)/∂p, computed by autodiff of the logarithm."""
    params, corpus = separable
    far = norm * params.p / jnp.linalg.norm(params.p)

    @jax.jit
    @jax.grad
    def slope(p):
        return log_excess_loss(corpus, params.E @ p, params.E @ params.v)

    state = after("dual_acceleration", 0.5, separable, 1, p=far)
    np.testing.assert_allclose(state.params.p - far, -0.5 * slope(far), atol=1e-9)
    state = after("dual_acceleration", 0.5, separable, 2, p=far)
    first, second = -slope(far), -slope(far - 0.5 * slope(far))
    momentum = 0.5 * (0 * first + second)
    expected = far + 0.5 * first + 0.5 * (momentum + second)
    np.testing.assert_allclose(state.params.p, expected, atol=1e-9)


def test_methods_match_loops_with_plain_gradients(separable):
    """Float64 precision includes the factor k/(k+1), which is float32 as a ratio of two integers."""
    params, corpus = separable
    gradient = jax.jit(jax.grad(lambda p: ja.dynamics.loss(params.replace(p=p), corpus)))
    momentum, t = np.zeros(params.p.shape), 1.0

    def normalized(p, g, k):
        return -0.1 * g / np.linalg.norm(g)

    def polyak(p, g, k):
        return -min(0.7, excess(p, params, corpus) / np.linalg.norm(g)) * g / np.linalg.norm(g)

    def dual_acceleration(p, g, k):
        nonlocal momentum
        pull = -g / excess(p, params, corpus)
        momentum = k / (k + 1) * (momentum + pull)
        return 0.05 * (momentum + pull)

    def log_time(p, g, k):
        nonlocal t
        h = 0.05 / (1 + t * np.linalg.norm(g))
        now, t = t, t * np.exp(h)
        return -h * now * g

    sizes = {normalized: 0.1, polyak: 0.7, dual_acceleration: 0.05, log_time: 0.05}
    for move, step_size in sizes.items():
        p = np.asarray(params.p)
        for k in range(10):
            p = p + move(p, np.asarray(gradient(p)), k)
        state = after(move.__name__, step_size, separable, 10)
        np.testing.assert_allclose(state.params.p, p, rtol=1e-11, atol=1e-11, err_msg=move.__name__)
        assert (state.step, state.failed_at) == (10, -1)


def test_every_method_converges_to_the_max_margin_direction(separable):
    params, corpus = separable
    for method, step_size in zip(METHODS, (1.0, 1.0, 0.1, 1.0), strict=True):
        p = after(method, step_size, separable, 3000).params.p
        scores = ja.theory.Scores(params.E, corpus)
        mm = ja.theory.max_margin(scores, ja.theory.selection(p, scores))
        # Here 1 - cos is about 10 / ‖p‖², and every ‖p‖ is at least 500.
        assert jnp.linalg.norm(p) > 500
        assert ja.theory.one_minus_cosine(p, mm.p) < 1e-4, method


def test_zero_gradient_leaves_p_unchanged_and_nan_counts_as_failure(separable):
    params, _ = separable
    for method in METHODS:
        state = after(method, 0.1, separable, 1, E=0 * params.E)
        np.testing.assert_array_equal(state.params.p, params.p)
        assert state.failed_at == -1
        assert after(method, 0.1, separable, 1, p=params.p.at[0].set(jnp.nan)).failed_at == 0


def test_unknown_method_is_rejected(separable):
    with pytest.raises(
        ja.InputError, match=r"method: invalid enum value 'newton'; known: normalized, polyak"
    ):
        after("newton", 0.1, separable, 1)
