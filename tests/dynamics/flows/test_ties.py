"""Tied tokens in closed form, compared with mpmath, and on random corpora."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from dynamics import shapes
from dynamics.shapes import DIM, VOCAB, padded

import jaxattn as ja
from jaxattn.attention.tops import below_top
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.ties import class_values
from jaxattn.theory import certify_limit

pytestmark = pytest.mark.usefixtures("x64")
VALUES = [1.0, -1.0, -3.0, 0.5, -0.5, 0.7]


corpus_of = functools.partial(shapes.corpus_of, fill=3)


def by_hand(p):
    """Compute the path with E = 1, so that p are the scores."""
    return ja.models.one_layer.Params(
        E=jnp.asarray(np.eye(VOCAB, DIM)), p=jnp.array(p, float), v=jnp.array(VALUES)
    )


def flow(params, corpus, **settings):
    return ja.dynamics.exact_flow(
        ja.theory.scores.one_layer(params, corpus),
        params.p,
        **{"until_norm": 1e6, "points": shapes.POINTS} | settings,
    )


def chosen(path, corpus):
    """Return the selection as one list of tokens for every sequence."""
    index, mask = np.asarray(corpus.bags.index), np.asarray(path.selection.mask)
    return [sorted(row[kept].tolist()) for row, kept in zip(index, mask, strict=True)]


def distance(p, direction):
    return float(ja.theory.one_minus_cosine(p, jnp.array(direction, float)))


def test_tie_matches_the_closed_form():
    """(0, 1, 2) twice with y = 1 and (0, 1) with y = -1: f = log 2 for the top tokens, and 2 falls behind.

    2 sigmoid(-f) = sigmoid(f) has the root log 2, f = tanh(x/2) for x = a_0 - a_1, and the force on 2 is
    along (E_0 + E_1)/2 - E_2 with size (2/6) sigmoid(-f) q_2 (f - γ_2).
    """
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [0, 1]], [1, 1, -1])
    params = by_hand([0.3, 0.1, -0.2, 0.0, 0.0, 0.0])
    path = flow(params, corpus)
    assert path.stop == "norm"
    assert chosen(path, corpus) == [[0, 1]] * 3 + [[3]] * 3
    p = path.p[-1]
    np.testing.assert_allclose(p[0] - p[1], 2 * np.arctanh(np.log(2)), atol=1e-9)
    assert distance(p, [1, 1, -2, 0, 0, 0]) < 1e-10
    f = np.log(2)
    weight = np.log(2 / 6 / 3 * (f + 3) * np.sqrt(1.5)) + p[2] - np.logaddexp(p[0], p[1])
    np.testing.assert_allclose(path.log_gradient_norm[-1], weight, rtol=1e-12)
    np.testing.assert_allclose(path.norm, jnp.linalg.norm(path.p, axis=1), rtol=1e-12)
    certificate = certify_limit(ja.theory.scores.one_layer(params, corpus), p, path.selection)
    assert certificate.holds
    np.testing.assert_allclose(certificate.direction.p, np.array([1, 1, -2, 0, 0, 0]) / 3, atol=1e-12)


@pytest.mark.parametrize("most", [2, 4])
def test_values_of_tied_tokens_are_averaged_within_each_sequence(rng, most):
    corpus = ja.data.from_sequences([[0, 1, 1, 2], [1, 2, 3], [0, 3]], [1, -1, 1], vocab_size=4)
    leader, values = np.array([0, 0, 2, 0], np.int32), rng.normal(size=(4, 2))
    bags = corpus.bags
    index, owner = np.asarray(bags.index), np.asarray(bags.owner)
    weight = np.where(np.asarray(bags.count) > 0, rng.uniform(0.1, 1, index.shape), 0.0)
    found = np.asarray(jax.jit(class_values, static_argnums=4)(corpus, leader, weight, values, most))
    for row, column in zip(*np.nonzero(weight), strict=True):
        same = (owner[:, None] == owner[row]) & (leader[index] == leader[index[row, column]])
        expected = np.einsum("rw,rwk->k", weight * same, values[index]) / (weight * same).sum()
        np.testing.assert_allclose(found[row, column], expected, rtol=1e-12)


def test_distances_to_the_top_match_a_loop(rng):
    sequences = [[0, 3], [4, 1, 2, 2, 5], [1], [5, 0, 3]]
    corpus = ja.data.from_sequences(sequences, [1, -1, 1, -1], vocab_size=6)
    scores = rng.normal(size=6)
    below = np.asarray(jax.jit(below_top)(corpus, scores))
    bags = corpus.bags
    owner, index, count = (np.asarray(x) for x in (bags.owner, bags.index, bags.count))
    entries = {
        (int(owner[row]), int(index[row, column])): below[row, column]
        for row, column in zip(*np.nonzero(count), strict=True)
    }
    wanted = {
        (k, token): max(scores[tokens]) - scores[token]
        for k, tokens in enumerate(sequences)
        for token in tokens
    }
    assert entries.keys() == wanted.keys()
    assert [entries[place] for place in wanted] == pytest.approx(list(wanted.values()), abs=1e-6)
    assert (below[count == 0] == np.inf).all()


def test_tokens_tied_by_contradictory_labels_exert_no_force_on_lower_tokens():
    """(0, 1, 2) with both labels is balanced where f = 0, for any score of 2; (5, 2) lowers 2."""
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [3, 4], [5, 2]], [1, -1, 1, 1])
    params = by_hand([0.2, 0.0, -30.0, 0.0, 0.0, -20.0])
    path = flow(params, corpus)
    assert path.stop == "norm"
    np.testing.assert_allclose(path.p[-1, 0] - path.p[-1, 1], 0, atol=1e-9)
    assert distance(path.p[-1], [0, 0, -1, 1, -1, 1]) < 1e-8
    certificate = certify_limit(ja.theory.scores.one_layer(params, corpus), path.p[-1], path.selection)
    assert certificate.holds
    # Every other pair has a margin of 1; half of it is required where there is no force.
    np.testing.assert_allclose(certificate.cancelled_rate, 0.5, atol=1e-12)


@pytest.mark.parametrize("depth", [30.0, 100.0, 200.0])
def test_steps_do_not_jump_past_the_point_where_tokens_tie(depth):
    """(0, 1) with y = 1 balances 0 and 1 against (0, 1, 2) twice with y = -1, until 2 rises from far below.

    On the way only 2 moves, a_0 + a_1 + a_2 is constant, and 2 reaches the top when all three are level. From
    there on 2 alone has attention, and no force opposes 0 in (0, 1): a_1 falls and 0 stays.
    """
    corpus = corpus_of([[0, 1], [0, 1, 2], [0, 1, 2]], [1, -1, -1])
    apart = 2 * np.arctanh(np.log(2))
    params = by_hand([-apart, 0.0, -depth, 0.0, 0.0, 1000.0])
    path = flow(params, corpus, until_norm=np.inf, until_arc_length=10 * depth)
    assert path.stop == "arc_length"
    assert chosen(path, corpus) == [[0], [2], [2], [3], [3], [3]]
    p = np.asarray(path.p[-1])
    np.testing.assert_allclose(p[:3].sum(), -apart - depth, rtol=1e-9)
    # The scores are level up to the log of the depth.
    np.testing.assert_allclose(p[0], -(depth + apart) / 3, atol=1 + np.log(depth))
    assert certify_limit(ja.theory.scores.one_layer(params, corpus), path.p[-1], path.selection).holds


@pytest.mark.more
def test_path_ends_if_all_tokens_tie():
    corpus = corpus_of([[0, 1], [0, 1], [0, 1]], [1, 1, -1])
    params = by_hand([0.3, 0.1, 0.0, 0.0, 0.0, 0.0])
    path = flow(params, corpus)
    assert path.stop == "balanced"
    np.testing.assert_allclose(path.p[-1, 0] - path.p[-1, 1], 2 * np.arctanh(np.log(2)), atol=1e-9)
    certificate = certify_limit(ja.theory.scores.one_layer(params, corpus), path.p[-1], path.selection)
    assert certificate.holds
    assert certificate.direction.reason.startswith("there are no tokens to separate")
    away = path.p[-1] + jnp.array([0.1, 0, 0, 0, 0, 0])
    assert not certify_limit(ja.theory.scores.one_layer(params, corpus), away, path.selection).holds


@pytest.mark.more
def test_tied_tokens_stay_fixed_on_a_curve_of_equilibria():
    """(0, 1, 2) with both labels, all with attention: f = 0 is one equation for two differences."""
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [3, 4]], [1, -1, 1])
    params = by_hand([0.2, 0.0, -0.5, 0.0, 0.0, 0.0])
    path = flow(params, corpus)
    assert path.stop == "norm"
    assert chosen(path, corpus) == [[0, 1, 2]] * 2 + [[3]] * 4
    p = path.p[-1]
    np.testing.assert_allclose(jax.nn.softmax(p[:3]) @ params.v[:3], 0, atol=1e-9)
    assert distance(p, [0, 0, 0, 1, -1, 0]) < 1e-10
    certificate = certify_limit(ja.theory.scores.one_layer(params, corpus), p, path.selection)
    assert certificate.holds
    assert certificate.isolated
    assert certificate.curvature == 1.0


@pytest.mark.more
def test_tied_tokens_slide_along_a_curve_of_equilibria():
    """(0, 1, 2) with both labels keep f = 0; (3, 4) moves p along E_3 - E_4, which lowers token 2.

    Then dp = P (E_3 - E_4) dτ with P the projection orthogonal to ∂f/∂p, here by Runge-Kutta.
    """
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [3, 4]], [1, -1, 1])
    E = np.eye(6)
    E[2, 3] = -0.1
    values = E @ VALUES
    # On the curve, e^a_0 = e^a_1 + 3.05 e^a_2, at a norm where all other forces are e^-60.
    p = np.array([np.log(-values[1:3] @ np.exp([0.0, -0.5])), 0, 2.5, 30, -30, 0])
    params = ja.models.one_layer.Params(
        E=jnp.asarray(padded(E, VOCAB, DIM)), p=jnp.asarray(p), v=jnp.array(VALUES)
    )
    path = flow(params, corpus)
    end = np.asarray(path.p)[np.searchsorted(path.norm, 75.0)]
    assert chosen(path, corpus) == [[0, 1]] * 2 + [[3]] * 4

    def along(p):
        q = jax.nn.softmax(E[:3] @ p)
        normal = np.asarray(q * (values[:3] - q @ values[:3])) @ E[:3]
        return (E[3] - E[4]) - normal * (normal @ (E[3] - E[4])) / (normal @ normal)

    h = 0.25
    while np.linalg.norm(p) < np.linalg.norm(end) - 1e-9:
        k = [along(p)]
        k = [*k, along(p + h / 2 * k[0])]
        k = [*k, along(p + h / 2 * k[1])]
        k = [*k, along(p + h * k[2])]
        step = h * (k[0] + 2 * k[1] + 2 * k[2] + k[3]) / 6
        far = np.linalg.norm(p + step) - np.linalg.norm(end)
        p = p + step * (1 if far <= 0 else 1 - far / np.linalg.norm(step))
    assert E[2] @ p < -2
    # A straight piece follows the curve until attention has changed by 0.05.
    np.testing.assert_allclose(end, p, atol=0.05)
    assert distance(path.p[-1], [0, 0, 0, 1, -1, 0]) < 1e-8
    assert certify_limit(ja.theory.scores.one_layer(params, corpus), path.p[-1], path.selection).holds


def exact_pull(corpus, params, p):
    """Compute -n ∂L/∂p and its Jacobian in mpmath."""
    E = mpmath.matrix(np.asarray(params.E).tolist())
    values, scores = E * mpmath.matrix(np.asarray(params.v).tolist()), E * p
    ids, mask = ja.models.reference.padded_sequences(corpus)
    vocab = E.rows
    force, turn = mpmath.zeros(vocab, 1), mpmath.zeros(vocab)
    for row, real, y in zip(ids, mask, np.asarray(corpus.targets).tolist(), strict=True):
        tokens = row[real].tolist()
        top = max(scores[s] for s in tokens)
        weight = [mpmath.exp(scores[s] - top) for s in tokens]
        q = [w / mpmath.fsum(weight) for w in weight]
        f = mpmath.fsum(x * values[s] for x, s in zip(q, tokens, strict=True))
        g = y / (1 + mpmath.exp(y * f))
        slope = -y / (1 + mpmath.exp(-y * f))
        c = [x * (values[s] - f) for x, s in zip(q, tokens, strict=True)]
        for i, s in enumerate(tokens):
            force[s] += g * c[i]
            turn[s, s] += g * c[i]
            for j, t in enumerate(tokens):
                turn[s, t] += g * (slope * c[i] * c[j] - c[i] * q[j] - q[i] * c[j])
    return E.T * force, E.T * turn * E


def exact_path(corpus, params, until_norm, rtol):
    """Integrate dp/ds = F/‖F‖ in mpmath's working precision, by a separate Rosenbrock pair."""
    p = mpmath.matrix(np.asarray(params.p).tolist())
    A, C = stiff.A, stiff.C

    def unit(p):
        force, jacobian = exact_pull(corpus, params, p)
        size = mpmath.norm(force)
        u = force / size
        return u, (jacobian - u * (u.T * jacobian)) / size

    h, (u, jacobian) = mpmath.mpf("0.01"), unit(p)
    while mpmath.norm(p) < until_norm:
        system = mpmath.eye(len(p)) - h * stiff.GAMMA * jacobian
        stages = []
        for a, c in zip(A, C, strict=True):
            at = p + sum((x * k for x, k in zip(a, stages, strict=False)), mpmath.zeros(len(p), 1))
            right = h * (unit(at)[0] if stages else u)
            right += sum((x * k for x, k in zip(c, stages, strict=False)), mpmath.zeros(len(p), 1))
            stages.append(mpmath.lu_solve(system, stiff.GAMMA * right))
        error = mpmath.norm(stages[-1]) / (rtol * (1 + mpmath.norm(p)))
        if error <= 1:
            p = at + stages[-1]
            u, jacobian = unit(p)
        h *= min(5, max(0.2, 0.8 * float(error + 1e-30) ** -0.25))
    return np.array([float(x) for x in p])


@functools.cache
def generic():
    """Return a tie of two tokens and one token below them, with generic embeddings."""
    corpus = ja.data.from_sequences([[0, 1, 2], [0, 1], [0, 1, 2]], [1, -1, 1], vocab_size=3)
    E = jax.random.normal(jax.random.key(3), (3, 3))
    v = jnp.linalg.solve(E, jnp.array([1.0, -1.0, -3.0]))
    return ja.models.one_layer.Params(E=E, p=jnp.array([0.3, -0.2, 0.1]), v=v), corpus


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_force_of_second_order_is_no_balance(order):
    """{0, 1, 2} with both labels: first-order forces cancel, and the loss still falls with q_1.

    Tokens 0 and 2 have the same value. The sequences {2, 3} and {1, 3} exert no force, because their keys or
    their values are equal. So the force is along E_0 - E_1 at all times, of size e^(-2 gap), and p follows it
    for ever. Forces within {2, 3} are of order one, but do nothing.
    """
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [2, 3], [1, 3]], [1, -1, 1, -1])
    keys = padded(np.array([[1, 0], [-3, -1], [-1, 1], [-1, 1]])[:, order], VOCAB, DIM)
    scores = ja.theory.Scores(keys, corpus, np.array([0.0, -1, 0, -1, 0, 0, 0]))
    path = ja.dynamics.exact_flow(scores, np.zeros(DIM), until_norm=1e4, points=shapes.POINTS)
    assert path.stop == "norm"
    assert distance(path.p[-1], keys[0] - keys[1]) < 1e-7


@pytest.mark.slow
def test_path_matches_mpmath_beyond_float64_resolution():
    params, corpus = generic()
    with mpmath.workdps(120):
        exact = exact_path(corpus, params, 80, 1e-7)
    path = flow(params, corpus, until_norm=float(np.linalg.norm(exact)), rtol=1e-7)
    assert path.stop == "norm"
    # Forces are e^-60 by then; those that balance are of order one.
    assert path.log_gradient_norm[-1] < -50
    np.testing.assert_allclose(path.p[-1], exact, atol=1e-4)


@functools.cache
def problems(dim, seeds=12):
    """Sample independent tokens and take one step on E: small corpora in which tokens tie."""

    def draw(key):
        data_key, model_key = jax.random.split(key)
        corpus = ja.data.independent(data_key, vocab_size=12, relevant=6, length=5, sequences=40)
        params = ja.models.one_layer.init(model_key, vocab_size=12, dim=dim, dtype=jnp.float64)
        return ja.dynamics.one_step(params, corpus, step_size=50.0), corpus

    return jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), seeds))


def take(tree, seed):
    return jax.tree.map(lambda x: x[seed], tree)


@pytest.mark.more
@pytest.mark.parametrize("dim", [8, pytest.param(64, marks=pytest.mark.more)])
def test_each_path_is_certified_or_reported_as_unresolved(dim):
    params, corpora = problems(dim)
    path = flow(params, corpora)
    ended = np.asarray(path.stop)
    assert np.isin(ended, ["norm", "balanced", "unresolved"]).all()
    tied = 0
    for seed in range(len(ended)):
        if ended[seed] == "unresolved":
            continue
        one, corpus, kept = take((params, corpora, path.selection), seed)
        certificate = certify_limit(ja.theory.scores.one_layer(one, corpus), path.p[seed, -1], kept)
        assert certificate.holds
        tied += len(certificate.direction.ties) > 0
        if ended[seed] == "norm":
            assert ja.theory.one_minus_cosine(path.p[seed, -1], certificate.direction.p) < 1e-8
    assert tied >= 6
    assert (ended == "unresolved").mean() < 0.3


@pytest.mark.more
def test_vmapped_paths_match_single_paths():
    params, corpora = problems(8)
    together = flow(params, corpora)
    alone = flow(*take((params, corpora), 0))
    some = take((params, corpora), slice(3))
    vectorised = jax.jit(jax.vmap(lambda params, corpus: flow(params, corpus)))(*some)
    np.testing.assert_allclose(alone.p[-1], together.p[0, -1], rtol=1e-9)
    np.testing.assert_allclose(vectorised.p[:, -1], together.p[:3, -1], rtol=1e-6)
    np.testing.assert_array_equal(alone.selection.mask, together.selection.mask[0])
    np.testing.assert_array_equal(vectorised.selection.mask, together.selection.mask[:3])


@pytest.mark.parametrize("unit", [512.0, 1 / 512])
@pytest.mark.more
def test_ties_do_not_depend_on_the_unit_of_length(unit):
    """Scaling the keys, and p inversely, gives the same scores and hence the same path."""
    data = ja.data.Independent(vocab_size=24, relevant=8, length=5, sequences=40)
    corpus = data.draw(jax.random.key(1)).train
    start = ja.models.one_layer.init(jax.random.key(4), vocab_size=24, dim=32, dtype=jnp.float64)
    params = ja.dynamics.one_step(start, corpus, step_size=60.0)

    def follow(unit):
        scores = ja.theory.scores.Scores(params.E / unit, corpus, values=params.E @ params.v)
        return ja.dynamics.exact_flow(scores, unit * params.p, until_norm=1e5 * unit, points=8)

    path, other = follow(1.0), follow(unit)
    assert (np.asarray(path.selection.counts(corpus)) > 1).any()
    assert path.stop == other.stop == "norm"
    np.testing.assert_array_equal(path.selection.mask, other.selection.mask)
    np.testing.assert_allclose(other.p / unit, path.p, rtol=0, atol=1e-7 * path.norm[-1])
