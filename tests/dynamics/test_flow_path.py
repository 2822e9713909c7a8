import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.dynamics.exact_flow import Stop


def problem(seed, dim=64, dtype=jnp.float64):
    data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(5), seed))
    corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
    params = ja.models.one_layer.init(model_key, vocab_size=12, dim=dim, dtype=dtype)
    return ja.dynamics.one_step(params, corpus, step_size=100.0), corpus


def gradient(params, corpus, p):
    return jax.grad(lambda q: ja.dynamics.loss(params.replace(p=q), corpus))(p)


def exact_direction(params, corpus, p, digits=4000):
    """Form -∂L/∂p / ‖∂L/∂p‖ from the textbook formula in thousands of digits."""
    mpmath.mp.dps = digits
    ids, mask = ja.models.reference.padded_sequences(corpus)
    E = [[mpmath.mpf(float(x)) for x in row] for row in np.asarray(params.E)]
    query = [mpmath.mpf(float(x)) for x in p]
    scores = [mpmath.fdot(row, query) for row in E]
    values = [mpmath.mpf(float(x)) for x in np.asarray(params.E) @ np.asarray(params.v)]
    force = [mpmath.mpf(0)] * len(E)
    for row, real, y in zip(ids, mask, np.asarray(corpus.labels), strict=True):
        tokens = [int(s) for s in row[real]]
        weight = [mpmath.exp(scores[s] - scores[tokens[0]]) for s in tokens]
        q = [w / mpmath.fsum(weight) for w in weight]
        f = mpmath.fsum(a * values[s] for a, s in zip(q, tokens, strict=True))
        pull = int(y) / (1 + mpmath.exp(int(y) * f))
        for a, s in zip(q, tokens, strict=True):
            force[s] += pull * a * (values[s] - f)
    moved = [mpmath.fdot(force, column) for column in zip(*E, strict=True)]
    norm = mpmath.sqrt(mpmath.fsum(x * x for x in moved))
    return np.array([float(x / norm) for x in moved]), float(mpmath.log(norm / corpus.num_sequences))


@pytest.mark.parametrize("norm", [50.0, 3000.0])
def test_the_path_leaves_a_point_along_the_exact_direction(x64, norm):
    """A very short path shows its direction and log ‖∂L/∂p‖; plain float64 fails the same test."""
    params, corpus = problem(0)
    far = ja.dynamics.exact_flow(params, corpus, until_norm=norm).p[-1]
    expected, log_norm = exact_direction(params, corpus, far)
    assert norm < 1000 or log_norm < -300
    start = params.replace(p=far)
    path = ja.dynamics.exact_flow(start, corpus, until_norm=np.inf, until_arc_length=1e-4 * norm)
    moved = np.asarray(path.p[-1] - path.p[0])
    np.testing.assert_allclose(moved / np.linalg.norm(moved), expected, atol=2e-4)
    np.testing.assert_allclose(path.log_gradient_norm[0], log_norm, rtol=1e-9)
    plain = -np.asarray(gradient(params, corpus, far))
    with np.errstate(invalid="ignore"):
        error = np.abs(plain / np.linalg.norm(plain) - expected).max()
    assert norm < 1000 or not error < 2e-4


def test_the_path_is_that_of_a_plain_integrator_while_p_is_short(x64):
    params, corpus = problem(1)

    def velocity(_, p):
        g = np.asarray(gradient(params, corpus, jnp.asarray(p)))
        return -g / np.linalg.norm(g)

    reference = solve_ivp(velocity, (0, 4), np.asarray(params.p), rtol=1e-9, atol=1e-11).y[:, -1]
    path = ja.dynamics.exact_flow(params, corpus, until_norm=np.inf, until_arc_length=4.0, rtol=1e-7)
    assert path.stop == "arc_length"
    np.testing.assert_allclose(path.p[-1], reference, atol=1e-5)


def test_two_tokens_move_p_along_their_difference(x64):
    """n = 1, X = (0, 1), y = 1: -∂L/∂p is a positive multiple of (γ_0 - γ_1)(E_0 - E_1) at every p."""
    corpus = ja.data.from_sequences([[0, 1]], [1], vocab_size=2)
    E = jnp.array([[1.0, 0.5, 0.0], [0.0, 0.2, 0.3]])
    params = ja.models.one_layer.Params(E=E, p=jnp.array([0.1, 0.0, 0.0]), v=jnp.array([1.0, 0.0, 0.0]))
    path = ja.dynamics.exact_flow(params, corpus, until_norm=1e3)
    moved = path.p - params.p
    along = (E[0] - E[1]) / jnp.linalg.norm(E[0] - E[1])
    np.testing.assert_allclose(moved, path.arc_length[:, None] * along, atol=1e-9 * 1e3)


def test_flow_time_is_the_integral_of_the_inverse_gradient_norm(x64):
    params, corpus = problem(2)
    path = ja.dynamics.exact_flow(params, corpus, until_norm=20.0, points=400, rtol=1e-8)
    inverse = np.exp(-np.asarray(path.log_gradient_norm))
    time = np.trapezoid(inverse, np.asarray(path.arc_length))
    np.testing.assert_allclose(np.exp(path.log_time[-1]), time, rtol=2e-3)


def test_every_seed_tends_to_the_certified_max_margin_direction_like_norm_to_the_minus_two(x64):
    params, corpora = jax.jit(jax.vmap(problem))(jnp.arange(4))
    path = ja.dynamics.exact_flow(params, corpora, until_norm=1e6)
    assert (path.stop == "norm").all()
    chosen = jax.vmap(ja.theory.selection)(path.p[:, -1], params.E, corpora)
    mm = ja.theory.max_margin_batch(params.E, corpora, chosen)
    assert mm.feasible.all()
    assert (mm.duality_gap < 1e-10).all()
    distance = np.stack([ja.theory.one_minus_cosine(path.p[k], mm.p[k]) for k in range(4)])
    assert (distance[:, -1] < 1e-9).all()
    norm = np.asarray(path.norm)
    for k in range(4):
        late = (norm[k] > 1e3) & (norm[k] < 5e5)
        slope = np.polyfit(np.log(norm[k][late]), np.log(distance[k][late]), 1)[0]
        assert abs(slope + 2) < 0.1
    alone = ja.dynamics.exact_flow(*jax.tree.map(lambda x: x[2], (params, corpora)), until_norm=1e6)
    np.testing.assert_allclose(alone.p, path.p[2], rtol=1e-6, atol=1e-6)


def test_float32_parameters_of_a_session_without_x64_just_work():
    params, corpus = problem(0, dtype=jnp.float32)
    path = ja.dynamics.exact_flow(params, corpus, until_norm=1e4)
    assert path.p.dtype == np.float64
    assert path.stop == "norm"


def test_seeds_that_fail_or_cannot_move_do_not_stop_the_others(x64):
    params, corpora = jax.jit(jax.vmap(problem))(jnp.arange(3))
    params = params.replace(p=params.p.at[0].set(jnp.nan), E=params.E.at[1].set(params.E[1, 0]))
    path = ja.dynamics.exact_flow(params, corpora, until_norm=1e3)
    assert path.status[0] == Stop.FAILED
    assert path.status[1] in (Stop.STATIONARY, Stop.BALANCED)
    assert path.status[2] == Stop.NORM


def test_no_gradient_and_a_start_at_zero_are_defined(x64):
    alone = ja.data.from_sequences([[0], [1], [1, 1]], [1, -1, -1], vocab_size=2)
    params = ja.models.one_layer.init(jax.random.key(0), vocab_size=2, dim=3, dtype=jnp.float64)
    assert ja.dynamics.exact_flow(params, alone).stop == "stationary"
    start, corpus = problem(0)
    path = ja.dynamics.exact_flow(start.replace(p=0 * start.p), corpus, until_norm=1e3)
    assert path.stop == "norm"
    assert np.isfinite(path.p).all()
