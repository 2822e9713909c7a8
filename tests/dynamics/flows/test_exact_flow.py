import functools
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.shapes import DIM, POINTS, VOCAB, corpus_of, padded
from invariances.problems import LENGTH, SEQUENCES, Problem, stacked
from scipy.integrate import cumulative_trapezoid, quad, solve_ivp
from scipy.optimize import brentq
from scipy.special import expit, softmax

import jaxattn as ja
from jaxattn.dynamics import Stop
from jaxattn.dynamics.flows.arc_length import _REASONS
from jaxattn.dynamics.flows.force import direction
from jaxattn.dynamics.flows.stages import extend

pytestmark = pytest.mark.usefixtures("x64")


@functools.cache
def problems(seeds=3):
    """Sample corpora of equal sizes and parameters after one step, with a leading axis of seeds."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=64, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=100.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(5), seeds))


SEEDS = 6


@functools.cache
def several():
    """Sample six small problems in which token 0 or 1 has the class, with a leading axis of seeds."""
    rng = np.random.default_rng(0)
    classes, ids = np.arange(SEQUENCES) % 2, rng.integers(2, VOCAB, (SEEDS, SEQUENCES, LENGTH))
    ids[:, :, 0] = classes
    E, p, v = (rng.normal(size=(SEEDS, *shape)) for shape in ((VOCAB, DIM), (DIM,), (DIM,)))
    corpora = stacked([Problem(E[k], p[k], v[k], E[k] @ v[k], ids[k], classes) for k in range(SEEDS)])
    return ja.models.one_layer.Params(*map(jax.device_put, (E, p, v))), corpora


def flows(params, corpora, **settings):
    """Compute the flows of six seeds."""
    return flow(params, corpora, **settings)


def problem(seed):
    return take(problems(), seed)


def take(tree, seed):
    return jax.tree.map(lambda x: x[seed], tree)


def unit(x):
    return x / jnp.linalg.norm(x)


def params_of(E, p, v):
    """Append tokens that never occur, so that the tests share compiled programs."""
    return ja.models.one_layer.Params(
        E=jnp.asarray(padded(E, VOCAB, DIM)), p=jnp.asarray(p), v=jnp.asarray(v)
    )


def flow(params, corpus, **settings):
    """Compute the flow with a fixed number of points, so that the tests share compiled programs."""
    settings = {"until_norm": 1e3, "points": POINTS} | settings
    return ja.dynamics.exact_flow(ja.theory.scores.one_layer(params, corpus), params.p, **settings)


@pytest.mark.more
def test_small_descent_steps_reproduce_the_path_and_its_time():
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
    # The distance of descent from the flow is about rate × curvature.
    assert jnp.linalg.norm(path.p[-1] - p) < 2e-3 * moved
    np.testing.assert_allclose(np.exp(path.log_time[-1]), rate * steps, rtol=2e-3)


@pytest.mark.slow
def test_path_matches_diffrax():
    diffrax = pytest.importorskip("diffrax")
    params, corpus = problem(1)
    # Diffrax computes the Jacobian by autodiff of the direction, without coordinates of span(E).
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
        saveat=diffrax.SaveAt(ts=np.linspace(0, 300, 6001)),
    )
    points = params.p + solution.ys @ basis
    path = flow(params, corpus, until_arc_length=300.0)
    np.testing.assert_allclose(path.p[-1], points[-1], atol=2e-4)
    fine = flow(params, corpus, until_arc_length=300.0, rtol=1e-8)
    np.testing.assert_allclose(fine.p[-1], points[-1], atol=1e-7)
    # Flow time is the integral of 1 / ‖∂L/∂p‖ over the arc length, here by the trapezoidal rule.
    inverse = -jax.jit(jax.vmap(lambda p: direction(params.replace(p=p), corpus)[1]))(points)
    log_time = jax.nn.logsumexp(jnp.logaddexp(inverse[1:], inverse[:-1])) + np.log(0.05 / 2)
    np.testing.assert_allclose(path.log_time[-1], log_time, atol=1e-3)
    np.testing.assert_allclose(path.log_gradient_norm[-1], -inverse[-1], rtol=1e-5)


@pytest.mark.more
def test_descent_with_plain_float64_gradients_misses_the_limit():
    """Normalised descent with plain float64 gradients does not reach the limit that the flow reaches."""
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


@pytest.mark.more
def test_every_seed_converges_to_its_certified_max_margin_direction():
    params, corpora = problems()
    path = flow(params, corpora, until_norm=1e6)
    chosen = jax.vmap(ja.theory.selection)(path.p[:, -1], ja.theory.Scores(params.E, corpora))
    for seed in range(3):
        mm = ja.theory.max_margin(*take((ja.theory.Scores(params.E, corpora), chosen), seed))
        assert mm.feasible
        assert mm.duality_gap < 1e-10
        distance = ja.theory.one_minus_cosine(path.p[seed], mm.p)
        assert distance[-1] < 1e-9
        late = path.norm[seed] > 1e3
        assert late.sum() >= 5
        slope, _ = np.polyfit(np.log(path.norm[seed][late]), np.log(distance[late]), 1)
        assert abs(slope + 2) < 0.1


def test_flow_with_two_tokens_matches_the_closed_form():
    """X = (0, 1), y = 1, E = ±e/2, v = e: p = s e, f = tanh(s/2)/2.

    -∂L/∂p = sigmoid(-f) sech²(s/2)/4 · e.
    """
    corpus = corpus_of([[0, 1]] * 6, [1] * 6)
    e = jnp.array([0.6, 0.0, 0.8, 0.0, 0.0, 0.0])
    params = params_of(jnp.stack([e / 2, -e / 2]), 0 * e, e)
    path = flow(params, corpus, until_norm=50.0)
    s = np.asarray(path.arc_length)
    np.testing.assert_allclose(path.p, s[:, None] * e, atol=1e-12)
    np.testing.assert_allclose(path.norm, s, atol=1e-12)
    f = np.tanh(s / 2) / 2
    log_norm = -np.log1p(np.exp(f)) - 2 * np.log(np.cosh(s / 2)) - np.log(4)
    np.testing.assert_allclose(path.log_gradient_norm, log_norm, atol=1e-12)
    fine = np.linspace(0, s[-1], 2_000_001)
    inverse = 4 * np.cosh(fine / 2) ** 2 * (1 + np.exp(np.tanh(fine / 2) / 2))
    time = np.interp(s, fine, cumulative_trapezoid(inverse, fine, initial=0))
    np.testing.assert_allclose(np.exp(path.log_time), time, rtol=1e-3)


@pytest.mark.more
def test_vmapped_seeds_match_single_seeds():
    params, corpora = problems()
    together = flow(params, corpora)
    assert together.p.shape == (3, POINTS, 64)
    for seed in range(3):
        alone = flow(*take((params, corpora), seed))
        np.testing.assert_allclose(alone.p, together.p[seed], rtol=1e-9, atol=1e-9)
        assert alone.accepted == together.accepted[seed]
        assert alone.stop == together.stop[seed] == "norm"


@pytest.mark.more
def test_seeds_can_share_a_corpus_and_differ_in_their_initial_p():
    """Three seeds are integrated in chunks of two."""
    params, _ = problems()
    one, corpus = problem(0)
    shared = flow(one.replace(p=params.p), corpus, width=2)
    for seed in range(3):
        alone = flow(one.replace(p=params.p[seed]), corpus)
        np.testing.assert_allclose(shared.p[seed], alone.p, rtol=1e-9, atol=1e-9)
        assert shared.accepted[seed] == alone.accepted


@pytest.mark.more
def test_zero_columns_do_not_change_the_path():
    """For V > d the coordinates are p itself; padding E with zero columns gives the same path."""
    params, corpus = problem(0)
    params = jax.tree.map(lambda x: x[..., :6], params)
    narrow = flow(params, corpus)
    assert narrow.stop == "norm"

    def pad(x):
        return jnp.concatenate([x, jnp.zeros((*x.shape[:-1], 58))], axis=-1)

    wide = flow(jax.tree.map(pad, params), corpus)
    np.testing.assert_allclose(wide.p[:, :6], narrow.p, rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(wide.p[:, 6:], 0)


@pytest.mark.more
def test_component_outside_the_span_is_constant():
    params, corpus = problem(0)
    off = params.p - jnp.linalg.lstsq(params.E.T, params.p)[0] @ params.E
    path = flow(params, corpus)
    np.testing.assert_allclose(path.p @ unit(off), jnp.linalg.norm(off), rtol=1e-9)


def test_path_from_zero_starts_along_the_gradient():
    params, corpora = several()
    params = params.replace(p=jnp.zeros((SEEDS, DIM)))
    paths = flows(params, corpora)
    assert (paths.stop == "norm").all()
    assert np.isfinite(paths.p).all()
    assert (paths.norm[:, 0] == 0).all()
    ends = flows(params, corpora, until_arc_length=1e-3).p[:, -1]
    gradient = jax.jit(jax.vmap(jax.grad(lambda p, own, corpus: ja.dynamics.loss(own.replace(p=p), corpus))))
    start = np.array(gradient(params.p, params, corpora))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    np.testing.assert_allclose(ends / 1e-3, -start, atol=0.01)


def test_repeated_and_single_token_sequences_do_not_change_the_path():
    E, p, v = (jax.random.normal(jax.random.key(k), size) for k, size in enumerate([(4, 6), (6,), (6,)]))
    params = params_of(E, p, v)
    twice, with_one_token = (
        flow(params, corpus_of([[0, 1, 1], [0, 2], *more], [1, -1, 1, -1]))
        for more in ([[0, 1, 1], [0, 2]], [[0], [0, 0]])
    )
    assert twice.stop == "norm"
    np.testing.assert_allclose(with_one_token.p, twice.p, rtol=1e-9, atol=1e-9)
    # The mean is over six sequences, of which four and two exert a force.
    shift = with_one_token.log_gradient_norm - twice.log_gradient_norm
    np.testing.assert_allclose(shift, -np.log(2), rtol=1e-9)
    np.testing.assert_allclose(with_one_token.log_time[1:] - twice.log_time[1:], np.log(2), rtol=1e-9)


@pytest.mark.parametrize(
    "length", [pytest.param(1.0, marks=pytest.mark.more), 1e6, pytest.param(1e12, marks=pytest.mark.more)]
)
@pytest.mark.parametrize("sequences", [[[0, 1, 2], [1, 2, 2], [0, 2, 1]], [[0, 1, 2], [1, 2, 2], [3]]])
def test_token_that_meets_no_other_token_does_not_change_the_path(sequences, length, rng):
    """A token that does not occur, or only alone, exerts no force, however long its key is."""
    keys, values = rng.normal(size=(4, 3)), padded([1, -0.5, 0.3], VOCAB)
    corpus, p = corpus_of(sequences, [1, -1, 1]), padded(0.1 * rng.normal(size=3), DIM)
    paths = []
    for size in (0.0, length):
        keys[3] = size
        scores = ja.theory.Scores(padded(keys, VOCAB, DIM), corpus, values)
        paths.append(ja.dynamics.exact_flow(scores, p, until_norm=1e3, points=POINTS))
    assert paths[0].stop == paths[1].stop == "norm"
    np.testing.assert_array_equal(paths[0].p - paths[1].p, 0)


def test_float32_session_computes_the_float64_path():
    params, corpus = several()
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    expected = flows(jax.tree.map(lambda x: x.astype(jnp.float64), single), corpus)
    with jax.enable_x64(False):
        path = flows(single, corpus)
        # Arrays of JAX would be rounded here, with a warning.
        length = np.linalg.norm(path.p[0, -1])
    assert length == np.linalg.norm(expected.p[0, -1])
    assert {type(x) for x in jax.tree.leaves(path)} == {np.ndarray}
    assert path.p.dtype == np.float64
    np.testing.assert_array_equal(path.p, expected.p)
    np.testing.assert_array_equal(path.log_time, expected.log_time)


def test_rows_are_at_log_spaced_arc_lengths():
    params, corpora = several()
    paths, shorter = flows(params, corpora), flows(params, corpora, max_steps=20)
    assert paths.p.shape == (SEEDS, POINTS, DIM)
    np.testing.assert_array_equal(paths.p[:, 0], params.p)
    np.testing.assert_allclose(paths.norm, jnp.linalg.norm(paths.p, axis=2), rtol=1e-12)
    for seed in range(SEEDS):
        path, short = take(paths, seed), take(shorter, seed)
        between = np.log(path.arc_length[1:-1])
        np.testing.assert_allclose(np.diff(between), np.diff(between).mean(), rtol=1e-9)
        assert 1e3 <= path.norm[-1] < 1.001e3
        assert (np.diff(path.log_time) > 0).all()
        assert (np.diff(path.log_gradient_norm)[path.norm[:-1] > 10] < 0).all()
        assert short.stop == "step_budget"
        assert short.accepted + short.rejected == 20
        rows = int((np.diff(short.arc_length) > 0).sum())
        np.testing.assert_array_equal(short.p[rows:], jnp.broadcast_to(short.p[-1], (POINTS - rows, DIM)))


def test_path_ends_at_its_stopping_condition():
    params, corpora = several()
    assert (flows(params, corpora, max_steps=1).stop == "step_budget").all()
    assert (flows(params, corpora, until_arc_length=1e-12).stop == "arc_length").all()
    at_once = flows(params, corpora, until_norm=0.5)
    assert (at_once.stop == "norm").all()
    np.testing.assert_array_equal(at_once.p, jnp.broadcast_to(params.p[:, None], (SEEDS, POINTS, DIM)))
    settled = flows(params, corpora, until_norm=1e6, until_direction=1e-4)
    assert (settled.stop == "direction").all()
    limit = flows(params, corpora, until_norm=1e6)
    away = np.asarray(ja.theory.one_minus_cosine(settled.p[:, -1], limit.p[:, -1]))
    assert ((away > 1e-10) & (away < 1e-7)).all()


def test_changing_stopping_conditions_tolerances_or_the_number_of_seeds_does_not_recompile():
    params, corpus = several()
    flows(params, corpus)
    programs = extend.fun._cache_size()
    flows(params, corpus, until_norm=10.0, until_arc_length=3.0, until_direction=1e-3, rtol=1e-3, max_steps=9)
    flows(jax.tree.map(lambda x: x[:4], params), jax.tree.map(lambda x: x[:4], corpus))
    flow(*take((params, corpus), 0))
    assert extend.fun._cache_size() == programs


@pytest.mark.more
def test_flow_works_inside_jit_and_vmap():
    params, corpora = problems()
    outside = flow(params, corpora)
    inside = jax.jit(jax.vmap(lambda params, corpus: flow(params, corpus)))(params, corpora)
    np.testing.assert_allclose(inside.p, outside.p, rtol=1e-9, atol=1e-9)


@pytest.mark.more
def test_flow_works_inside_jit_and_two_vmaps_in_float32():
    params, corpus = jax.tree.map(lambda x: x.astype(jnp.float32), take(problems(), 0)[0]), problem(0)[1]
    lengths = jnp.arange(1.0, 5.0, dtype=jnp.float32).reshape(2, 2)

    def query(length):
        return flow(params.replace(v=length * params.v), corpus).p[-1]

    with jax.enable_x64(False):
        inside = jax.jit(jax.vmap(jax.vmap(query)))(lengths)
        outside = query(lengths[1, 0])
    assert inside.dtype == outside.dtype == np.float64
    # A path in float32 would have an error of 1e-4 of its length.
    np.testing.assert_allclose(inside[1, 0], outside, rtol=1e-9, atol=1e-7)


def test_differentiation_raises_an_error():
    params = params_of(np.eye(6), np.zeros(6), np.arange(6.0))
    corpus = corpus_of([[0, 1]] * 6, [1] * 6)

    def length(p):
        return flow(params.replace(p=p), corpus).arc_length[-1]

    for differentiate in (jax.grad(length), lambda p: jax.jvp(length, (p,), (p,))):
        with pytest.raises(ja.InputError, match=r"not differentiable: .*stop_gradient"):
            differentiate(params.p)
    assert length(jax.lax.stop_gradient(params.p)) > 0


@pytest.mark.more
def test_error_is_within_rtol():
    params, corpora = problems()
    path, fine = flow(params, corpora), flow(params, corpora, rtol=1e-9, max_steps=100_000)
    error = jnp.linalg.norm(path.p - fine.p, axis=2) / fine.norm
    assert error.max() < 1e-4
    assert error[:, -1].max() < 1e-5
    np.testing.assert_allclose(path.log_time[:, 1:], fine.log_time[:, 1:], atol=1e-3)


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_rejected_steps_resolve_sharp_bends(seed):
    """With long embeddings the path turns abruptly where another sequence begins to dominate."""
    corpus = corpus_of([[0, 1], [0, 2], [0, 3], [0, 1]], [1, -1, 1, 1])
    E, p, v = map(jax.random.normal, jax.random.split(jax.random.key(seed), 3), [(4, 6), (6,), (6,)])
    params = params_of(30 * E, p, unit(v))
    fine, path, coarse = (
        flow(params, corpus, until_norm=1e6, rtol=rtol, max_steps=100_000) for rtol in (1e-9, 1e-5, 1e-2)
    )
    assert path.rejected > 10
    assert path.stop == fine.stop == "norm"
    error = jnp.linalg.norm(path.p - fine.p, axis=1) / fine.norm
    assert error.max() < 1e-4
    # log t ends at 3e7, in proportion to the margin along the path; each step has an error of 1e-5.
    np.testing.assert_allclose(path.log_time[1:], fine.log_time[1:], rtol=1e-6, atol=5e-3)
    # The log of the gradient norm is accurate to a few hundredths for any error tolerance on p.
    np.testing.assert_allclose(coarse.log_gradient_norm[:-1], fine.log_gradient_norm[:-1], atol=0.03)
    # Without that tolerance the path takes fewer steps, and is the same up to its error.
    free = flow(params, corpus, until_norm=1e6, gradient_rtol=np.inf, max_steps=100_000)
    assert free.stop == "norm"
    assert free.accepted + free.rejected < path.accepted + path.rejected
    assert (jnp.linalg.norm(free.p - fine.p, axis=1) / fine.norm).max() < 1e-4


def test_contradictory_labels_lead_to_a_stationary_point():
    """Every bag has both labels: the loss is smallest where f = 0, at a finite p."""
    corpus = corpus_of([[0, 1], [0, 1], [0, 3], [0, 3]], [1, -1, 1, -1])
    E, p = jax.random.normal(jax.random.key(0), (4, 6)), jnp.ones(6)
    v = jnp.linalg.lstsq(E, jnp.array([1.0, -2.0, 3.0, -1.0]))[0]
    params = params_of(E, p, v)
    path = flow(params, corpus)
    assert path.stop == "balanced"
    assert path.reason.startswith("balanced: the forces cancel at a strict minimum")
    assert path.norm[-1] < 10
    f = ja.models.one_layer.outputs(params.replace(p=path.p[-1]), corpus)
    np.testing.assert_allclose(f[:4], 0, atol=1e-8)


@pytest.mark.parametrize("name", ["E", "p", "v"])
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_nonfinite_seed_fails_without_affecting_others(name, value):
    params, corpora = several()
    healthy = flows(params, corpora)
    array = getattr(params, name)
    path = flows(params.replace(**{name: array.at[(1,) + (0,) * (array.ndim - 1)].set(value)}), corpora)
    assert path.status.tolist() == [Stop.NORM, Stop.FAILED, *[Stop.NORM] * 4]
    assert [reason.partition(":")[0] for reason in path.reason] == path.stop.tolist()
    np.testing.assert_array_equal(np.delete(path.p, 1, axis=0), np.delete(healthy.p, 1, axis=0))


def test_every_status_has_a_reason():
    assert [reason.partition(": ")[0] for reason in _REASONS.values()] == [x.name.lower() for x in Stop]


def test_path_with_zero_gradient_stays_at_its_start():
    params, corpus = several()
    nothing, same = jnp.zeros_like(params.E), jnp.broadcast_to(params.E[:, :1], params.E.shape)
    # Equal embeddings may still differ in their values E·v by rounding.
    for E, stops in ((nothing, ["stationary"]), (same, ["stationary", "balanced"])):
        paths = flows(params.replace(E=E), corpus)
        assert np.isin(paths.stop, stops).all()
        np.testing.assert_array_equal(paths.p, jnp.broadcast_to(params.p[:, None], (SEEDS, POINTS, DIM)))


def test_invalid_input_is_rejected():
    params, corpus = take(several(), 0)
    three = ja.data.from_sequences([[0, 1]], [2], vocab_size=VOCAB, num_classes=3)
    with pytest.raises(ja.InputError, match="3 classes"):
        flow(params, three)
    with pytest.raises(ja.InputError, match="do not match"):
        flow(params.replace(p=params.p[:3]), corpus)
    with pytest.raises(ja.InputError, match="both infinite"):
        flow(params, corpus, until_norm=np.inf)
    with pytest.raises(ja.InputError, match=r"exact_flow\.points: expected 'int' >= 3, got 2"):
        flow(params, corpus, points=2)
    with pytest.raises(ja.InputError, match="rtol"):
        flow(params, corpus, rtol=0.0)
    with pytest.raises(ja.InputError, match="gradient_rtol: must be positive, got nan"):
        flow(params, corpus, gradient_rtol=np.nan)
    for wrong in ({"E": params.E[:, 0]}, {"p": params.p[0]}, {"v": params.v[None, None]}):
        with pytest.raises(ja.InputError, match="do not match"):
            flow(params.replace(**wrong), corpus)
    for name, end in (("until_norm", -1.0), ("until_norm", np.nan), ("until_arc_length", -0.1)):
        with pytest.raises(ja.InputError, match=rf"exact_flow\.{name}: expected 'float' > 0.0, got"):
            flow(params, corpus, **{"until_norm": 1.0, "until_arc_length": 1.0, name: end})
    for name, message in (
        ("max_steps", "expected 'int' >= 1, got 0"),
        ("width", "must be at least 1, got 0"),
    ):
        with pytest.raises(ja.InputError, match=f"{name}: {message}"):
            flow(params, corpus, **{name: 0})
    params, corpora = several()
    with pytest.raises(ja.InputError, match="the numbers of seeds"):
        flow(jax.tree.map(lambda x: x[:2], params), corpora)
    with pytest.raises(ja.InputError, match="has length 0"):
        flow(jax.tree.map(lambda x: x[:0], params), jax.tree.map(lambda x: x[:0], corpora))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.more
def test_unit_of_length_changes_no_bit(classes):
    """Keys E 2^k and p 2^-k have the same scores, so the path is the same; two keys are nearly equal."""
    rng = np.random.default_rng(3)
    E, p, values = (rng.normal(size=size) for size in ((7, 5), 5, (7, 3)[: classes - 1]))
    E[1] = E[0] * (1 + 1e-15)
    sequences, labels = rng.integers(0, 7, (6, 3)).tolist(), [[1, -1] * 3, [0, 1, 2] * 2][classes - 2]
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=7, num_classes=classes)

    def path(scale):
        scores = ja.theory.Scores(keys=E * scale, corpus=corpus, values=values)
        return ja.dynamics.exact_flow(scores, p / scale, until_norm=1e4 / scale, points=8)

    one = path(1.0)
    for k in (-200, -7, 3, 50):
        other = path(2.0**k)
        for name in ("p", "norm", "arc_length"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name) * 2.0**k)
        for name in ("status", "steps", "accepted"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        shift = k * np.log(2)
        np.testing.assert_allclose(one.log_gradient_norm + shift, other.log_gradient_norm, rtol=1e-12)
        np.testing.assert_allclose(one.log_time[1:] - 2 * shift, other.log_time[1:], rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("shortfall", [1e-3, 1e-10])
@pytest.mark.more
def test_nearly_cancelling_forces_hold_p_at_the_closed_form(shortfall):
    """Two equal bags of opposite labels, whose values differ by a small fraction, pull p to a finite point.

    With attention q to the lower token, the forces balance where γ σ(-γ q) = γ' σ(γ' q), at q ≈ 4 (1 - γ'/γ).
    For a small difference, the forces at larger q cancel up to it, and only those of second order remain.
    """
    high, low = 0.5, 0.5 * (1 - shortfall)
    corpus = ja.data.from_sequences([[0, 1], [0, 2]], [1, -1], vocab_size=3)
    scores = ja.theory.Scores(
        keys=np.array([[0.0], [-1], [-1]]), corpus=corpus, values=np.array([0, high, low])
    )
    path = ja.dynamics.exact_flow(scores, np.array([0.5]), until_norm=1e4, points=8)
    q = brentq(lambda q: high * expit(-high * q) - low * expit(low * q), 0, 1, xtol=1e-300, rtol=1e-12)
    assert path.stop in ("balanced", "unresolved")
    np.testing.assert_allclose(path.p[-1, 0], np.log((1 - q) / q), rtol=0.01)


def sample(seed, dim, classes=2):
    """Sample keys and values of six tokens, sequences, labels and a start in `dim` dimensions."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 6, size=rng.integers(2, 5)).tolist() for _ in range(6)]
    labels = rng.choice([-1, 1], size=6) if classes == 2 else rng.integers(0, classes, size=6)
    keys = rng.normal(size=(6, dim)) * rng.choice([1, 3, 10])
    values = rng.normal(size=(6, classes) if classes > 2 else 6) * rng.choice([1, 5])
    return keys, values, sequences, labels.tolist(), rng.normal(size=dim)


def force(keys, values, sequences, labels, p):
    """Compute -∂L/∂p sequence by sequence, by the formula in the docstring of `exact_flow`."""
    total = 0 * p
    for tokens, label in zip(sequences, labels, strict=True):
        q = softmax(keys[tokens] @ p)
        f = q @ values[tokens]
        if values.ndim > 1:
            pull = (values[tokens] - f) @ ((np.arange(len(f)) == label) - softmax(f))
        else:
            pull = label * expit(-label * f) * (values[tokens] - f)
        total = total + (q * pull) @ keys[tokens]
    return total / len(labels)


def follow(keys, values, sequences, labels, start, until_norm):
    corpus = corpus_of(sequences, labels, num_classes=2 if values.ndim == 1 else values.shape[1])
    scores = ja.theory.Scores(padded(keys, VOCAB, DIM), corpus, padded(values, VOCAB, *values.shape[1:]))
    return ja.dynamics.exact_flow(scores, padded(start, DIM), until_norm=until_norm, points=POINTS)


@pytest.mark.parametrize("seed", [17, 31, 40, 46, 50])
def test_time_of_a_straight_path_matches_a_quadrature(seed):
    """No error of the path limits the steps, but the speed changes by orders of magnitude."""
    keys, values, sequences, labels, start = sample(seed, 1)
    line = np.array([[0.6, 0.0, 0.8, 0.0, 0.0, 0.0]])
    path = follow(keys @ line, values, sequences, labels, start @ line, 20.0)
    sign = np.sign((path.p[-1] - path.p[0]) @ line[0])

    def slowness(s):
        return 1 / np.linalg.norm(force(keys, values, sequences, labels, start + s * sign))

    known = (np.diff(path.arc_length) > 0) & (path.log_gradient_norm[1:] > -12)
    assert known.sum() > 5
    ends = path.arc_length[: known.sum() + 1]
    parts = [quad(slowness, *each, epsabs=0, epsrel=1e-9, limit=500)[0] for each in pairwise(ends)]
    np.testing.assert_allclose(path.log_time[1 : len(ends)], np.log(np.cumsum(parts)), atol=1e-3)


@pytest.mark.parametrize(
    ("seed", "dim", "classes"),
    [
        (0, 2, 2),
        (1, 3, 2),
        *(pytest.param(*each, marks=pytest.mark.more) for each in ((6, 2, 3), (7, 3, 3), (11, 3, 3))),
    ],
)
def test_time_of_a_curved_path_matches_an_ode_solver(seed, dim, classes):
    """An ODE solver in log t reaches the same arc length at the recorded time."""
    *problem, start = sample(seed, dim, classes)
    path = follow(*problem, start, 30.0)
    rows = np.flatnonzero((np.diff(path.arc_length, prepend=0) > 0) & (path.log_gradient_norm > -16))
    assert len(rows) > 10

    def velocity(log_t, z):
        f = force(*problem, z[:-1])
        return np.exp(log_t) * np.append(f, np.linalg.norm(f))

    initial = np.append(start, 0) + velocity(np.log(1e-9), np.append(start, 0))
    log_time = path.log_time[rows]
    found = solve_ivp(
        velocity, (np.log(1e-9), log_time[-1]), initial, "LSODA", log_time, rtol=1e-10, atol=1e-12
    )
    rate = np.array([velocity(*at)[-1] for at in zip(found.t, found.y.T, strict=True)])
    np.testing.assert_allclose((found.y[-1] - path.arc_length[rows]) / rate, 0, atol=1e-3)
