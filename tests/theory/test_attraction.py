"""Attracting tokens whose force is as large as that of repelled ones, against integration of the plain flow.

Every sequence contains two tokens, s above u, so the force on p is a sum of explicit terms.
"""

import functools

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import expit

import jaxattn as ja
from jaxattn.theory import limit
from jaxattn.theory.attraction import Attraction, leading_terms

FAR = 400.0


def problem(theta, values, counts=None):
    """Sequence i contains a token with key θ_i and value γ_i, and one with key 0 and value 0; y = 1.

    The second token occurs counts[i] times.
    """
    n = len(theta)
    counts = np.ones(n, int) if counts is None else counts
    E = np.zeros((2 * n, theta.shape[1]))
    E[::2] = theta
    sequences = [[2 * i] + [2 * i + 1] * count for i, count in enumerate(counts)]
    corpus = ja.data.from_sequences(sequences, [1] * n, vocab_size=2 * n)
    return ja.theory.Scores(E, corpus, np.ravel([values, np.zeros(n)], order="F"))


def certificate(theta, values, p, counts=None):
    scores = problem(theta, values, counts)
    return ja.theory.certify_limit(scores, p, ja.theory.selection(p, scores))


def follow(theta, values, p, length, counts=None):
    """Integrate dp/dτ = F/‖F‖, where F is minus the gradient of the loss."""

    log_counts = np.zeros(len(theta)) if counts is None else np.log(counts)

    def velocity(_, p):
        a = theta @ p - log_counts
        q = expit(a)
        # σ(a) σ(-a) = e^(-|a|) σ(|a|)², here times the largest e^|a|
        force = expit(-values * q) * values * np.exp(np.abs(a).min() - np.abs(a)) * expit(np.abs(a)) ** 2
        total = force @ theta
        return total / np.linalg.norm(total)

    return solve_ivp(velocity, (0, length), p, method="LSODA", rtol=1e-8, atol=1e-8).y[:, -1]


def cosine_distance(p, q):
    return 1 - p @ q / np.linalg.norm(p) / np.linalg.norm(q)


# Two sequences with f = 1 push with σ(-1) each, and one with f = -γ pulls with γ σ(γ).
STRONGEST = brentq(lambda x: x * expit(x) - 2 * expit(-1), 0, 2)


@pytest.mark.parametrize(("pull", "holds"), [(0.999 * STRONGEST, True), (1.001 * STRONGEST, False)])
def test_repelled_tokens_must_outweigh_attracted_ones(pull, holds):
    """θ_3 = (θ_1 + θ_2)/2 has rate 1, and both others push along p_* = (1, 0)."""
    theta, values = np.array([[1.0, 1], [1, -1], [1, 0]]), np.array([1.0, 1, -pull])
    found = certificate(theta, values, np.array([FAR, 0.0]))
    assert found.attracting_rate == pytest.approx(1, abs=1e-12)
    assert found.attracting_component == 0
    assert found.holds == holds
    assert (found.outward > 0) == holds
    assert ("attracting forces" in found.reason) != holds
    end = follow(theta, values, np.array([FAR, 0.0]), 10.0)
    assert end[0] == pytest.approx(FAR + 10 if holds else FAR - 10, abs=1e-3)


@pytest.mark.parametrize(("norm", "holds"), [(FAR, False), (2 * FAR, True)])
def test_a_force_that_decays_faster_must_not_outweigh_the_others_yet(norm, holds):
    """The force along θ_3 has the rate 1.01, and is 100 times as large as the others without its factor."""
    theta, values = np.array([[1.0, 1], [1, -1], [1.01, 0]]), np.array([1.0, 1, -100 * STRONGEST])
    found = certificate(theta, values, np.array([norm, 0.0]))
    assert found.attracting_rate == pytest.approx(1.01, abs=1e-12)
    assert found.holds == holds
    end = follow(theta, values, np.array([norm, 0.0]), 10.0)
    assert end[0] == pytest.approx(norm + 10 if holds else norm - 10, abs=1e-3)


def test_forces_across_the_limit_must_be_stable():
    """θ_3 = (5 θ_1 - θ_2)/4 pulls the more, the smaller the second coordinate of p."""
    theta, values = np.array([[1.0, 1], [1, -1], [1, 1.5]]), np.array([1.0, 1, -0.1])
    for across, holds in ((0.0, True), (-2.6, False)):
        p = np.array([FAR, across])
        found = certificate(theta, values, p)
        assert found.holds == holds
        assert (found.outward > 0) == holds
        end = follow(theta, values, p, 200.0)
        assert (cosine_distance(end, np.array([1.0, 0])) < 1e-4) == holds


DRIFTING = np.array([[1.0, 1, 0], [1, -1, 0], [1.01, 0, 1]]), np.array([1.0, 1, -1])


@pytest.mark.parametrize(("norm", "holds"), [(200.0, False), (800.0, True)])
def test_a_force_that_decays_faster_must_not_draw_p_away_from_the_limit(norm, holds):
    """θ_3 has the rate 1.01, so its force grows like e^(-p_3) and decays like e^(-0.01 p_1).

    Up to a factor, dp_3/dp_1 = -a e^(-p_3 - 0.01 p_1), so p_3 diverges if 100 a e^(-0.01 p_1) > 1 at the
    given point. Both other forces point along p_* = (1, 0, 0).
    """
    p = np.array([norm, 0.0, 0.0])
    found = certificate(*DRIFTING, p)
    np.testing.assert_allclose(found.direction.p, [1, 0, 0], atol=1e-9)
    assert found.attracting_rate == pytest.approx(1.01)
    assert found.outward > 0.6
    assert found.holds == holds
    assert ("drift" in found.reason) != holds
    end = follow(*DRIFTING, p, 300.0)
    assert (cosine_distance(end, np.array([1.0, 0, 0])) < 1e-4) == holds


def test_a_force_that_decays_faster_must_not_draw_p_across_the_limit():
    """As above, with a force in the plane of the two others. It outweighs their stiffness at p."""
    theta, values = np.array([[1.0, 1], [1, -1], [1.01, 5]]), np.array([1.0, 1, -1.1])
    p = np.array([100.0, 0])
    found = certificate(theta, values, p)
    np.testing.assert_allclose(found.direction.p, [1, 0], atol=1e-9)
    assert found.outward > 0.2
    assert found.attracting_drift > 1
    assert not found.holds
    assert cosine_distance(follow(theta, values, p, 300.0), np.array([1.0, 0])) > 0.01


def test_a_force_that_decays_faster_must_not_move_p_to_an_unstable_point():
    """θ_3 attracts at rate 1, and the point is stable across p_* only above -2.6. θ_4 repels at rate 1.02.

    With 1,000 tokens below θ_4, its force exceeds the others until p_1 = 350, and moves p past -2.6.
    """
    theta, values = np.array([[1.0, 1], [1, -1], [1, 1.5], [1.02, -2]]), np.array([1.0, 1, -0.1, 1])
    p = np.array([100.0, 0])
    without = certificate(theta[:3], values[:3], p)
    assert without.holds
    assert cosine_distance(follow(theta[:3], values[:3], p, 300.0), without.direction.p) < 1e-4
    counts = np.array([1, 1, 1, 1000])
    found = certificate(theta, values, p, counts)
    np.testing.assert_allclose(found.direction.p, [1, 0], atol=1e-9)
    assert found.outward > 0.5
    assert not found.holds
    assert "drift" in found.reason
    assert cosine_distance(follow(theta, values, p, 300.0, counts), found.direction.p) > 0.1


def test_certified_paths_converge_and_inward_forces_are_never_certified(rng):
    """Random key differences and values, where an attracting term is a combination of two repelled ones."""
    outcomes = []
    for _ in range(60):
        repelled = rng.integers(-3, 4, size=(2, 2)).astype(float)
        if np.linalg.det(repelled) == 0:
            continue
        share = rng.choice([0.25, 0.5, 0.75, 1.5])
        theta = np.vstack([repelled, share * repelled[0] + (1 - share) * repelled[1]])
        values = np.append(rng.uniform(0.2, 2, 2), -rng.uniform(0.1, 1.5))
        limit = np.linalg.solve(repelled, np.ones(2))
        p = FAR * limit + rng.normal(size=2)
        found = certificate(theta, values, p)
        if np.linalg.norm(found.direction.p - limit) > 1e-6:
            continue  # the closest point satisfies one of the constraints strictly
        end = follow(theta, values, p, 100.0)
        converges = np.linalg.norm(end) > np.linalg.norm(p) + 50 and cosine_distance(end, limit) < 1e-4
        assert converges or not found.holds
        outcomes.append((found.holds, bool(converges)))
    assert {(True, True), (False, False)} <= set(outcomes)
    # A path may converge although the point is not yet close to the balance.
    assert outcomes.count((False, True)) <= len(outcomes) / 10


def gradient(scores, sequences, labels, p):
    """Return minus the gradient of the sum of logistic losses, in a loop over sequences with 60 digits."""
    total = mpmath.zeros(len(p), 1)
    for sequence, y in zip(sequences, labels, strict=True):
        E, value = mpmath.matrix(scores.keys[sequence]), list(map(mpmath.mpf, scores.values[sequence]))
        weights = [mpmath.exp(a) for a in E * p]
        f = mpmath.fdot(weights, value) / mpmath.fsum(weights)
        for i, weight in enumerate(weights):
            q = weight / mpmath.fsum(weights)
            total += y / (1 + mpmath.exp(y * f)) * q * (value[i] - f) * E[i, :].T
    return total


@pytest.mark.parametrize(
    ("sequences", "labels", "number"),
    [
        # Token 4 occurs below 0, 1 and both, so its differences from the top agree only modulo the tied one.
        pytest.param(
            [[0, 1], [0, 1], [0, 1, 1, 2], [0, 3, 4], [1, 4], [0, 4, 4], [0, 1, 4]],
            [1, -1, -1, 1, -1, -1, 1],
            3,
            id="first order",
        ),
        # The labels of equal sequences contradict each other, so only products of two terms are left.
        pytest.param(
            [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 1, 3]],
            [1, -1, 1, -1, 1, -1],
            3,
            id="second order",
        ),
        # Of three equal sequences, two have one label: f = log 2, with residuals of 1/3 and 2/3.
        pytest.param(
            [*[[0, 1]] * 3, *[[0, 1, 2]] * 3, *[[0, 1, 3]] * 3],
            [1, 1, -1] * 3,
            3,
            id="second order, residuals of two sizes",
        ),
    ],
)
def test_leading_terms_add_up_to_the_gradient_across_ties(rng, monkeypatch, sequences, labels, number):
    """Tokens 0 and 1 tie, because two sequences contradict each other."""
    E, values = rng.normal(size=(5, 6)), np.array([1.5, -0.5, 0.4, 2.0, 0.3])
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=5)
    scores, tie = ja.theory.Scores(E, corpus, values), E[0] - E[1]
    base, line = (mpmath.matrix(x) for x in (np.linalg.lstsq(E, np.array([22.0, 22, 0, 0.5, -0.5]))[0], tie))
    force = functools.partial(gradient, scores, sequences, labels)
    with mpmath.workdps(60):
        end = 2 / (tie @ tie)
        p = (
            base
            + mpmath.findroot(lambda z: (force(base + z * line).T * line)[0], (-end, end), "anderson") * line
        )
        exact, at = (np.array(x.tolist(), float).ravel() for x in (force(p), p))
    assert abs(tie @ at) > 0.1
    given = []
    monkeypatch.setattr(
        limit, "attraction", lambda *x: given.append(x) or Attraction(np.inf, 0.0, 0.0, np.inf)
    )
    top = np.isin(np.asarray(corpus.bags.index), [0, 1]) & (np.asarray(corpus.bags.count) > 0)
    ja.theory.certify_limit(scores, at, ja.theory.Selection(top))
    terms = leading_terms(*given[0][1:3])
    assert len(terms.sign) == number
    theta = E[terms.ends[:, 0]] - E[terms.ends[:, 1]] + (E[terms.ends[:, 2]] - E[terms.ends[:, 3]])
    total = (terms.sign * np.exp(terms.log_size - theta @ at)) @ theta
    across = np.eye(6) - np.outer(tie, tie) / (tie @ tie)
    np.testing.assert_allclose(across @ total, across @ exact, rtol=1e-6)
