"""Forces compared with high precision and autodiff; the flow of cross-entropy with another integrator."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from models.params import generic
from scipy.integrate import solve_ivp

import jaxattn as ja
from jaxattn.data.corpus import from_bags
from jaxattn.dynamics.flows.force import direction, score_force, token_curvature
from jaxattn.theory import Scores

pytestmark = pytest.mark.usefixtures("x64")


@jax.jit
def evaluate(corpus, scores, values):
    """Return the force and the curvature, both in units of exp(log_scale)."""
    force = score_force(corpus, scores, values)
    return force, token_curvature(corpus, force)


@jax.jit
def plain_gradient(params, corpus):
    return jax.grad(ja.dynamics.loss)(params, corpus)


def exact_force(corpus, scores, values):
    """Compute -n ∂L/∂a_s = Σ_X y g Σ_{i: x_i = s} q_i (γ_s - f) in the working precision of mpmath."""
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(corpus))
    values = [mpmath.mpf(float(x)) for x in values]
    force = [mpmath.mpf(0)] * len(values)
    for row, real, y in zip(ids, mask, np.asarray(corpus.targets).tolist(), strict=True):
        tokens = row[real].tolist()
        weight = [mpmath.exp(scores[s] - scores[tokens[0]]) for s in tokens]
        total = mpmath.fsum(weight)
        f = mpmath.fsum(w * values[s] for w, s in zip(weight, tokens, strict=True)) / total
        pull = y / (1 + mpmath.exp(y * f))
        for w, s in zip(weight, tokens, strict=True):
            force[s] += pull * w / total * (values[s] - f)
    return force


def scaled(force, n):
    """Return as floats the force in units of its largest entry, and the log of that entry over n."""
    largest = max(abs(x) for x in force)
    return np.array([float(x / largest) for x in force]), float(mpmath.log(largest / n))


def exact_direction(params, corpus):
    E = [[mpmath.mpf(x) for x in row] for row in np.asarray(params.E).tolist()]
    p = [mpmath.mpf(x) for x in np.asarray(params.p).tolist()]
    values = np.asarray(params.E) @ np.asarray(params.v)
    force = exact_force(corpus, [mpmath.fdot(row, p) for row in E], values)
    moved = [mpmath.fdot(force, column) for column in zip(*E, strict=True)]
    norm = mpmath.sqrt(mpmath.fdot(moved, moved))
    return np.array([float(x / norm) for x in moved]), float(mpmath.log(norm / corpus.num_examples))


def far_away(corpus, norm):
    """Return parameters with p along a max-margin direction, so that all margins and forces are equal."""
    params = generic(ja.models.one_layer.init, vocab_size=44, dim=48, dtype=jnp.float64)
    params = params.replace(E=4 * params.E)
    chosen = ja.theory.selection(params.p, ja.theory.Scores(params.E, corpus))
    p = ja.theory.max_margin(ja.theory.Scores(params.E, corpus), chosen).p
    return params.replace(p=jnp.asarray(norm * p / np.linalg.norm(p)))


@pytest.fixture
def digits():
    # The largest force is about e^(-3934), which is 10^(-1708).
    with mpmath.workdps(2000):
        yield


@pytest.mark.parametrize("norm", [pytest.param(50.0, marks=pytest.mark.more), 3000.0])
def test_direction_has_ten_accurate_digits_where_the_plain_gradient_underflows(corpus, digits, norm):
    params = far_away(corpus, norm)
    expected, log_norm = exact_direction(params, corpus)
    assert norm < 1000 or log_norm < -750  # e^(-750) is below the smallest float64.
    got, got_log_norm = jax.jit(direction)(params, corpus)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got_log_norm, log_norm, rtol=1e-12)
    plain = -plain_gradient(params, corpus).p
    size = jnp.linalg.norm(plain)
    assert not np.abs(plain / jnp.where(size > 0, size, 1) - expected).max() < 1e-8


@pytest.mark.parametrize("ties", ["none", "of two values", "of one value", "of all tokens"])
def test_force_is_accurate_for_any_spread_of_scores(corpus, digits, ties):
    scores, values = np.array(jax.random.normal(jax.random.key(1), (2, 44)))
    scores *= 700
    if ties != "none":
        scores[:] = np.where(np.arange(44) % 3 == 0, 2000.0, scores)
    if ties == "of one value":
        values[::3] = 0.3
    if ties == "of all tokens":
        scores[:] = 2000.0
    n = corpus.num_examples
    expected, log_largest = scaled(exact_force(corpus, [mpmath.mpf(x) for x in scores.tolist()], values), n)
    force, _ = evaluate(corpus, jnp.asarray(scores), jnp.asarray(values))
    largest = np.abs(force.force).max()
    np.testing.assert_allclose(force.force / largest, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(force.log_scale + np.log(largest), log_largest, rtol=1e-12, atol=1e-12)


def test_curvature_matches_a_difference_quotient_at_large_norm(corpus, digits):
    params = far_away(corpus, 3000.0)
    scores, values = params.E @ params.p, params.E @ params.v
    start = [mpmath.mpf(x) for x in scores.tolist()]
    towards = [mpmath.mpf(x) for x in jax.random.normal(jax.random.key(2), (44,)).tolist()]
    h = mpmath.mpf(10) ** -50

    def at(multiple):
        return exact_force(corpus, [a + multiple * x for a, x in zip(start, towards, strict=True)], values)

    quotient = [(plus - minus) / (2 * h) for plus, minus in zip(at(h), at(-h), strict=True)]
    expected, log_largest = scaled(quotient, corpus.num_examples)
    force, curvature = evaluate(corpus, scores, values)
    got = curvature @ jnp.asarray([float(x) for x in towards])
    largest = np.abs(got).max()
    np.testing.assert_allclose(got / largest, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(force.log_scale + np.log(largest), log_largest, rtol=1e-12)


def test_force_and_curvature_match_derivatives_of_the_reference_loss(corpus, textbook):
    scores, values = jax.random.normal(jax.random.key(3), (2, 44))
    force, curvature = evaluate(corpus, scores, values)
    gradient = jax.jit(jax.grad(lambda a: textbook(corpus, a, values)))
    scale = np.exp(force.log_scale)
    np.testing.assert_allclose(scale * force.force, -gradient(scores), atol=1e-15)
    np.testing.assert_allclose(force.force.sum(), 0, atol=1e-14)
    np.testing.assert_allclose(scale * curvature, -jax.jit(jax.jacfwd(gradient))(scores), atol=1e-15)
    np.testing.assert_array_equal(curvature, curvature.T)
    np.testing.assert_allclose(curvature.sum(axis=1), 0, atol=1e-14)


def test_direction_matches_the_gradient_with_respect_to_p(corpus, textbook):
    params = generic(ja.models.one_layer.init, vocab_size=44, dim=48, dtype=jnp.float64)
    got, log_norm = jax.jit(direction)(params, corpus)
    plain = jax.jit(jax.grad(lambda p: textbook(corpus, params.E @ p, params.E @ params.v)))(params.p)
    np.testing.assert_allclose(got, -plain / jnp.linalg.norm(plain), atol=1e-13)
    np.testing.assert_allclose(log_norm, jnp.log(jnp.linalg.norm(plain)), rtol=1e-13)
    got, log_norm = jax.jit(direction)(params.replace(E=0 * params.E), corpus)
    np.testing.assert_array_equal(got, 0)
    assert log_norm == -np.inf


def test_gross_force_is_summed_without_cancellation():
    """X = (0, 1) with y = 1 and y = -1, values ±1: each exerts y g q_0 q_1 (γ_0 - γ_1) on token 0."""
    corpus = ja.data.from_sequences([[0, 1], [0, 1]], [1, -1], vocab_size=2)
    force, _ = evaluate(corpus, jnp.array([0.8, 0.2]), jnp.array([1.0, -1.0]))
    q = 1 / (1 + np.exp(-0.6))
    pull = q * (1 - q) * 2 / (1 + np.exp([2 * q - 1, 1 - 2 * q])) / 2
    scale = np.exp(force.log_scale)
    np.testing.assert_allclose(scale * force.force, (pull[0] - pull[1]) * np.array([1, -1]), rtol=1e-13)
    np.testing.assert_allclose(scale * force.gross, 2 * pull.sum(), rtol=1e-13)


def test_repeating_a_token_adds_the_log_of_its_count_to_its_score():
    """[0, 0, 0, 1] has the weights of [0, 1] with a_0 + log 3, for any spread of scores."""
    values = jnp.array([0.5, -1.0])
    three, one = (ja.data.from_sequences([x, x], [-1, -1], vocab_size=2) for x in ([0, 0, 0, 1], [0, 1]))
    for score in (0.0, 0.7, -900.0, 900.0):
        many, curvature = evaluate(three, jnp.array([score, 0.0]), values)
        once, expected = evaluate(one, jnp.array([score + np.log(3), 0.0]), values)
        shift = np.exp(many.log_scale - once.log_scale)
        np.testing.assert_allclose(shift * many.force, once.force, rtol=1e-12)
        np.testing.assert_allclose(shift * curvature, expected, rtol=1e-11)


def test_single_token_sequences_exert_no_force():
    corpus = ja.data.from_sequences([[0], [1], [1, 1], [2]], [1, -1, -1, 1], vocab_size=3)
    force, curvature = evaluate(corpus, jnp.array([1.0, -800.0, 3.0]), jnp.array([1.0, 2.0, -1.0]))
    np.testing.assert_array_equal(force.force, 0)
    np.testing.assert_array_equal(curvature, 0)
    assert force.log_scale == -np.inf
    assert force.gross == 0


@pytest.mark.more
def test_empty_rows_and_sequences_change_only_the_mean(rng):
    """A corpus built inside jit has unused rows; one of its sequences is emptied as well."""
    tokens, labels = rng.integers(0, 44, (3, 40)), np.array([1, -1, 1])
    scores, values = jnp.asarray(rng.normal(size=(2, 44)))

    @jax.jit
    def padded(tokens, labels):
        ordered = jnp.sort(tokens, axis=1)
        first = jnp.concatenate([jnp.ones((4, 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
        count = jnp.where(first, (ordered[:, :, None] == ordered[:, None, :]).sum(axis=2), 0)
        return from_bags(
            jnp.repeat(jnp.arange(4), 40),
            ordered.ravel(),
            count.at[1].set(0).ravel(),
            labels,
            vocab_size=44,
            num_classes=2,
            longest_bag=40,
            max_occurrences=4,
        )

    with_padding = padded(jnp.asarray(np.insert(tokens, 1, 0, axis=0)), jnp.asarray(np.insert(labels, 1, 1)))
    assert (np.asarray(with_padding.bags.owner) == 4).any()
    assert with_padding.lengths[1] == 0
    plain = ja.data.from_sequences(tokens.tolist(), labels.tolist(), vocab_size=44)
    for spread in (1.0, 900.0):
        force, curvature = evaluate(plain, spread * scores, values)
        again, again_curvature = evaluate(with_padding, spread * scores, values)
        np.testing.assert_allclose(again.force, force.force, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(again_curvature, curvature, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(again.log_scale, force.log_scale + np.log(3 / 4), rtol=1e-14)
        np.testing.assert_allclose(again.gross, force.gross, rtol=1e-13)


K, VOCAB, DIM = 3, 9, 12


def problem(seed):
    """Sample bags of four distinct tokens of three classes; the first token of each has its class."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(12) % K)
    lists = [[int(y), *rng.choice(np.arange(K, VOCAB), 3, replace=False).tolist()] for y in labels]
    corpus = ja.data.from_sequences(lists, labels.tolist(), vocab_size=VOCAB, num_classes=K)
    values = 0.3 * rng.normal(size=(VOCAB, K))
    values[:K] += 2 * np.eye(K)
    return Scores(rng.normal(size=(VOCAB, DIM)), corpus, values), rng.normal(size=DIM) / 4, lists, labels


def loss(a, values, lists, labels):
    """Compute the mean cross-entropy in a loop over sequences."""
    total = 0.0
    for tokens, y in zip(lists, labels, strict=True):
        index = np.array(tokens)
        f = jax.nn.softmax(a[index]) @ values[index]
        total += jax.nn.logsumexp(f) - f[y]
    return total / len(lists)


@pytest.mark.parametrize("size", [pytest.param(0.5, marks=pytest.mark.more), 3.0])
def test_force_and_curvature_match_autodiff(x64, rng, size):
    scores, _, lists, labels = problem(0)
    a, values = jnp.asarray(size * rng.normal(size=VOCAB)), jnp.asarray(scores.values)

    @jax.jit
    def ours(a):
        force = score_force(scores.corpus, a, values)
        return force, token_curvature(scores.corpus, force)

    @jax.jit
    def by_differentiation(a):
        def mean_loss(a):
            return loss(a, values, lists, labels)

        return jax.grad(mean_loss)(a), jax.hessian(mean_loss)(a)

    force, curvature = ours(a)
    gradient, hessian = by_differentiation(a)
    scale = np.exp(force.log_scale)
    np.testing.assert_allclose(scale * force.force, -gradient, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(scale * curvature, -hessian, rtol=1e-8, atol=1e-13)


def test_force_is_the_leading_term_at_large_norm(x64):
    """The top token leads by 500 nats: the force of the other one is e^-500 r·(γ_1 - γ_0)."""
    corpus = ja.data.from_sequences([[0, 1]], [2], vocab_size=2, num_classes=3)
    values = np.array([[0.0, 1.0, 4.0], [2.0, -1.0, 0.5]])
    force = jax.jit(score_force)(corpus, jnp.array([500.0, 0.0]), jnp.asarray(values))
    pi = np.exp(values[0]) / np.exp(values[0]).sum()
    pull = (np.eye(3)[2] - pi) @ (values[1] - values[0])
    np.testing.assert_allclose(force.log_scale + np.log(np.abs(force.force[1])), np.log(-pull) - 500)
    np.testing.assert_allclose(force.force.sum(), 0, atol=1e-15)


@pytest.mark.more
@pytest.mark.parametrize("seed", range(2))
def test_path_matches_an_independent_integrator_and_its_limit_is_certified(x64, seed):
    scores, p, lists, labels = problem(seed)
    path = ja.dynamics.exact_flow(scores, p, until_norm=1e5, points=24, rtol=1e-6)
    assert path.stop == "norm"
    keys = jnp.asarray(scores.keys)
    gradient = jax.jit(jax.grad(lambda p: loss(keys @ p, jnp.asarray(scores.values), lists, labels)))

    def velocity(_, p):
        g = np.asarray(gradient(p))
        return -g / np.linalg.norm(g)

    near = path.arc_length[(path.arc_length > 0) & (path.norm < 15)]
    assert len(near) >= 3
    by_radau = solve_ivp(velocity, (0, near[-1]), p, method="Radau", t_eval=near, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.p[1 : 1 + len(near)], by_radau.y.T, rtol=1e-4, atol=2e-4)
    found = ja.theory.certify_limit(scores, path.p[-1], path.selection)
    assert found.holds
    assert ja.theory.one_minus_cosine(path.p[-1], found.direction.p) < 1e-6


@pytest.mark.more
def test_cross_entropy_of_two_logits_matches_the_logistic_loss(x64):
    """Outputs (0, 0, f) with a third class far below: cross-entropy of (−f/2, f/2) is logistic in f."""
    rng = np.random.default_rng(5)
    lists = [rng.choice(VOCAB, 4, replace=False).tolist() for _ in range(8)]
    labels, gamma = rng.choice([-1, 1], 8), rng.normal(size=VOCAB)
    keys, p = rng.normal(size=(VOCAB, DIM)), rng.normal(size=DIM) / 4
    two = ja.data.from_sequences(lists, labels.tolist(), vocab_size=VOCAB)
    three = ja.data.from_sequences(lists, ((labels + 1) // 2).tolist(), vocab_size=VOCAB, num_classes=3)
    values = np.stack([-gamma / 2, gamma / 2, np.full(VOCAB, -800.0)], axis=1)
    settings = {"until_norm": 50.0, "points": 12}
    one = ja.dynamics.exact_flow(Scores(keys, two, gamma), p, **settings)
    other = ja.dynamics.exact_flow(Scores(keys, three, values), p, **settings)
    assert one.stop == other.stop
    np.testing.assert_allclose(one.p, other.p, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(one.log_time[1:], other.log_time[1:], atol=1e-4)
