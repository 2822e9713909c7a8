import functools
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.shapes import corpus_of as corpus_of_size
from dynamics.shapes import padded
from invariances.problems import DIM, VOCAB
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.dynamics import Stop
from jaxattn.theory import Scores, one_minus_cosine, relaxed_max_margin, selection_from_tokens

pytestmark = pytest.mark.usefixtures("x64")
# Tests of single problems share a program with tests/invariances.
corpus_of = functools.partial(corpus_of_size, vocab_size=VOCAB)


@functools.cache
def problems(seeds=3):
    """Sample corpora and the parameters after one step, in their span; 4 of 12 tokens are relevant."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.assumption1(data_key, vocab_size=12, relevant=4, length=4, sequences=20)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=24, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=100.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(5), seeds))


def take(tree, seed):
    return jax.tree.map(lambda x: x[seed], tree)


def flow(params, corpus, **settings):
    """Compute the flow with a fixed number of points, so that the tests share compiled programs."""
    return ja.dynamics.joint_flow(params, corpus, **{"until_norm": 1e4, "points": 16} | settings)


def mirrored(c=1.0, vocab_size=VOCAB, dim=DIM):
    """Build two pairs of mirrored tokens, ±c along p; p stays in the mirror plane, v is normal to it."""
    E = padded([[1.0, c], [0, -c], [-1, c], [0, -c]], vocab_size, dim)
    p, v = padded([0.0, 0.3], dim), padded([0.5], dim)
    params = ja.models.one_layer.Params(E=jnp.asarray(E), p=jnp.asarray(p), v=jnp.asarray(v))
    return params, corpus_of([[0, 1], [2, 3]] * 3, [1, -1] * 3, vocab_size=vocab_size)


def generic():
    """Sample parameters for sequences in which tokens 0 and 1 have the class; the others occur in both."""
    rng = np.random.default_rng(0)
    E, p, v = rng.normal(size=(VOCAB, DIM)), rng.normal(size=DIM) / 4, rng.normal(size=DIM) / 4
    params = ja.models.one_layer.Params(E=jnp.asarray(E), p=jnp.asarray(p), v=jnp.asarray(v))
    sequences = [[0, 2, 3], [1, 2, 4], [0, 3, 5], [1, 3, 5], [0, 5], [1, 4, 6]]
    return params, corpus_of(sequences, [1, -1] * 3)


@pytest.mark.more
@pytest.mark.parametrize("c", [1.0, 0.004])
def test_flow_with_two_pairs_matches_the_closed_form(c):
    """p = (0, s), v = (w, 0), q = 1/(1 + e^(-2cs)): ds/dt = 2c g w q (1-q), dw/dt = g q have an invariant.

    2 w dw = (1 + e^(2cs)) ds/c, so w² - s/c - e^(2cs)/(2c²) is constant, here up to e^20000. For small c the
    pairs separate late: the neglected term of a slaved v, 1/(2c²w), is 3e-3 at w = 1e7 and 3e-4 at 1e8.
    """
    dim = 6
    # With V = d, coordinates are those of the span of the keys.
    params, corpus = mirrored(c, dim, dim)
    path = flow(params, corpus)
    assert path.stop == "norm"
    np.testing.assert_allclose(path.norm[-1], 1e4, rtol=1e-5)
    s = np.asarray(path.p[:, 1])
    np.testing.assert_allclose(path.p, s[:, None] * np.eye(dim)[1], atol=1e-9)
    np.testing.assert_allclose(path.v, np.broadcast_to(np.eye(dim)[0], (16, dim)), atol=1e-9)
    constant = 0.5**2 - 0.3 / c - np.exp(0.6 * c) / (2 * c**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        linear = np.log(np.maximum(s / c + constant, 0))
    expected = np.logaddexp(linear, 2 * c * s - np.log(2 * c**2)) / 2
    # If the linear part is still negative, the terms of the sum have both signs.
    late = s / c + constant > 0
    assert late.sum() > 8
    error = 1 / (2 * c**2 * 1e8)
    np.testing.assert_allclose(path.log_v_norm[late], expected[late], rtol=1e-7, atol=1e-4 + error)
    assert path.mismatch < max(1e-5, 1.1 * error)


def test_joint_flow_matches_plain_integration():
    """Plain integration of (dp, dv) by SciPy, within the range of float64."""
    params, corpus = generic()
    path = flow(params, corpus, until_norm=8.0)
    assert path.stop == "norm"
    size = params.E.shape[1]

    @jax.jit
    def velocity(z):
        moved = params.replace(p=z[:size], v=z[size:])
        g = jax.grad(lambda x: ja.dynamics.loss(x, corpus))(moved)
        u = -jnp.concatenate([g.p, g.v])
        return u / jnp.linalg.norm(u)

    def arrived(s, z):
        return np.linalg.norm(z[:size]) - 8.0

    arrived.terminal = True
    start = np.concatenate([params.p, params.v])
    solution = solve_ivp(
        lambda s, z: np.asarray(velocity(z)),
        (0, 1e3),
        start,
        method="LSODA",
        rtol=1e-9,
        atol=1e-9,
        events=arrived,
    )
    end = solution.y_events[0][0]
    assert np.linalg.norm(end[size:]) > 10
    np.testing.assert_allclose(path.p[-1], end[:size], atol=2e-3)
    np.testing.assert_allclose(path.log_v_norm[-1], np.log(np.linalg.norm(end[size:])), atol=1e-3)
    np.testing.assert_allclose(path.v[-1], end[size:] / np.linalg.norm(end[size:]), atol=1e-4)


@pytest.fixture
def benchmark(monkeypatch):
    """Import the benchmark that compares the flow with an ODE in NumPy, integrated by SciPy's Radau."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    return importlib.import_module("joint_flow")


def flipped(key, **sizes):
    """Sample under Assumption 1, and flip two labels."""
    corpus = ja.data.assumption1(key, **sizes)
    return corpus.replace(targets=corpus.targets.at[:2].multiply(-1))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(x, marks=pytest.mark.slow if x == "flipped" else pytest.mark.more)
        for x in ("2", "3", "assumption1", "flipped")
    ],
)
def test_joint_flow_matches_an_independent_ode(benchmark, kind):
    """With two relevant tokens, one seed has walls where v is slaved, the other one ties.

    v is slaved from log ‖v‖ ≈ 17.8.
    """
    names = {name.split()[1] if "," in name else name: draw for name, draw in benchmark.DATA.items()}
    params, corpora = benchmark.problems((names | {"flipped": flipped})[kind], 2)
    path = flow(params, corpora, until_norm=1e3, points=64, max_steps=300)
    for seed in range(2):
        rows = benchmark.apart(*take((params, corpora, path), seed), tolerance=1e-7)
        assert len(rows) > 8
        assert rows[:, 1].max() < 1e-4
        if path.stop[seed] == "norm":
            assert rows[-1, 0] > 18.8
            assert path.mismatch[seed] < 1e-3


@pytest.mark.parametrize("relevant", ["2", "3"])
@pytest.mark.parametrize(
    "seeds", [pytest.param(8, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.exhaustive)]
)
def test_each_seed_agrees_with_the_ode_until_its_reported_end(benchmark, relevant, seeds):
    name = f"multi_relevant, {relevant} relevant tokens"
    found = benchmark.measure(name, benchmark.DATA[name], seeds)
    assert found["share that agrees to 1e-4 as far as it goes"] == 1
    assert set(found["ended by"]) <= {"norm", "unsettled"}


@pytest.mark.slow
def test_independent_ode_is_insensitive_to_its_tolerance(benchmark):
    params, corpora = benchmark.problems(benchmark.DATA["assumption1"], 1)
    own, corpus = take((params, corpora), 0)
    ids, mask = ja.models.reference.padded_sequences(corpus)
    given = *map(np.asarray, (own.E, own.p, own.v)), ids, mask, np.asarray(corpus.targets)
    loose, tight = (benchmark.follow(*given, 16.5, tolerance).at(16.4) for tolerance in (1e-7, 1e-9))
    np.testing.assert_allclose(loose[0], tight[0], atol=1e-5)
    np.testing.assert_allclose(loose[1], tight[1], atol=1e-7)


@pytest.mark.more
def test_p_and_v_converge_to_their_max_margin_directions():
    params, corpora = problems()
    path = flow(params, corpora)
    apart = 0
    for seed in range(3):
        own, corpus = take((params, corpora), seed)
        chosen = selection_from_tokens(np.arange(12) < 4, corpus)
        np.testing.assert_array_equal(path.selection.mask[seed], chosen.mask)
        expected = relaxed_max_margin(Scores(own.E, corpus), chosen)
        assert expected.duality_gap < 1e-10
        away = one_minus_cosine(path.p[seed], expected.p)
        assert path.stop[seed] == "norm"
        assert away[-1] < 1e-6
        # The offset from the ray is constant.
        late = path.norm[seed] > 300
        offset = np.sqrt(2 * away[late]) * path.norm[seed][late]
        assert late.sum() >= 3
        np.testing.assert_allclose(offset[-2:], offset[-1], rtol=0.05)
        assert one_minus_cosine(path.v[seed, -1], expected.v) < 1e-13
        # margin ‖p‖ = 2 log ‖v‖ + O(1).
        assert abs(expected.query.margin * path.norm[seed, -1] - 2 * path.log_v_norm[seed, -1]) < 30
        everything = ja.theory.max_margin(ja.theory.Scores(own.E, corpus), chosen)
        apart += one_minus_cosine(path.p[seed, -1], everything.p) > 1e-3
    assert path.mismatch.max() < 1e-3
    assert apart >= 2


@pytest.mark.more
def test_log_v_grows_smoothly_with_p():
    """log ‖v‖ has the slope of the margin, which changes slowly; it is a smooth function of ‖p‖."""
    params, corpus = problems()
    path = ja.dynamics.joint_flow(params, corpus, until_norm=1e3, points=32)
    assert list(path.stop[:2]) == ["norm"] * 2
    for seed in range(2):
        norm, log_v = (np.asarray(x)[seed, 20:] for x in (path.norm, path.log_v_norm))
        slope = np.diff(log_v) / np.diff(norm)
        assert np.abs(np.diff(slope, 2)).max() < 1e-3 * slope[-1]


@pytest.mark.more
def test_vmapped_seeds_match_single_seeds():
    params, corpora = problems()
    together = flow(params, corpora)
    assert together.p.shape == together.v.shape == (3, 16, 24)
    alone = flow(*take((params, corpora), 1))
    # Where p meets a wall, the length of steps depends on rounding.
    np.testing.assert_allclose(alone.p, together.p[1], rtol=1e-5, atol=0.01)
    # log ‖v‖ is the time of a path whose forces cancel. Due to rounding it differs by up to 4e-4 for any rtol
    # from 1e-5 to 1e-8 and between compiled programs, while p agrees to 4e-6.
    np.testing.assert_allclose(alone.log_v_norm, together.log_v_norm[1], rtol=1e-3, atol=0.01)
    np.testing.assert_array_equal(alone.selection.mask, together.selection.mask[1])


@pytest.mark.more
def test_rows_have_increasing_norms_and_steps():
    params, corpus = mirrored()
    path = flow(params, corpus)
    np.testing.assert_array_equal(path.p[0], params.p)
    np.testing.assert_allclose(path.norm, jnp.linalg.norm(path.p, axis=1), rtol=1e-12)
    np.testing.assert_allclose(jnp.linalg.norm(path.v, axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(path.log_v_norm[0], np.log(0.5), rtol=1e-12)
    assert (np.diff(path.log_v_norm) > 0).all()
    assert (np.diff(path.steps) > 0).all()
    short = flow(params, corpus, max_steps=20)
    assert short.stop == "step_budget"
    assert short.accepted + short.rejected == short.steps[-1] == 20
    np.testing.assert_array_equal(short.p[8:], jnp.broadcast_to(short.p[-1], (8, DIM)))
    near = flow(params, corpus, until_norm=2.0)
    assert near.stop == "norm"
    assert np.isnan(near.mismatch)
    np.testing.assert_allclose(near.norm[-1], 2, rtol=1e-5)


@pytest.mark.more
def test_p_can_converge_to_a_mixture_while_v_grows():
    """Both labels have tokens 0 and 1, one of them 0 twenty times: v separates only mixtures.

    The margin is largest where q = x/(1 + x) and 20x/(1 + 20x) add up to 1, at x = 20^(-1/2).
    """
    params = ja.models.one_layer.Params(
        E=jnp.eye(4), p=jnp.array([0.0, 0.3, 0, 0]), v=jnp.array([0.5, 0, 0, 0])
    )
    corpus = ja.data.from_sequences([[0, 1], [0] * 20 + [1], [2], [3]], [1, -1] * 2, vocab_size=4)
    path = flow(params, corpus)
    assert path.stop == "balanced"
    assert path.log_v_norm[-1] > 10
    np.testing.assert_allclose(path.p[-1, 0] - path.p[-1, 1], -np.log(20) / 2, atol=1e-4)
    half = 1 / (1 - 2 / (1 + np.sqrt(20)))
    head = np.array([-half, half, 1, -1])
    np.testing.assert_allclose(path.v[-1], head / np.linalg.norm(head), atol=1e-4)


def test_flow_with_inseparable_labels_ends_when_its_forces_cancel():
    """v tends to 0, where the loss does not depend on p: the minimum is not strict."""
    params, _ = mirrored()
    path = flow(params, corpus_of([[0, 1]] * 2 + [[2, 3]] * 4, [1, -1] * 3))
    assert path.stop in ("unresolved", "stationary")
    assert path.norm[-1] < 100
    assert path.log_v_norm[-1] < 5


@pytest.mark.more
@pytest.mark.parametrize("name", ["p", *(pytest.param(name, marks=pytest.mark.more) for name in "Ev")])
def test_nonfinite_seed_fails_without_affecting_others(name):
    params, corpora = problems()
    healthy = flow(params, corpora)
    array = getattr(params, name)
    path = flow(params.replace(**{name: array.at[(1,) + (0,) * (array.ndim - 1)].set(jnp.nan)}), corpora)
    assert path.status.tolist() == [Stop.NORM, Stop.FAILED, Stop.NORM]
    np.testing.assert_array_equal(path.p[0], healthy.p[0])
    np.testing.assert_array_equal(path.p[2], healthy.p[2])


def test_invalid_input_is_rejected():
    params, corpus = mirrored()
    three = ja.data.from_sequences([[0, 1]], [2], vocab_size=VOCAB, num_classes=3)
    with pytest.raises(ja.InputError, match="3 classes"):
        flow(params, three)
    with pytest.raises(ja.InputError, match="do not match"):
        flow(params.replace(p=params.p[:3]), corpus)
    with pytest.raises(ja.InputError, match="until_norm: must be finite, got inf"):
        flow(params, corpus, until_norm=np.inf)
    with pytest.raises(ja.InputError, match=r"joint_flow\.points: expected 'int' >= 5, got 4"):
        flow(params, corpus, points=4)


def lost_tie(gap):
    """Add a sequence with tokens 4 and 5 of equal value under v_mm, whose scores p does not separate.

    p moves along the second axis. The keys of 4 and 5 differ along the last two axes, where p stays, so the
    gap between their scores stays what it is while ‖v‖ grows.
    """
    E = np.zeros((6, 6))
    E[:4, :2] = [[1, 1], [0, -1], [-1, 1], [0, -1]]
    E[4:, 0] = 0.5
    E[4, 2] = E[5, 3] = 1
    p, v = np.array([0, 0.3, gap, 0, 0, 0]), np.array([0.5, 0, 0, 0, 0, 0])
    params = ja.models.one_layer.Params(E=jnp.asarray(E), p=jnp.asarray(p), v=jnp.asarray(v))
    corpus = ja.data.from_sequences([[0, 1], [2, 3], [4, 5], [5]], [1, -1, 1, 1], vocab_size=6)
    return params, corpus


@pytest.mark.more
def test_path_ends_where_a_neglected_force_between_equal_values_would_matter():
    """The neglected force is e^(-gap)/r, the one that is followed r^(-2), so log r has to be below gap."""
    path = flow(*lost_tie(35.0))
    assert path.stop == "unsettled"
    assert 19 < path.log_v_norm[-1] < 35
    assert path.mismatch > 1e-3


@pytest.mark.parametrize(
    ("p", "v"),
    [
        pytest.param([0.0, 0.3, 0, 0], [0.0, 0, 0, 0], id="v = 0"),
        pytest.param([0.0, 0.0, 0, 0], [0.5, 0, 0, 0], id="p = 0"),
        pytest.param([0.0, 0.0, 0, 0], [0.0, 0, 0, 0], id="both"),
        pytest.param([0.0, 0.3, 0, 0], [0.0, 0, 0.7, 0], id="equal values in every sequence"),
    ],
)
def test_start_with_a_velocity_of_zero_reaches_the_norm(p, v):
    params, corpus = mirrored()
    path = flow(params.replace(p=jnp.asarray(padded(p, DIM)), v=jnp.asarray(padded(v, DIM))), corpus)
    assert path.stop == "norm"
    assert path.accepted < 500
    assert np.isfinite(path.v).all()
    np.testing.assert_allclose(path.p[-1] / path.norm[-1], np.eye(DIM)[1], atol=1e-3)


@pytest.mark.more
def test_single_token_sequences_leave_p_at_rest():
    params, _ = mirrored()
    path = flow(params, corpus_of([[0]] * 3 + [[2]] * 3, [1] * 3 + [-1] * 3))
    assert path.stop == "stationary"
    np.testing.assert_array_equal(path.p[-1], params.p)


@pytest.mark.parametrize("k", [-50, -7, 40])
def test_unit_of_length_changes_no_bit(k):
    (own, corpus), scale = generic(), 2.0**k
    one = flow(own, corpus)
    other = flow(
        own.replace(E=own.E * scale, p=own.p / scale, v=own.v / scale), corpus, until_norm=1e4 / scale
    )
    for name in ("p", "norm"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name) * scale)
    for name in ("v", "status", "mismatch", "steps"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.log_v_norm, other.log_v_norm + k * np.log(2), rtol=1e-13, atol=1e-12)


@pytest.mark.more
def test_unused_token_changes_only_rounding():
    params, corpus = mirrored()
    one, other = (flow(params.replace(E=params.E.at[-1].set(x)), corpus) for x in (0.0, 1e6))
    assert other.stop == one.stop
    np.testing.assert_allclose(other.p, one.p, rtol=1e-6, atol=1e-9)
