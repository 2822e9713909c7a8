"""Stiff steps and large linear systems, compared with full Jacobians, closed forms and SciPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.params import generic
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.dynamics.flows import stiff, ties
from jaxattn.dynamics.flows.coordinates import coordinates
from jaxattn.dynamics.flows.force import (
    curvature_bound,
    curvature_product,
    score_force,
    token_curvature,
)

pytestmark = pytest.mark.usefixtures("x64")


def solver(jacobian):
    return partial(stiff.by_factors, jacobian)


def spiral(y):
    """Evaluate the field that is r' = r (1 - r²), θ' = 3 in polar coordinates."""
    return (1 - y @ y) * y + 3 * jnp.array([-y[1], y[0]])


def spiral_solution(time):
    """Return the solution from (1/2, 0): r² = 1 / (1 + 3 e^(-2t))."""
    r = 1 / np.sqrt(1 + 3 * np.exp(-2 * time))
    return r * np.array([np.cos(3 * time), np.sin(3 * time)])


def van_der_pol(y):
    """Evaluate van der Pol's field; its fast time scale is 1e-5 / 3 on the branch y[0] ≈ 2."""
    return jnp.array([y[1], 1e5 * ((1 - y[0] ** 2) * y[1] - y[0])])


def integrate(field, y, end, counts):
    """Integrate from 0 to `end` in equal steps, for each number of steps."""

    @jax.jit
    def run(y, h, count):
        def step(_, y):
            return stiff.step(field, y, field(y), solver(jax.jacfwd(field)(y)), h).end

        return jax.lax.fori_loop(0, count, step, y)

    return [np.asarray(run(jnp.asarray(y), jnp.asarray(end / count), count)) for count in counts]


@jax.jit
def amplification(z):
    """Return R(z) and the error estimate of one step of length 1 for y' = z y, y = 1, as pairs of reals."""
    A = jnp.array([[z.real, -z.imag], [z.imag, z.real]])
    y = jnp.array([1.0, 0.0])
    step = stiff.step(lambda y: A @ y, y, A @ y, solver(A), jnp.ones(()))
    return step.end, step.error


def test_step_has_order_four():
    results = integrate(spiral, [0.5, 0.0], 2.0, (80, 160, 320))
    errors = np.array([np.linalg.norm(y - spiral_solution(2.0)) for y in results])
    assert errors[-1] < 1e-7
    np.testing.assert_allclose(errors[:-1] / errors[1:], 16, rtol=0.1)


def test_local_error_and_its_estimate_have_orders_five_and_four():
    y = jnp.array([0.5, 0.0])

    @jax.jit
    def step(h):
        return stiff.step(spiral, y, spiral(y), solver(jax.jacfwd(spiral)(y)), h)

    lengths = np.array([0.04, 0.02, 0.01])
    results = [step(jnp.asarray(h)) for h in lengths]
    errors = [np.linalg.norm(step.end - spiral_solution(h)) for step, h in zip(results, lengths, strict=True)]
    estimates = [np.linalg.norm(step.error) for step in results]
    np.testing.assert_allclose(np.diff(np.log2(errors)), -5, atol=0.25)
    np.testing.assert_allclose(np.diff(np.log2(estimates)), -4, atol=0.25)
    # The estimate belongs to the result of order 3, so it is the larger one.
    assert (np.array(estimates) > np.array(errors)).all()


@pytest.mark.parametrize("size", [1e6, 1e12])
def test_step_is_L_stable(size):
    """R(z) → 0 as z → -∞."""
    moved, error = amplification(-size + 0j)
    assert jnp.linalg.norm(moved) < 10 / size
    assert jnp.linalg.norm(error) < 10 / size


def test_step_is_A_stable():
    """|R(z)| ≤ 1 wherever the real part of z is at most 0."""
    z = np.geomspace(1e-2, 1e4, 200)[:, None] * np.exp(1j * np.pi * np.linspace(0.5, 1, 8))
    moved, _ = jax.vmap(amplification)(jnp.asarray(z.ravel()))
    assert jnp.linalg.norm(moved, axis=1).max() <= 1 + 1e-9


def test_stiff_problem_matches_an_independent_implicit_method():
    """Steps on the slow branch of van der Pol's oscillator are a thousand times its fast time scale."""
    start = [2.0, -0.66]
    field = jax.jit(van_der_pol)
    reference = solve_ivp(lambda _, y: field(y), (0, 0.5), start, method="Radau", rtol=1e-10, atol=1e-12)
    coarse, fine = integrate(van_der_pol, start, 0.5, (50, 100))
    expected = reference.y[:, -1]
    np.testing.assert_allclose(coarse, expected, rtol=1e-5)
    np.testing.assert_allclose(fine, expected, rtol=1e-6)


def test_step_from_a_stationary_point_does_not_move():
    @jax.jit
    def stay(y):
        step = stiff.step(jnp.zeros_like, y, jnp.zeros(3), solver(jnp.zeros((3, 3))), jnp.asarray(10.0))
        return step.end, step.error, step.at(jnp.asarray(0.3))

    y = np.array([1.0, -2.0, 0.5])
    end, error, between = stay(y)
    np.testing.assert_array_equal(end, y)
    np.testing.assert_array_equal(error, 0)
    np.testing.assert_array_equal(between, y)


def test_interpolation_has_order_three():
    y, fractions = jnp.array([0.5, 0.0]), np.linspace(0, 1, 9)

    @jax.jit
    def points(h):
        step = stiff.step(spiral, y, spiral(y), solver(jax.jacfwd(spiral)(y)), h)
        return jax.vmap(step.at)(jnp.asarray(fractions)), step.end

    errors = []
    for h in (0.04, 0.02, 0.01):
        at, end = points(jnp.asarray(h))
        np.testing.assert_array_equal(at[0], y)
        np.testing.assert_allclose(at[-1], end, rtol=1e-15)
        expected = np.stack([spiral_solution(x * h) for x in fractions])
        errors.append(np.linalg.norm(at - expected, axis=1)[1:-1])
    np.testing.assert_allclose(np.diff(np.log2(errors), axis=0), -4, atol=0.3)


def test_interpolation_stays_on_the_slow_path_of_a_stiff_equation():
    """y' = 1e9 (cos s - y) - sin s: steps are 1e8 times the fast time scale, and y = cos s throughout."""

    def field(y):
        return jnp.array([1e9 * (jnp.cos(y[1]) - y[0]) - jnp.sin(y[1]), 1.0])

    @jax.jit
    def points(s):
        y = jnp.stack([jnp.cos(s), s])
        step = stiff.step(field, y, field(y), solver(jax.jacfwd(field)(y)), jnp.asarray(0.1))
        return jax.vmap(step.at)(jnp.linspace(0, 1, 9))

    for s in (0.0, 0.7, 2.0):
        found = points(jnp.asarray(s))
        np.testing.assert_allclose(found[:, 0], np.cos(found[:, 1]), atol=2e-5)


@pytest.fixture
def large(monkeypatch, cleared):
    """Treat a small number of coordinates as large."""
    monkeypatch.setattr(stiff, "MANY_DIMS", 0)
    monkeypatch.setattr(stiff, "SIZES", (4, 16))
    monkeypatch.setattr(ties, "MAX_TIED", 8)


curvature_of = jax.jit(token_curvature, static_argnums=3)


@pytest.fixture(params=[2, 3])
def force(request, ragged, rng):
    """Return a force of two or three classes, and its corpus."""
    corpus = ragged(request.param)
    values = rng.normal(size=(81,) if request.param == 2 else (81, 3))
    return corpus, jax.jit(score_force)(corpus, jnp.asarray(3 * rng.normal(size=81)), jnp.asarray(values))


@pytest.mark.more
def test_curvature_product_matches_the_matrix(force, rng):
    corpus, force = force
    x, whole = rng.normal(size=81), np.asarray(curvature_of(corpus, force))
    np.testing.assert_allclose(jax.jit(curvature_product)(corpus, force, x), whole @ x, atol=1e-13)


@pytest.mark.more
def test_partial_curvature_matches_the_submatrix(force, rng):
    corpus, force = force
    whole, tokens = (
        np.asarray(curvature_of(corpus, force)),
        rng.permutation(81)[:20].astype(np.int32),
    )
    place = ties.positions_of(jnp.asarray(tokens), 81)
    part = curvature_of(corpus, force, place, 20)
    np.testing.assert_allclose(part, whole[np.ix_(tokens, tokens)], atol=1e-14)


def test_curvature_bound_holds(force, rng):
    corpus, force = force
    lengths = rng.uniform(0.5, 2, 81)
    rows = np.abs(np.asarray(curvature_of(corpus, force)) * np.outer(lengths, lengths)).sum(axis=1)
    bound = np.asarray(jax.jit(curvature_bound)(corpus, force, lengths))
    assert (rows <= bound * (1 + 1e-12)).all()
    assert (bound[rows > 0] <= 20 * rows[rows > 0]).all()


def test_conjugate_residuals_solve_an_asymmetric_system(rng):
    A = np.eye(30) + 0.1 * rng.normal(size=(30, 30))
    b = rng.normal(size=30)
    known = stiff.no_directions(30, b.dtype)
    found, known = stiff.conjugate_residuals(lambda x: jnp.asarray(A) @ x, lambda x: x, jnp.asarray(b), known)
    np.testing.assert_allclose(found, np.linalg.solve(A, b), rtol=1e-6, atol=1e-7)


def test_rescaled_right_hand_side_adds_no_search_directions(rng):
    A, b = jnp.asarray(np.eye(30) + 0.1 * rng.normal(size=(30, 30))), jnp.asarray(rng.normal(size=30))
    solve = partial(stiff.conjugate_residuals, lambda x: A @ x, lambda x: x)
    first, known = solve(b, stiff.no_directions(30, b.dtype))
    again, after = solve(-2 * b, known)
    assert 0 < known.count == after.count
    np.testing.assert_allclose(again, -2 * first, rtol=1e-6, atol=1e-7)


def test_conjugate_residuals_return_nan_if_they_do_not_converge(rng):
    """For a cyclic shift of 64 entries, 63 products are needed before b affects the first direction."""
    known = stiff.no_directions(64, jnp.float64)
    found, _ = stiff.conjugate_residuals(lambda x: jnp.roll(x, 1), lambda x: x, jnp.eye(64)[0], known)
    assert np.isnan(found).all()


@pytest.mark.more
@pytest.mark.parametrize("dim", [48, 6])
def test_solver_matches_the_full_jacobian(corpus, large, dim):
    params = generic(ja.models.one_layer.init, vocab_size=44, dim=dim, dtype=jnp.float64)
    flow = coordinates(params.E, params.p, params.E @ params.v, corpus)
    z, b = 3 * jax.random.normal(jax.random.key(1), (2, *flow.offset.shape))

    @jax.jit
    def at(z, b):
        local = flow.at(z)
        _, force = flow._pull(z)
        whole = flow._matrix(local.velocity, flow.norm(flow.force_on_z(force.force)), force)
        return local, whole, stiff.times(flow, local.jacobian, b)

    local, (jacobian, slope), product = at(z, b)
    np.testing.assert_allclose(local.log_slope, slope, rtol=1e-12)
    np.testing.assert_allclose(product, jacobian @ b, atol=1e-11)

    @jax.jit
    def solve(c):
        solve, known = flow.solver(local.jacobian, c)
        return solve(b, known)[0]

    for c in (1e-2, 1.0, 1e3):
        expected = np.linalg.solve(np.eye(len(b)) - c * np.asarray(jacobian), b)
        atol = 1e-6 * np.linalg.norm(expected)
        np.testing.assert_allclose(solve(jnp.asarray(c)), expected, rtol=1e-6, atol=atol, err_msg=str(c))


def made(data, dim):
    """Sample a corpus of 24 tokens, and parameters after one step."""
    corpus = data.draw(jax.random.key(3)).train
    params = ja.models.one_layer.init(jax.random.key(4), vocab_size=24, dim=dim, dtype=jnp.float64)
    return ja.dynamics.one_step(params, corpus, step_size=60.0), corpus


SIZES = {"vocab_size": 24, "length": 5, "sequences": 40}
DATA = {
    "no tie": ja.data.Assumption1(relevant=8, **SIZES),
    "ties": ja.data.Independent(relevant=8, **SIZES),
}


@pytest.mark.more
@pytest.mark.parametrize(("kind", "dim"), [("ties", 32), ("no tie", 16), ("ties", 16)])
def test_path_matches_the_path_with_the_full_jacobian(kind, dim, monkeypatch, cleared):
    params, corpus = made(DATA[kind], dim)
    scores = ja.theory.scores.one_layer(params, corpus)

    def follow():
        return ja.dynamics.exact_flow(scores, params.p, until_norm=1e5, points=8)

    whole = follow()
    jax.clear_caches()
    monkeypatch.setattr(stiff, "MANY_DIMS", 0)
    monkeypatch.setattr(stiff, "SIZES", (4, 8))
    monkeypatch.setattr(ties, "MAX_TIED", 12)
    parts = follow()
    assert whole.stop == parts.stop == "norm"
    np.testing.assert_array_equal(whole.selection.mask, parts.selection.mask)
    several = (np.asarray(whole.selection.counts(corpus)) > 1).any()
    assert several == (kind == "ties")
    np.testing.assert_allclose(parts.p / parts.norm[:, None], whole.p / whole.norm[:, None], atol=1e-5)
    # Where forces cancel before a tie is found, the time is noise: log t with the full Jacobian changes by
    # 0.02 there between tolerances of 1e-5 and 1e-7.
    apart = 0.03 if several else 1e-3
    np.testing.assert_allclose(parts.log_time[1:], whole.log_time[1:], rtol=1e-5, atol=apart)
    limit = ja.theory.certify_limit(scores, parts.p[-1], parts.selection)
    assert limit.holds
    assert ja.theory.one_minus_cosine(parts.p[-1], limit.direction.p) < 1e-7


@pytest.mark.more
def test_path_matches_an_independent_stiff_solver(large):
    """SciPy's Radau in plain NumPy, with positions in place of bags and plain exponentials."""
    params, corpus = made(DATA["no tie"], 32)
    E, v = np.asarray(params.E), np.asarray(params.v)
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    y = np.asarray(corpus.targets)

    def unit(_, p):
        score = np.where(mask, (E @ p)[ids], -np.inf)
        q = np.exp(score - score.max(axis=1, keepdims=True))
        q /= q.sum(axis=1, keepdims=True)
        gamma = (E @ v)[ids]
        f = (q * gamma).sum(axis=1)
        pull = (y / (1 + np.exp(y * f)))[:, None] * q * (gamma - f[:, None])
        g = np.einsum("nt,ntd->d", pull, E[ids])
        return g / np.linalg.norm(g)

    length = 40.0
    expected = solve_ivp(unit, (0, length), np.asarray(params.p), method="Radau", rtol=1e-9, atol=1e-9)
    path = ja.dynamics.exact_flow(
        ja.theory.scores.one_layer(params, corpus),
        params.p,
        until_arc_length=length,
        until_norm=np.inf,
        rtol=1e-8,
        points=8,
    )
    assert path.stop == "arc_length"
    np.testing.assert_allclose(path.p[-1], expected.y[:, -1], atol=1e-5)


@pytest.mark.slow
def test_vmapped_seeds_with_many_coordinates_match_single_seeds(large):
    """Under vmap a condition computes both branches; vmapped seeds match single ones."""
    params, corpus = made(DATA["no tie"], 32)
    scores = ja.theory.scores.one_layer(params, corpus)
    starts = jnp.stack([params.p, -params.p])
    both = ja.dynamics.exact_flow(scores, starts, until_norm=100.0, points=4, width=2)
    for seed, start in enumerate(starts):
        alone = ja.dynamics.exact_flow(scores, start, until_norm=100.0, points=4)
        np.testing.assert_allclose(both.p[seed], alone.p, rtol=1e-9, atol=1e-9)
