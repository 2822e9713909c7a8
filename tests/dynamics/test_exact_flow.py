import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics.direction import direction
from jaxattn.dynamics.exact_flow import Stop, _flow
from jaxattn.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")


def problem(seed, dim=64):
    """A corpus and the parameters after one step: the same for all seeds but for their values."""
    data_key, model_key = jax.random.split(jax.random.fold_in(jax.random.key(5), seed))
    corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
    params = ja.models.one_layer.init(model_key, vocab_size=12, dim=dim, dtype=jnp.float64)
    return ja.dynamics.one_step(params, corpus, step_size=100.0), corpus


def problems(seeds):
    return jax.jit(jax.vmap(problem))(jnp.arange(seeds))


def take(tree, seed):
    return jax.tree.map(lambda x: x[seed], tree)


def unit(x):
    return x / jnp.linalg.norm(x)


def flow(params, corpus, **settings):
    """Call with one number of points, so that the tests share compiled programs."""
    return ja.dynamics.exact_flow(params, corpus, **{"until_norm": 1e3, "points": 16} | settings)


def test_descent_with_small_steps_follows_the_path_on_its_clock():
    params, corpus = problem(0)
    rate, steps = 0.02, 5000

    def step(carry, _):
        p, length = carry
        g = jax.grad(lambda p: ja.dynamics.loss(params.replace(p=p), corpus))(p)
        return (p - rate * g, length + rate * jnp.linalg.norm(g)), None

    (p, length), _ = jax.jit(lambda p: jax.lax.scan(step, (p, 0.0), length=steps))(params.p)
    path = flow(params, corpus, until_arc_length=float(length))
    assert path.stop == "arc_length"
    assert path.arc_length[-1] == length
    moved = float(jnp.linalg.norm(path.p[-1] - params.p))
    assert moved > 1
    # Descent with steps of this rate is off the flow by about rate × curvature.
    assert jnp.linalg.norm(path.p[-1] - p) < 2e-3 * moved
    np.testing.assert_allclose(np.exp(path.log_time[-1]), rate * steps, rtol=2e-3)


def test_diffrax_finds_the_same_path_to_where_every_sequence_has_settled():
    diffrax = pytest.importorskip("diffrax")
    params, corpus = problem(1)
    # Diffrax gets its Jacobian by differentiating the direction, and knows no coordinates of span(E).
    basis = jnp.linalg.qr(params.E.T)[0].T
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda s, z, _: basis @ direction(params.replace(p=params.p + z @ basis), corpus)[0]),
        diffrax.Kvaerno5(),
        t0=0.0,
        t1=300.0,
        dt0=1e-3,
        y0=jnp.zeros(len(basis)),
        stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9),
        max_steps=20_000,
    )
    expected = params.p + solution.ys[-1] @ basis
    path = flow(params, corpus, until_arc_length=300.0)
    np.testing.assert_allclose(path.p[-1], expected, atol=2e-4)
    path = flow(params, corpus, until_arc_length=300.0, rtol=1e-8)
    np.testing.assert_allclose(path.p[-1], expected, atol=1e-7)


def test_normalised_descent_by_automatic_differentiation_leaves_the_limit():
    """What the exponents are for: the same limit, looked for with plain float64 gradients."""
    params, corpus = problem(0)
    path = flow(params, corpus, until_norm=1e6)
    limit = unit(path.p[-1])
    assert ja.theory.one_minus_cosine(path.p[-4], limit) < 1e-8

    def step(p, _):
        g = jax.grad(lambda p: ja.dynamics.loss(params.replace(p=p), corpus))(p)
        norm = jnp.linalg.norm(g)
        return p - 0.1 * g / jnp.where(norm > 0, norm, 1), ja.theory.one_minus_cosine(p, limit)

    _, away = jax.jit(lambda p: jax.lax.scan(step, p, length=20_000))(params.p)
    assert away.min() < 5e-3
    assert away[-1] > 50 * away.min()


def test_two_tokens_by_hand():
    """X = (0, 1), y = 1, E = ±e/2, v = e: p = s e, f = tanh(s/2)/2, -∂L/∂p = sigmoid(-f) sech²(s/2)/4 · e."""
    corpus = ja.data.from_sequences([[0, 1]], [1], vocab_size=2)
    e = jnp.array([0.6, 0.0, 0.8])
    params = ja.models.one_layer.Params(E=jnp.stack([e / 2, -e / 2]), p=jnp.zeros(3), v=e)
    path = flow(params, corpus, until_norm=50.0)
    s = np.asarray(path.arc_length)
    np.testing.assert_allclose(path.p, s[:, None] * e, atol=1e-12)
    np.testing.assert_allclose(path.norm, s, atol=1e-12)
    f = np.tanh(s / 2) / 2
    log_norm = -np.log1p(np.exp(f)) - 2 * np.log(np.cosh(s / 2)) - np.log(4)
    np.testing.assert_allclose(path.log_gradient_norm, log_norm, atol=1e-12)
    fine = np.linspace(0, s[-1], 2_000_001)
    inverse = 4 * np.cosh(fine / 2) ** 2 * (1 + np.exp(np.tanh(fine / 2) / 2))
    time = np.trapezoid(inverse, fine)
    np.testing.assert_allclose(path.log_time[-1], np.log(time), atol=1e-3)
    assert path.log_time[0] == -np.inf


def test_seeds_together_are_seeds_alone():
    params, corpora = problems(3)
    together = flow(params, corpora)
    assert together.p.shape == (3, 16, 64)
    for width in (2, 3):
        wide = flow(params, corpora, width=width)
        np.testing.assert_allclose(wide.p, together.p, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(wide.accepted, together.accepted)
    for seed in range(3):
        alone = flow(*take((params, corpora), seed))
        np.testing.assert_allclose(alone.p, together.p[seed], rtol=1e-9, atol=1e-9)
        assert alone.stop == together.stop[seed] == "norm"


def test_what_seeds_share_needs_no_seed_axis():
    params, corpora = problems(3)
    corpus, one = take(corpora, 0), take(params, 0)
    starts = one.replace(p=params.p)
    shared = flow(starts, corpus)
    for seed in range(3):
        alone = flow(one.replace(p=params.p[seed]), corpus)
        np.testing.assert_allclose(shared.p[seed], alone.p, rtol=1e-9, atol=1e-9)


def test_fewer_dimensions_than_tokens():
    """V > d carries p itself; padding E with zero columns gives the same path through E Eᵀ."""
    params, corpus = problem(0, dim=6)
    narrow = flow(params, corpus)

    def pad(x):
        return jnp.concatenate([x, jnp.zeros((*x.shape[:-1], 58))], axis=-1)

    wide = flow(jax.tree.map(pad, params), corpus)
    np.testing.assert_allclose(wide.p[:, :6], narrow.p, rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(wide.p[:, 6:], 0)


def test_what_lies_outside_the_span_of_the_embeddings_stays():
    params, corpus = problem(0)
    off = params.p - jnp.linalg.lstsq(params.E.T, params.p)[0] @ params.E
    path = flow(params, corpus)
    np.testing.assert_allclose(path.p @ unit(off), jnp.linalg.norm(off), rtol=1e-9)


def test_rows():
    params, corpus = problem(0)
    path = flow(params, corpus)
    assert path.p.shape == (16, 64)
    np.testing.assert_array_equal(path.p[0], params.p)
    np.testing.assert_allclose(path.norm, jnp.linalg.norm(path.p, axis=1), rtol=1e-12)
    between = np.log(path.arc_length[1:-1])
    np.testing.assert_allclose(np.diff(between), np.diff(between).mean(), rtol=1e-9)
    assert 1e3 <= path.norm[-1] < 1.001e3
    assert (np.diff(path.log_time) > 0).all()
    assert (np.diff(path.log_gradient_norm)[path.norm[:-1] > 10] < 0).all()
    short = flow(params, corpus, max_steps=20)
    assert short.stop == "step_budget"
    assert short.accepted + short.rejected == 20
    rows = int((np.diff(short.arc_length) > 0).sum())
    np.testing.assert_array_equal(short.p[rows:], jnp.broadcast_to(short.p[-1], (16 - rows, 64)))


def test_ends():
    params, corpus = problem(0)
    assert flow(params, corpus, max_steps=0).stop == "step_budget"
    assert flow(params, corpus, until_arc_length=0.0).stop == "arc_length"
    at_once = flow(params, corpus, until_norm=0.5)
    assert at_once.stop == "norm"
    np.testing.assert_array_equal(at_once.p, jnp.broadcast_to(params.p, (16, 64)))
    settled = flow(params, corpus, until_norm=1e6, until_direction=1e-4)
    assert settled.stop == "direction"
    limit = flow(params, corpus, until_norm=1e6).p[-1]
    assert 1e-10 < ja.theory.one_minus_cosine(settled.p[-1], limit) < 1e-7


def test_changing_ends_and_tolerances_compiles_nothing():
    params, corpus = problem(0)
    flow(params, corpus)
    programs = _flow._cache_size()
    flow(params, corpus, until_norm=10.0, until_arc_length=3.0, until_direction=1e-3, rtol=1e-3, max_steps=9)
    assert _flow._cache_size() == programs


def test_inside_jit_and_vmap():
    params, corpora = problems(3)
    outside = flow(params, corpora)
    inside = jax.jit(jax.vmap(lambda params, corpus: flow(params, corpus)))(params, corpora)
    np.testing.assert_allclose(inside.p, outside.p, rtol=1e-9, atol=1e-9)


def test_an_error_a_thousand_times_smaller_moves_the_path_by_less_than_promised():
    params, corpora = problems(3)
    path, fine = flow(params, corpora), flow(params, corpora, rtol=1e-9, max_steps=100_000)
    error = jnp.linalg.norm(path.p - fine.p, axis=2) / fine.norm
    assert error.max() < 1e-4
    assert error[:, -1].max() < 1e-5
    np.testing.assert_allclose(path.log_time[:, 1:], fine.log_time[:, 1:], atol=1e-3)


def test_labels_that_contradict_each_other_end_at_a_stationary_point():
    """Every bag under both labels: the loss is least where f = 0, which finite p reach."""
    corpus = ja.data.from_sequences([[0, 1, 2]] * 2 + [[0, 3]] * 2, [1, -1, 1, -1], vocab_size=4)
    E, p = jax.random.normal(jax.random.key(0), (4, 6)), jnp.ones(6)
    v = jnp.linalg.lstsq(E, jnp.array([1.0, -2.0, 3.0, -1.0]))[0]
    path = flow(ja.models.one_layer.Params(E=E, p=p, v=v), corpus)
    assert path.stop == "balanced"
    assert path.norm[-1] < 10
    f = ja.models.one_layer.logits(ja.models.one_layer.Params(E=E, p=path.p[-1], v=v), corpus)
    np.testing.assert_allclose(f, 0, atol=1e-8)


@pytest.mark.parametrize("name", ["E", "p", "v"])
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_seed_that_is_not_finite_fails_alone(name, value):
    params, corpora = problems(3)
    healthy = flow(params, corpora)
    array = getattr(params, name)
    path = flow(params.replace(**{name: array.at[(1,) + (0,) * (array.ndim - 1)].set(value)}), corpora)
    assert path.status.tolist() == [Stop.NORM, Stop.FAILED, Stop.NORM]
    np.testing.assert_array_equal(path.p[0], healthy.p[0])
    np.testing.assert_array_equal(path.p[2], healthy.p[2])


def test_no_gradient_at_all():
    params, corpus = problem(0)
    for E in (jnp.zeros_like(params.E), jnp.broadcast_to(params.E[0], params.E.shape)):
        path = flow(params.replace(E=E), corpus)
        # Equal embeddings may still differ in their values E·v by rounding.
        assert path.stop in ("stationary", "balanced")
        np.testing.assert_array_equal(path.p, jnp.broadcast_to(params.p, (16, 64)))


def test_bad_input():
    params, corpus = problem(0)
    three = ja.data.from_sequences([[0, 1]], [2], vocab_size=12, num_classes=3)
    with pytest.raises(InputError, match="3 classes"):
        flow(params, three)
    with pytest.raises(InputError, match="do not fit"):
        flow(params.replace(p=params.p[:3]), corpus)
    with pytest.raises(InputError, match="both infinite"):
        flow(params, corpus, until_norm=np.inf)
    with pytest.raises(InputError, match="points: 2"):
        flow(params, corpus, points=2)
    with pytest.raises(InputError, match="rtol"):
        flow(params, corpus, rtol=0.0)
    two, three = problems(2)[0], problems(3)[1]
    with pytest.raises(InputError, match="leading axes"):
        flow(two, three)
