"""Points that look like limits, but where small forces move p away, compared with the exact force on p.

The forces are sums over sequences in mpmath. At the points used here, tied tokens are in equilibrium, or no
force of order one acts on them.
"""

import mpmath
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import Scores, Selection, certify_limit

DIGITS = 300


def problem(keys, values, sequences, labels, num_classes=2):
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=len(keys), num_classes=num_classes)
    return Scores(np.array(keys, float), corpus, np.array(values, float))


def certificate(scores, top, p):
    """Return the certificate for the selection of these tokens in every sequence."""
    bags = scores.corpus.bags
    mask = np.isin(np.asarray(bags.index), top) & (np.asarray(bags.count) > 0)
    return certify_limit(scores, np.array(p, float), Selection(mask))


def force(keys, values, sequences, labels, p):
    """Return minus the gradient of the sum of logistic losses, as a list of mpmath numbers."""
    total = [mpmath.mpf(0)] * len(p)
    for sequence, y in zip(sequences, labels, strict=True):
        weights = [mpmath.exp(mpmath.fdot(keys[s], p)) for s in sequence]
        size = mpmath.fsum(weights)
        f = mpmath.fdot(weights, [values[s] for s in sequence]) / size
        for s, weight in zip(sequence, weights, strict=True):
            c = y / (1 + mpmath.exp(y * f)) * weight / size * (values[s] - f)
            total = [x + c * mpmath.mpf(e) for x, e in zip(total, keys[s], strict=True)]
    return total


def follow(given, p, length):
    """Follow the force in steps of arc length 1, where no force of order one acts."""
    with mpmath.workdps(DIGITS):
        p = [mpmath.mpf(x) for x in p]
        for _ in range(length):
            pull = force(*given, p)
            size = mpmath.norm(pull)
            p = [x + y / size for x, y in zip(p, pull, strict=True)]
        return np.array([float(x) for x in p])


def settle(given, p, line, digits=DIGITS):
    """Move p along a line of tied differences to the point where the force along the line is zero."""
    with mpmath.workdps(digits):

        def at(z):
            return [mpmath.mpf(x) + z * y for x, y in zip(p, line, strict=True)]

        z = mpmath.findroot(lambda z: mpmath.fdot(force(*given, at(z)), line), (-0.1, 0.1), "anderson")
        return force(*given, at(z))


# Tokens 0 and 1 have the same value, so no force of order one acts on them.
SLOW = [[1, 0], [1, 1], [0, 0]], [1, 1, -3], [[0, 1, 2]], [1]


def test_a_force_on_the_mean_of_tied_tokens_separates_them():
    """The force is along (1, q_1), and q_1 = σ(p_2) increases, so token 1 ends alone on top."""
    found = certificate(problem(*SLOW), [0, 1], [100, 0])
    np.testing.assert_allclose(found.direction.p, [1, 0], atol=1e-12)
    assert not found.holds
    assert "loose directions" in found.reason
    end = follow(SLOW, [100.0, 0], 400)
    assert end[1] > 200


CURVE = [[1, 0, 0], [0, 1, 0], [-1, -1, 0], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(("tilt", "holds"), [(0.0, True), (2.0**-45, False)])
def test_loose_directions_must_be_exactly_orthogonal_to_other_forces(tilt, holds):
    """Token 0, 1 and 2 occur under both labels and balance on a curve. Token 3 is repelled from 4."""
    keys = [*CURVE[:3], [tilt, 0, 1], CURVE[4]]
    scores = problem(keys, [1, -1, 0, 1, 0], [[0, 1, 2], [0, 1, 2], [3, 4]], [1, -1, 1])
    found = certificate(scores, [0, 1, 2, 3], [0, 0, 400])
    assert found.isolated == holds
    if holds:
        assert found.holds


def test_forces_of_tokens_below_a_curve_of_equilibria_are_not_certified():
    """Token 3 is repelled from the mean of tokens 0, 1 and 2, whose weights change along the curve."""
    keys = [*CURVE[:3], [0, 0, -1], [0, 0, -2]]
    sequences, labels = [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4]], [1, -1, 1, -1]
    found = certificate(problem(keys, [1, -1, 0, -3, 3], sequences, labels), [0, 1, 2], [0, 0, 100])
    assert found.direction.feasible
    assert found.attracting_rate == np.inf
    assert not found.isolated


@pytest.mark.parametrize(("tilt", "holds"), [(0.0, True), (2.0**-45, False)])
def test_tokens_with_equal_values_may_tie_only_if_no_force_separates_them(tilt, holds):
    """(0, 1) occurs under both labels, (2, 3) exerts no force, and token 4 is repelled from 5."""
    keys = [[1, 0, 0], [-1, 0, 0], [1, 1, tilt], [1, -1, 0], [0, 0, 1], [0, 0, 0]]
    scores = problem(keys, [1, -1, 0.5, 0.5, 1, 0], [[0, 1], [0, 1], [2, 3], [4, 5]], [1, -1, 1, 1])
    found = certificate(scores, range(5), [0, 0, 400])
    assert found.isolated == holds
    assert found.holds == holds, found.reason


@pytest.mark.parametrize(("scale", "isolated"), [(1, True), (2, False)])
def test_bags_with_dependent_outputs_are_not_known_to_have_a_common_minimum(scale, isolated):
    """The outputs of both bags are zero on the same curve. If their values are equal, both are one bag."""
    keys, values = [*CURVE[:3], *CURVE[:3]], np.array([1, -1, 0.5])
    sequences, labels = [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]], [1, -1, 1, -1]
    scores = problem(keys, np.concatenate([values, scale * values]), sequences, labels)
    found = certificate(scores, range(6), [0, np.log((1 + np.sqrt(3)) / 2), 0])
    assert found.gradient < 1e-12
    assert found.isolated == isolated
    assert found.holds == isolated


@pytest.mark.parametrize(("small", "expected"), [(1.0, [1, 0.1, 0]), (1e-4, None)])
def test_tied_tokens_that_compensate_a_token_incompletely_do_not_cancel_its_force(small, expected):
    """0 and 1 compensate token 2, and 4 and 5 resist, with a fraction small² of the curvature.

    The second-order force on token 2 is of size small² e^(-0.8 p_1), and along (.4, 1, 0).
    """
    keys = [[0, 0, 0], [0, 0, 1], [-0.4, -1, 0], [-1, 0, 0], [0, 0, 0], [0, 0, 1]]
    given = (
        keys,
        [1, -1, 0.5, -2, small, -small],
        [[0, 1, 2], [0, 1, 2], [4, 5], [4, 5], [0, 3]],
        [1, -1, 1, -1, 1],
    )
    p = 200 * np.array(expected or [1.0, 0, 0])
    found = certificate(problem(*given), [0, 1, 4, 5], p)
    assert found.holds == (expected is not None), found.reason
    if expected is not None:
        np.testing.assert_allclose(found.direction.p, expected, atol=1e-9)
        return
    assert "unknown order" in found.reason
    pull = settle(given, p, [0, 0, 1])
    assert pull[0] > mpmath.exp(-190)  # the force on token 3 is e^-200
    np.testing.assert_allclose(float(pull[1] / pull[0]), 2.5, rtol=1e-6)


@pytest.mark.parametrize("delta", [1e-10, -1e-10, 1e-8])
def test_a_distance_from_the_equilibrium_must_not_hide_a_force(delta):
    """Token 2 has the value δ, and the tied tokens balance at 0. The point is at least 2 |δ| from there."""
    keys = [[0, 0, 0], [0, 0, 1], [-0.6, -1, 0], [-1, 0, 0]]
    given = keys, [1, -1, delta, -2], [[0, 1, 2], [0, 1], [0, 3]], [1, -1, 1]
    p = np.array([100, 0, max(2 * abs(delta), 1e-9)])
    found = certificate(problem(*given), [0, 1], p)
    np.testing.assert_allclose(found.direction.p, [1, 0, 0], atol=1e-12)
    assert not found.holds
    assert found.unknown_rate == pytest.approx(0.6)
    pull = settle(given, p, [0, 0, 1])
    assert abs(pull[1]) > mpmath.exp(-90)  # the force on token 3 is e^-100
    assert np.sign(float(pull[1] * mpmath.exp(60))) == -np.sign(delta)


@pytest.mark.parametrize(("rate", "holds"), [(0.6, True), (0.1, False)])
def test_forces_that_cancel_between_different_bags_are_only_known_to_second_order(rate, holds):
    """Token 1 has the counts 1, 1 and 2 below 0, and is repelled to second order, so its rate is 1/2.

    Token 2 has the value of 0 and exerts no force of its own, but may occur in higher orders.
    """
    keys = [[0, 0], [-0.4, -1], [-rate, 0], [-1, 0]]
    sequences, labels = [[0, 1], [0, 1], [0, 1, 1], [0, 2], [0, 3]], [1, 1, -1, 1, 1]
    found = certificate(problem(keys, [0, 2, 0, -2], sequences, labels), [0], [1000, 100])
    np.testing.assert_allclose(found.direction.p, [1, 0.1], atol=1e-9)
    assert found.unknown_rate == pytest.approx(0.5 + min(rate, 0.5))
    assert found.holds == holds


@pytest.mark.parametrize(("value", "holds"), [(0.0, True), (1e-14, False)])
def test_a_value_must_be_exactly_that_of_the_output_to_exert_no_force(value, holds):
    """Tokens 0 and 1 balance at f = 0, and token 2 has this value, up to 1e-14.

    They compensate only part of its effect, because it is not in all bags. The second-order force on token 2
    is of size 1e-28 e^(-0.92 s), and that on token 3 of size e^(-s).
    """
    keys = np.array([[1.08, -1.06, 0.98], [0.86, 0.92, -0.72], [0.1, -1.08, 0.87], [-0.1, 0, 0]])
    values, labels = [-0.7, 0.3, value, 1.0], [1, -1] * 4
    sequences = [*[[0, 1]] * 2, *[[0, 1, 2]] * 2, *[[0, 1, 2, 3]] * 4]
    tie, apart = keys[0] - keys[1], keys[0] - keys[3]
    across = apart - (apart @ tie) / (tie @ tie) * tie
    limit = across / (2 * apart @ across)  # token 3 has a rate of 1/2
    p = 1200 * limit + np.log(3 / 7) / (tie @ tie) * tie
    found = certificate(problem(keys, values, sequences, labels), [0, 1], p)
    assert found.holds == holds, found.reason
    np.testing.assert_allclose(found.direction.p, limit, rtol=1e-9)
    if not holds:
        with mpmath.workdps(2200):
            exact = [list(map(mpmath.mpf, row)) for row in keys.tolist()]
            edge = [x - y for x, y in zip(exact[0], exact[1], strict=True)]
            pull = settle((exact, values, sequences, labels), p, edge, 2200)
            # Across the tie, the force is along E_0 - E_2, not E_0 - E_3.
            rows = [[x - y for x, y in zip(exact[0], exact[k], strict=True)] for k in (2, 3)]
            flat = [
                [
                    x - mpmath.fdot(row, edge) / mpmath.fdot(edge, edge) * e
                    for x, e in zip(row, edge, strict=True)
                ]
                for row in rows
            ]
            cosine = [mpmath.fdot(pull, row) / mpmath.norm(pull) / mpmath.norm(row) for row in flat]
        assert cosine[0] > 0.99999 > cosine[1]


@pytest.mark.parametrize(("labels", "holds"), [([1, -1, 1, -1], True), ([1, -1, 1, 1], False)])
def test_bags_with_the_same_top_tokens_and_label_shares_have_a_common_minimum(labels, holds):
    """p is 1e-9 away from the balance of 0 and 1, in bags with and without token 2 below them."""
    sequences = [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [3, 4]]
    scores = problem(np.eye(5), [1, -1, 0.3, 1, 0], sequences, [*labels, 1])
    p = 1000 * np.array([1.0, 1, -2, 3, -3]) / 6 + 1e-9 * np.eye(5)[0]
    found = certificate(scores, [0, 1, 3], p)
    assert found.holds == holds, found.reason
