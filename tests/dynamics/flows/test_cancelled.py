"""Forces that cancel to first order: the remaining force, by autodiff and in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dynamics.shapes import DIM, POINTS, VOCAB, corpus_of, padded

import jaxattn as ja
from jaxattn.dynamics.flows import balance
from jaxattn.dynamics.flows.ties import no_ties
from jaxattn.theory import certify_limit

pytestmark = pytest.mark.usefixtures("x64")


def flow(corpus, values, p, keys=None, **settings):
    keys = padded(np.eye(6) if keys is None else keys, VOCAB, DIM)
    settings = {"until_norm": 1e6, "points": POINTS} | settings
    scores = ja.theory.Scores(keys, corpus, padded(values, VOCAB, *np.shape(values)[1:]))
    return scores, ja.dynamics.exact_flow(
        scores, padded(p, DIM), **{"until_norm": 1e6, "points": POINTS} | settings
    )


def away(p, direction):
    return float(ja.theory.one_minus_cosine(p, np.array(direction, float)))


@jax.jit
def balance_of(*given):
    return balance.find_ties(*given, no_ties(given[0], *given[2:]))[1]


def found(corpus, values, scores, keys=None):
    """Return the balance near the p that has these scores, with E = 1 by default."""
    keys = np.eye(6) if keys is None else keys
    p = np.linalg.solve(keys, np.array(scores, float))
    values = padded(values, VOCAB, *np.shape(values)[1:])
    return balance_of(jnp.array(padded(keys, VOCAB, DIM)), jnp.array(p), jnp.array(values), corpus)


def size_of(pairs, top, low):
    """Return the diagonal entry of M for a pair of two tokens."""
    for k, (one, other) in enumerate(zip(np.asarray(pairs.top), np.asarray(pairs.low), strict=True)):
        if (one, other) == (top, low):
            return float(pairs.sign[k, k] * jnp.exp(pairs.log_size[k, k]))
    raise AssertionError(f"no pair {top}, {low}")


@pytest.mark.more
def test_second_order_terms_match_autodiff():
    """Two sequences (0, 1) with y = 1 and one with y = -1; the labels balance at a_0 = log 2."""
    corpus = corpus_of([[0, 1], [0, 1], [0, 1], [3, 4]], [1, 1, -1, 1])
    values = [np.log(2), -0.7, 0, 1, 0, 0]
    got = found(corpus, values, [20.0, -10, 0, 30, -30, 0])
    assert got.stable

    def loss(x):
        f = (values[0] + x * values[1]) / (1 + x)
        return (2 * jax.nn.softplus(-f) + jax.nn.softplus(f)) / 6

    assert float(jax.grad(loss)(0.0)) == pytest.approx(0, abs=1e-16)
    np.testing.assert_allclose(size_of(got.ties.pairs, 0, 1), jax.hessian(loss)(0.0), rtol=1e-10)


@pytest.mark.more
def test_second_order_terms_are_independent_of_repetitions_of_a_whole_bag():
    """Attention, and so the loss, is the same if every token of a sequence occurs twice."""
    values, p = [np.log(2), -0.7, 0, 1, 0, 0], [20.0, -10, 0, 30, -30, 0]
    sizes = [
        size_of(found(corpus_of([[0, 1] * times] * 3 + [[3, 4]], [1, 1, -1, 1]), values, p).ties.pairs, 0, 1)
        for times in (1, 2)
    ]
    np.testing.assert_allclose(*sizes, rtol=1e-12)


def answered(x, y):
    """Compute the loss of (0, 1, 2) and (0, 1) with both labels.

    y = a_0 - a_1, x = e^(a_2 - a_0), γ = 1, -1, .3.
    """
    q = jax.nn.sigmoid(y)
    short = 2 * q - 1
    long = (short / q + 0.3 * x) / (1 / q + x)
    return sum(jax.nn.softplus(f) + jax.nn.softplus(-f) for f in (short, long)) / 6


@pytest.mark.more
def test_response_of_tied_tokens_cancels_part_of_the_force():
    """0 and 1 tie in two kinds of sequences, so their response cancels the force of 2 in one kind only."""
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [3, 4]], [1, -1, 1, -1, 1])
    got = found(corpus, [1, -1, 0.3, 1, 0, 0], [15.0, 15, -20, 40, -40, 0])
    assert got.stable
    hessian = jax.hessian(answered, argnums=(0, 1))(0.0, 0.0)
    expected = hessian[0][0] - hessian[0][1] ** 2 / hessian[1][1]
    np.testing.assert_allclose(size_of(got.ties.pairs, 0, 2), expected, rtol=1e-9)


@pytest.mark.more
def test_partly_cancelled_force_moves_the_path():
    """a_0 - a_2 grows half as fast as a_3 - a_4: p_* = (1, 1, -2, 3, -3)/6."""
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [3, 4]], [1, -1, 1, -1, 1])
    scores, path = flow(corpus, [1, -1, 0.3, 1, 0, 0], [0.1, 0, 0, 0, 0, 0])
    assert path.stop == "norm"
    assert away(path.p[-1], [1, 1, -2, 3, -3, 0]) < 1e-8
    limit = certify_limit(scores, path.p[-1], path.selection)
    assert limit.holds, limit.reason
    np.testing.assert_allclose(limit.direction.p, np.array([1, 1, -2, 3, -3, 0]) / 6, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_forces_cancel_whatever_the_rounding_errors_of_the_scores(seed):
    """Bags that are equal but for their label balance at f = 0, where the forces on every other token cancel.

    Scores of size 60 have rounding errors of 1e-14. The balance is that of the computed scores, whose sum of
    forces is zero to 1e-16.
    """
    keys = np.random.default_rng(seed).normal(size=(6, 6))
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [3, 4]], [1, -1, 1])
    got = found(corpus, [1, -0.7, 0.3, 1, 0, 0], [60 + np.log(0.7), 60, 5, 30, -30, 0], keys)
    assert got.stable
    assert not got.undecided
    idle = np.asarray(got.ties.watch.idle)
    assert sorted(np.asarray(corpus.bags.index)[idle].tolist()) == [2, 2]


@pytest.mark.parametrize("gap", [0.2, 5.0])
def test_a_token_of_the_value_of_the_top_token_may_be_near_the_top(gap):
    """3 has the value of 2, so it exerts no force at any distance, whether or not it is tied with 2."""
    keys = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    corpus = corpus_of([[0, 1], [0, 1], [2, 2, 2, 3], [2, 4]], [1, -1, 1, 1])
    got = found(corpus, [1, -0.7, 0.1, 0.1, 0, 0], [np.log(0.7), 0, 20, 20 - gap, -20, 0], keys)
    assert got.stable
    assert not np.asarray(got.ties.watch.idle).any()
    leader = np.asarray(got.ties.leader)
    assert leader[0] == leader[1] == 0
    # The mean of equal values is exact; 3 · 0.1 / 3 is not 0.1.
    index = np.asarray(corpus.bags.index)
    np.testing.assert_array_equal(np.asarray(got.ties.values)[(index == 2) | (index == 3)], 0.1)


@pytest.mark.more
def test_rounding_exerts_no_force_on_a_token_whose_value_equals_the_output():
    """0 and 1 balance at f = 0 = γ_2, so 2 has no force at any order, and only 3 recedes.

    Otherwise rounding errors of M_22 would exceed M_33 later, since 2 is closer to the top than 3. p_* is
    the projection of E_0 - E_3 along the tie.
    """
    keys = [[1.08, -1.06, 0.98], [0.86, 0.92, -0.72], [0.1, -1.08, 0.87], [-0.1, 0, 0], [0, 0, 0], [0, 0, 0]]
    keys = np.array(keys)
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], *[[0, 1, 2, 3]] * 4], [1, -1] * 3)
    scores, path = flow(corpus, [-0.7, 0.3, 0, 1, 0, 0], [-0.05, -0.3, 0.01], keys)
    assert path.stop == "norm"
    tie, apart = keys[0] - keys[1], keys[0] - keys[3]
    expected = padded(apart - (apart @ tie) / (tie @ tie) * tie, DIM)
    assert away(path.p[-1], expected) < 1e-11
    limit = certify_limit(scores, path.p[-1], path.selection)
    assert limit.holds, limit.reason
    assert away(limit.direction.p, expected) < 1e-12


def test_second_order_force_of_a_single_top_token_is_accurate():
    corpus = corpus_of([[0, 1], [0, 1], [3, 4]], [1, -1, 1])
    _, path = flow(corpus, [0, 0.5, 0, 1, 0, 0], [0.1, 0, 0, 0, 0, 0])
    assert path.stop == "norm"
    assert away(path.p[-1], [1, -1, 0, 2, -2, 0]) < 1e-8


@pytest.mark.more
def test_second_order_force_with_three_classes_is_accurate():
    """r·(γ_1 - γ_0) = 0 for π = 1/3, γ_1 = (1, 2, 0), label 0: the force of one sequence is zero."""
    corpus = corpus_of([[0, 1], [3, 4]], [0, 1], num_classes=3)
    values = np.zeros((6, 3))
    values[1], values[3] = [1, 2, 0], [0, 1, 0]
    _, path = flow(corpus, values, [0.1, 0, 0, 0, 0, 0])
    assert path.stop == "norm"
    assert away(path.p[-1], [1, -1, 0, 2, -2, 0]) < 1e-8


@pytest.mark.more
def test_equal_vectors_in_several_sequences_act_like_a_shared_token(rng):
    """Rows of separate tokens have other indices, but the same force on p."""
    keys = rng.normal(size=(4, 3))
    values, sequences, labels = [0, 0.5, 1.0, 0], [[0, 1], [0, 1], [2, 3]], [1, -1, 1]
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=4)
    p = 0.1 * rng.normal(size=3)
    shared = ja.dynamics.exact_flow(ja.theory.Scores(keys, corpus, np.array(values)), p, until_norm=1e4)
    vectors = ja.theory.scores.from_vectors(
        keys[np.array(sequences)], np.array(labels), values=np.array(values)[np.array(sequences)]
    )
    own = ja.dynamics.exact_flow(vectors, p, until_norm=1e4)
    assert shared.stop == own.stop == "norm"
    np.testing.assert_allclose(shared.p[-1], own.p[-1], rtol=1e-6)


def test_path_ends_if_the_order_of_a_force_is_unknown():
    """For counts 1, 1, 2 and δ = 4/3 the first and second order cancel, and the third is not computed."""
    corpus = corpus_of([[0, 1], [0, 1], [0, 1, 1], [2, 3]], [1, 1, -1, 1])
    _, path = flow(corpus, [0, 4 / 3, 1, 0, 0, 0], [10, -10, 0, 0, 0, 0])
    assert path.stop == "undecided"
    assert "order" in path.reason
    assert 10 < path.norm[-1] < 1e3


@pytest.mark.parametrize("small", [1e-2, 1e-4])
@pytest.mark.more
def test_ties_are_found_among_keys_of_very_different_norms(small):
    """0 and 1 tie at a finite distance; their keys are `small` times as long as those of 3 and 4."""
    keys = np.diag([small, small, small, 1.0, 1.0, 1.0])
    corpus = corpus_of([[0, 1, 2], [0, 1, 2], [0, 1], [3, 4]], [1, 1, -1, 1])
    scores, path = flow(corpus, [1.0, -1, -3, 1, 0, 0], np.zeros(6), keys, until_norm=1e4 / small)
    assert path.stop == "norm"
    # f = tanh((a_0 - a_1)/2) converges to log 2.
    a = np.asarray(scores.keys) @ np.asarray(path.p[-1])
    np.testing.assert_allclose(a[0] - a[1], 2 * np.arctanh(np.log(2)), atol=1e-6)
