import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError
from jaxattn.dynamics import log_descent, log_excess_loss, run

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def problem():
    with jax.enable_x64(True):
        data_key, model_key = jax.random.split(jax.random.key(3))
        corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=64, dtype=jnp.float64)
        return jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=100.0))(params), corpus


def excess(p, params, corpus):
    """Compute L - L*, with L* from a loop over sequences."""
    values = np.asarray(params.E) @ np.asarray(params.v)
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    labels = np.asarray(corpus.targets)
    best = [max(y * values[row[real]]) for row, real, y in zip(ids, mask, labels, strict=True)]
    return ja.dynamics.loss(params.replace(p=p), corpus) - np.log1p(np.exp(-np.array(best))).mean()


@pytest.mark.more
def test_log_excess_loss_matches_a_loop(problem):
    params, corpus = problem
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
def test_dual_acceleration_uses_the_gradient_of_the_log_excess_loss(problem, norm):
    """The first step is 2 η times -∂ log(L - L*)/∂p, computed by autodiff of the logarithm."""
    params, corpus = problem
    far = norm * params.p / jnp.linalg.norm(params.p)
    start = params.replace(p=far)
    made = log_descent("dual_acceleration", 0.5)
    step = jax.jit(made.step)
    state, _ = step(made.init(start), corpus)

    @jax.jit
    @jax.grad
    def slope(p):
        return log_excess_loss(corpus, params.E @ p, params.E @ params.v)

    np.testing.assert_allclose(state.params.p - far, -0.5 * slope(far), atol=1e-9)
    state, _ = step(state, corpus)
    first, second = -slope(far), -slope(far - 0.5 * slope(far))
    momentum = 0.5 * (0 * first + second)
    expected = far + 0.5 * first + 0.5 * (momentum + second)
    np.testing.assert_allclose(state.params.p, expected, atol=1e-9)


def test_dual_acceleration_is_accurate_in_float64(problem):
    """k/(k+1) of two integers is float32."""
    params, corpus = problem
    momentum, p = np.zeros(params.p.shape), np.asarray(params.p)
    made = log_descent("dual_acceleration", 0.05)
    state = made.init(params)
    step = jax.jit(lambda state: made.step(state, corpus)[0])
    gradient = jax.jit(jax.grad(lambda p: ja.dynamics.loss(params.replace(p=p), corpus)))
    for k in range(6):
        pull = -np.asarray(gradient(p)) / excess(p, params, corpus)
        momentum = k / (k + 1) * (momentum + pull)
        p = p + 0.05 * (momentum + pull)
        state = step(state)
    np.testing.assert_allclose(state.params.p, p, rtol=1e-11, atol=1e-12)


def test_methods_match_loops_with_plain_gradients(problem):
    params, corpus = problem
    gradient = jax.jit(jax.grad(lambda p: ja.dynamics.loss(params.replace(p=p), corpus)))

    def normalized(p, g, k):
        return -0.1 * g / np.linalg.norm(g)

    def polyak(p, g, k):
        return -min(0.7, excess(p, params, corpus) / np.linalg.norm(g)) * g / np.linalg.norm(g)

    t = 1.0

    def log_time(p, g, k):
        nonlocal t
        h = 0.05 / (1 + t * np.linalg.norm(g))
        now, t = t, t * np.exp(h)
        return -h * now * g

    loops = {"normalized": (normalized, 0.1), "polyak": (polyak, 0.7), "log_time": (log_time, 0.05)}
    for method, (move, step_size) in loops.items():
        p = np.asarray(params.p)
        for k in range(10):
            p = p + move(p, np.asarray(gradient(p)), k)
        made = log_descent(method, step_size)
        state = jax.jit(lambda s, made=made: run(made, s, corpus, 10))(made.init(params))
        np.testing.assert_allclose(state.params.p, p, atol=1e-10)
        assert state.step == 10
        assert state.failed_at == -1


def test_every_method_converges_to_the_max_margin_direction(problem):
    params, corpus = problem
    sizes = {"normalized": 1.0, "polyak": 1.0, "dual_acceleration": 0.1, "log_time": 1.0}
    for method, step_size in sizes.items():
        made = log_descent(method, step_size)
        state = jax.jit(lambda s, made=made: run(made, s, corpus, 3000))(made.init(params))
        p = state.params.p
        mm = ja.theory.max_margin(
            ja.theory.Scores(params.E, corpus), ja.theory.selection(p, ja.theory.Scores(params.E, corpus))
        )
        # Here 1 - cos is about 10 / ‖p‖², and every ‖p‖ is at least 500.
        assert jnp.linalg.norm(p) > 500
        assert ja.theory.one_minus_cosine(p, mm.p) < 1e-4, method


def test_zero_gradient_leaves_p_unchanged_and_nan_counts_as_failure(problem):
    params, corpus = problem
    for method in ("normalized", "polyak", "dual_acceleration", "log_time"):
        made = log_descent(method, 0.1)
        step = jax.jit(lambda params, made=made: made.step(made.init(params), corpus))
        same = params.replace(E=0 * params.E)
        state, _ = step(same)
        np.testing.assert_array_equal(state.params.p, same.p)
        assert state.failed_at == -1
        broken = params.replace(p=params.p.at[0].set(jnp.nan))
        state, _ = step(broken)
        assert state.failed_at == 0


def test_unknown_method_is_rejected():
    with pytest.raises(InputError, match=r"'newton'; use one of normalized, polyak"):
        log_descent("newton", 0.1)
