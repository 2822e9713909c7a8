"""The limit of p and v together, compared with Clarabel, loops and closed forms."""

import itertools
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.theory import Scores, one_minus_cosine

PATHS = ImportPaths(Path(__file__).parents[2] / "sweeps" / "findings" / "which_mixture")
certify_joint_limit = PATHS.load("joint_limit.py:certify_joint_limit")
two_sided = PATHS.load("two_sided.py:two_sided")

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("seed", range(8))
def test_two_sided_matches_clarabel(shortest, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, 6)) + 0.8 * np.eye(6)[0]
    required = rng.choice([1.0, 0.5, 0.0, -0.5], 12)
    found, expected = two_sided(rows, required), shortest(rows, required)
    assert found.feasible == (expected is not None)
    if found.feasible:
        np.testing.assert_allclose(found.p, expected, atol=1e-6)
        assert found.gap < 1e-10
        assert (rows @ found.p >= required - 1e-9).all()
        assert (found.multipliers >= 0).all()


def test_two_sided_handles_empty_and_infeasible_constraints():
    rows = np.array([[1.0, 0], [-1, 0]])
    assert (two_sided(rows, np.array([-0.5, 0])).p == 0).all()
    assert not two_sided(rows, np.array([0.5, 0.5])).feasible


@pytest.fixture(scope="module")
def problems():
    """Two seeds with two relevant tokens per sequence, up to large ‖v‖; one has tied pairs."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        draw_corpus = partial(ja.data.multi_relevant, relevant_per_sequence=2)
        corpus = draw_corpus(data_key, vocab_size=16, relevant=8, length=6, sequences=40)
        params = ja.models.one_layer.init(model_key, vocab_size=16, dim=32, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=60.0), corpus

    with jax.enable_x64(True):
        params, corpora = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 64))
        params, corpora = jax.tree.map(lambda x: x[:2], (params, corpora))
        path = jax.device_get(ja.dynamics.joint_flow(params, corpora, until_norm=1e3))
    return [
        jax.tree.map(lambda x, seed=seed: np.asarray(x[seed]), (params, corpora, path)) for seed in range(2)
    ]


def by_loop(shortest, E, p, corpus, heavy, v, light_of_points):
    """List all requirements, token by token."""
    ids, mask = (np.asarray(x) for x in ja.models.reference.padded_sequences(corpus))
    a, rows, required = E @ p, [], []
    for X, y in enumerate(np.asarray(corpus.targets)):
        tokens = sorted(set(ids[X][mask[X]]), key=lambda s: -a[s])
        excess = {s: y * E[s] @ v - 1 for s in tokens}
        over = [s for s in tokens if excess[s] > 1e-7]
        top = tokens[0] if heavy[X] else over[0]
        for s in tokens:
            if s == top or s in over:
                continue
            tied = abs(excess[s]) < 1e-7
            if heavy[X]:
                least = 1.0 if not tied else 0.5 if light_of_points[s] > light_of_points[top] else None
            else:
                least = -0.5 if tied else 0.0
            if least is not None:
                rows.append(E[top] - E[s])
                required.append(least)
    return shortest(rows, required)


@pytest.mark.more
@pytest.mark.parametrize("seed", [0, 1])
def test_limits_of_p_and_v_match_an_independent_solver(problems, shortest, seed):
    """A sequence is heavy if its weight is above e^-9 of the largest; sequences share the λ of a token."""
    params, corpus, path = problems[seed]
    E, p = params.E, path.p[-1]
    v = path.v[-1] * np.exp(path.log_v_norm[-1])
    found = certify_joint_limit(Scores(E, corpus), p, v)
    assert found.holds
    assert "certified" in repr(found)
    ids, mask = (np.asarray(x) for x in ja.models.reference.padded_sequences(corpus))
    scores = np.where(mask, (E @ p)[ids], -np.inf)
    q = np.exp(scores - scores.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    agreement = corpus.targets * (q * np.where(mask, (E @ v)[ids], 0)).sum(axis=1)
    weight = np.exp(agreement.min() - agreement)
    np.testing.assert_array_equal(found.heavy, weight > np.exp(-9))
    # Weights of the path agree with the limit up to 1/r and the remaining weight of tied tokens.
    ratio = found.weight[found.heavy] / weight[found.heavy]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    top = ids[np.arange(len(ids)), scores.argmax(axis=1)]
    head = shortest(
        [y * E[s] for s, y in zip(top[found.heavy], corpus.targets[found.heavy], strict=True)],
        np.ones(found.heavy.sum()),
    )
    np.testing.assert_allclose(found.v, head, atol=1e-6)
    np.testing.assert_allclose(found.weight * corpus.targets @ E[top], head, atol=1e-6)
    shared = dict(zip(top[found.heavy], found.weight[found.heavy], strict=True))
    expected = by_loop(shortest, E, p, corpus, found.heavy, head, shared)
    assert one_minus_cosine(found.p, expected) < 1e-9
    np.testing.assert_allclose(np.linalg.norm(found.p), np.linalg.norm(expected), rtol=1e-6)


def test_mixture_matches_the_closed_form():
    """Token 0 occurs 20 times under the other label, so the margin is largest at a_0 - a_1 = -½ log 20."""
    corpus = ja.data.from_sequences([[0, 1], [0] * 20 + [1], [2], [3]], [1, -1, 1, -1], vocab_size=4)
    half = 1 / (1 - 2 / (1 + np.sqrt(20)))
    head = np.array([-half, half, 1, -1])
    p = np.array([-np.log(20) / 4, np.log(20) / 4, 0.3, 0]) + 1e-10
    found = certify_joint_limit(Scores(np.eye(4), corpus), p, 1e8 * head)
    assert found.holds
    assert found.finite == 1
    assert found.heavy.all()
    np.testing.assert_allclose(found.v, head, atol=1e-10)
    assert (found.p == 0).all()
    assert found.gradient < 1e-10
    assert 0.01 < found.curvature <= 1
    away = certify_joint_limit(Scores(np.eye(4), corpus), p + 0.1 * np.eye(4)[0], 1e8 * head)
    assert not away.holds


@pytest.mark.parametrize("power", [-60, -30, -1, 3, 60])
def test_limit_is_bitwise_the_same_in_units_that_differ_by_a_power_of_two(power):
    """The mixture above in other coordinates; its p is one at which finite scores have settled."""
    corpus = ja.data.from_sequences([[0, 1], [0] * 20 + [1], [2], [3]], [1, -1, 1, -1], vocab_size=4)
    half = 1 / (1 - 2 / (1 + np.sqrt(20)))
    p = np.array([-np.log(20) / 4, np.log(20) / 4, 0.3, 0])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    p, v = turn.T @ p, 1e8 * turn.T @ np.array([-half, half, 1, -1])
    expected = certify_joint_limit(Scores(turn, corpus), p, v)
    assert expected.holds, expected.reason
    unit = 2.0**power
    found = certify_joint_limit(Scores(turn * unit, corpus), p / unit, v / unit)
    assert found.reason == expected.reason
    np.testing.assert_array_equal(found.p * unit, expected.p)
    np.testing.assert_array_equal(found.v * unit, expected.v)
    np.testing.assert_array_equal(found.weight * unit * unit, expected.weight)
    np.testing.assert_array_equal(found.direction.multipliers * unit * unit, expected.direction.multipliers)
    for name in ("heavy", "finite", "gradient", "curvature", "head_gap", "spare"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_reason_states_the_failed_condition():
    corpus = ja.data.from_sequences([[0, 1], [2, 3]], [1, -1], vocab_size=4)
    E, p, v = np.eye(4), np.array([40.0, 0, 40, 0]), np.array([1.0, 0, -1, 0])
    found = certify_joint_limit(Scores(E, corpus), p, 1e8 * v)
    assert found.holds
    np.testing.assert_allclose(found.p, [0.5, -0.5, 0.5, -0.5], atol=1e-12)
    np.testing.assert_allclose(found.weight, 1, atol=1e-12)
    assert "not large yet" in certify_joint_limit(Scores(E, corpus), p, 100 * v).reason
    # Sequence 2 is light by a part of v outside the span of the heavy ones, so it must be on their margin:
    # token 3 is, and token 1 is not.
    corpus = ja.data.from_sequences([[0], [2], [1, 3]], [1, -1, 1], vocab_size=4)
    E = np.array([[1.0, 0, 1, 0], [0.5, 1, 0, 0], [-1, 0, 1, 0], [2, 0, 0, 1]])
    for top, holds in ((1, False), (3, True)):
        p = 40 * np.sign(top - 2) * np.eye(4)[3]
        found = certify_joint_limit(Scores(E, corpus), p, np.array([1e8, 0.9e8, 0, 0]))
        assert found.heavy.tolist() == [True, True, False]
        np.testing.assert_allclose(found.v, [1, 0, 0, 0], atol=1e-12)
        assert found.holds == holds
        assert holds or "below the margin" in found.reason
    # A token with a larger y γ, whose score grows faster than p_* separates it.
    corpus = ja.data.from_sequences([[0, 1, 3], [2, 3]], [1, -1], vocab_size=4)
    E = np.array([[1.0, 0, 0, 0], [1.5, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1.0]])
    v = np.array([1.0, 0, 1, 0])
    found = certify_joint_limit(Scores(E, corpus), np.array([0, -40.0, 0, -40]), 1e8 * v)
    assert "rises" in found.reason
    assert np.isnan(found.p).all()


def test_invalid_input_is_rejected():
    corpus = ja.data.from_sequences([[0, 1], [2, 3]], [1, -1], vocab_size=4)
    three = ja.data.from_sequences([[0, 1]], [2], vocab_size=4, num_classes=3)
    with pytest.raises(ja.InputError, match="3 classes"):
        certify_joint_limit(Scores(np.eye(4), three), np.ones(4), np.ones(4))
    with pytest.raises(ja.InputError, match="do not fit"):
        certify_joint_limit(Scores(np.eye(4), corpus), np.ones(3), np.ones(3))
    with pytest.raises(ja.InputError, match="do not fit"):
        certify_joint_limit(Scores(np.eye(4)[:3], corpus), np.ones(4), np.ones(4))
    with pytest.raises(ja.InputError, match="NaN or inf"):
        certify_joint_limit(Scores(np.eye(4), corpus), np.ones(4), np.full(4, np.nan))


def requirements(scores, sequences, holders):
    """Return the pairs of `level_problem` whose gap is constrained."""
    pairs, least = [(0, 6), (1, 7)], [1.0, 1.0]
    for tokens, holder in zip(sequences[2:], holders, strict=True):
        pairs += [(holder, s) for s in tokens if s > 5]
        least += [0.0 for s in tokens if s > 5]
    return pairs, least


def level_problem(shortest, seed):
    """Heavy sequences (0, 6) and (1, 7), and light sequences that any of the tokens 2 to 5 may hold."""
    rng = np.random.default_rng(seed)
    E = rng.normal(size=(9, int(rng.integers(5, 9))))
    v = shortest([E[0], -E[1]], np.ones(2))
    sequences = [[0, 6], [1, 7]]
    for _ in range(int(rng.integers(2, 5))):
        above = rng.choice(4, size=int(rng.integers(1, 4)), replace=False) + 2
        below = rng.choice([6, 7, 8], size=int(rng.integers(1, 3)), replace=False)
        sequences.append(sorted([*above.tolist(), *below.tolist()]))
    wanted = np.append(1.5 + rng.random(4), rng.uniform(-0.8, 0.8, 3))
    E[2:] += np.outer(wanted - E[2:] @ v, v) / (v @ v)
    corpus = ja.data.from_sequences(sequences, [1, -1] + [1] * (len(sequences) - 2), vocab_size=9)
    holders = [rng.choice([s for s in tokens if 1 < s < 6]) for tokens in sequences[2:]]
    pairs, least = requirements(E, sequences, holders)
    start = shortest([E[s] - E[t] for s, t in pairs], least)
    return E, corpus, sequences, 60 * start, 1e8 * v


# Seeds for which other tokens are level with the holders at p.
@pytest.mark.parametrize("seed", [226, 457, 521, 524, 598, 868, 1266, 1270])
def test_limit_has_the_smallest_norm_over_all_choices_of_tied_top_tokens(shortest, seed):
    E, corpus, sequences, p, v = level_problem(shortest, seed)
    found = certify_joint_limit(Scores(E, corpus), p, v)
    if not found.holds:
        assert "level tokens" in found.reason
        return
    a = E @ found.p
    choices = []
    for tokens in sequences[2:]:
        above = [s for s in tokens if 1 < s < 6]
        choices.append([s for s in above if a[s] > max(a[above]) - 1e-7])
    for holders in itertools.product(*choices):
        pairs, least = requirements(E, sequences, holders)
        other = shortest([E[s] - E[t] for s, t in pairs], least)
        assert np.linalg.norm(found.p) <= np.linalg.norm(other) * (1 + 1e-6)


@pytest.mark.parametrize("log_norm", [20.0, 40.0, 80.0, 300.0])
def test_limit_does_not_depend_on_the_norm_of_v_once_it_is_large(log_norm):
    """Beyond e^36 float64 does not resolve differences of order one between outputs."""
    corpus = ja.data.from_sequences([[0, 1], [2, 3], [0, 3]], [1, -1, 1], vocab_size=4)
    E, v = np.eye(4) + 0.1, np.array([1.0, 0, -1, 0])
    p = log_norm * np.array([1.0, -1, 1, -1])
    near = certify_joint_limit(Scores(E, corpus), p, np.exp(18.0) * v)
    far = certify_joint_limit(Scores(E, corpus), p, np.exp(log_norm) * v)
    assert near.reason == far.reason
    np.testing.assert_array_equal(far.heavy, near.heavy)
    np.testing.assert_allclose(far.p, near.p, atol=1e-9)


@pytest.mark.more
def test_path_can_end_at_the_certified_limit_instead_of_the_relaxed_direction():
    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.assumption1(data_key, vocab_size=24, relevant=8, length=6, sequences=40)
        params = ja.models.one_layer.init(model_key, vocab_size=24, dim=12, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=60.0), corpus

    params, corpus = jax.jit(draw)(jax.random.split(jax.random.key(0), 12)[6])
    path = jax.device_get(ja.dynamics.joint_flow(params, corpus, until_norm=1e4))
    assert path.stop == "norm"
    far = np.flatnonzero(path.log_v_norm < 600)[-1]
    scores = Scores(np.asarray(params.E), corpus)
    found = certify_joint_limit(scores, path.p[far], path.v[far] * np.exp(path.log_v_norm[far]))
    assert found.holds, found.reason
    relaxed = ja.theory.relaxed_max_margin(scores, ja.theory.selection(path.p[-1], scores))
    assert one_minus_cosine(path.p[-1], found.p) < 1e-5
    assert 0.15 < one_minus_cosine(path.p[-1], relaxed.p) < 0.17
