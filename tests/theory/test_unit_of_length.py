"""Problems in another unit of length, in another order and with the sign turned have the same answers.

Multiplication by a power of two is exact in floating point, so results are equal bitwise once it is undone.
"""

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import (
    Scores,
    Selection,
    bilinear_max_margin,
    certify_limit,
    certify_max_margin,
    constraints,
    differentiable_direction,
    max_margin,
    max_margin_batch,
    one_minus_cosine,
    relaxed_max_margin,
)

# Powers of the unit of length with which the fields of a solution scale.
SOLUTION = {
    "p": -1,
    "margin": 1,
    "margin_bound": 1,
    "multipliers": -2,
    "tie_multipliers": -2,
    **dict.fromkeys(("pairs", "ties", "primal_residual", "dual_residual", "duality_gap"), 0),
    "iterations": 0,
    "status": 0,
}
LIMIT = dict.fromkeys(
    (
        *("angle", "distance", "gradient", "curvature", "untied", "attracting_rate"),
        *(
            "attracting_component",
            "attracting_drift",
            "isolated",
            "outward",
            "cancelled_rate",
            "cancelled_cosine",
            "unknown_rate",
            "resolved",
            "reason",
        ),
    ),
    0,
)
BILINEAR = {"matrix": -1, "margin": 1, "margin_bound": 1, "status": 0}
VOCAB = 9


def assert_same(one, other, unit, powers):
    """Compare two results, the other one computed for keys multiplied by `unit`, bitwise."""
    if not getattr(one, "feasible", True):  # the multipliers of a proof have the sum 1
        powers = powers | {"multipliers": 0, "tie_multipliers": 0}
    for name, power in powers.items():
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        np.testing.assert_array_equal(a, b if a.dtype.kind == "U" else b * unit**-power, err_msg=name)


def draw(seed):
    """Draw keys of similar or different lengths, values, sequences, labels, top tokens and a parameter."""
    rng = np.random.default_rng(seed)
    E = rng.normal(size=(VOCAB, int(rng.integers(3, 12))))
    if seed % 2:
        E *= 10.0 ** rng.integers(-6, 6, size=(VOCAB, 1))
    sequences = [rng.choice(VOCAB, 4, replace=False).tolist() for _ in range(6)]
    labels, values = rng.choice([-1, 1], 6).tolist(), rng.normal(size=VOCAB)
    tops = [max(each, key=(E @ rng.normal(size=E.shape[1])).__getitem__) for each in sequences]
    ties = [each for each in sequences[0] if each not in tops][:1] if seed % 3 else []
    return E, values, sequences, labels, {*tops, *ties}, rng.normal(size=E.shape[1])


def posed(E, values, sequences, labels, top):
    """Return scores and the selection of the given tokens."""
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=VOCAB)
    bags = corpus.bags
    mask = np.isin(np.asarray(bags.index), list(top)) & (np.asarray(bags.count) > 0)
    return Scores(E, corpus, values), Selection(mask)


def single(E, values, sequences, labels, p):
    """Return scores and the selection of the highest token alone."""
    scores, _ = posed(E, values, sequences, labels, ())
    return scores, ja.theory.selection(p, scores, tie=0.0)


@pytest.mark.parametrize("power", [-200, -50, 3, 50, 200])
@pytest.mark.more
def test_results_do_not_depend_on_the_unit_of_length(power):
    unit = 2.0**power
    for seed in range(6):
        E, values, sequences, labels, top, p = draw(seed)
        scores, chosen = posed(E, values, sequences, labels, top)
        scaled = scores.replace(keys=E * unit)
        solution = max_margin(scores, chosen)
        assert_same(solution, max_margin(scaled, chosen), unit, SOLUTION)
        one, other = certify_limit(scores, 100 * p, chosen), certify_limit(scaled, 100 * p / unit, chosen)
        assert_same(one, other, unit, LIMIT)
        assert_same(one.direction, other.direction, unit, SOLUTION)
        if seed < 2:
            alone = single(E, values, sequences, labels, p)[1]
            a, b = relaxed_max_margin(scores, alone), relaxed_max_margin(scaled, alone)
            assert_same(a.query, b.query, unit, SOLUTION)
            assert_same(a.head, b.head, unit, SOLUTION)
            both = Scores(np.stack([E, E * unit]), scores.corpus)
            batch = max_margin_batch(both, Selection(np.stack([chosen.mask] * 2)))
            np.testing.assert_array_equal(batch.p[0], batch.p[1] * unit)


@pytest.mark.parametrize("power", [-200, 3, 200])
def test_certificates_in_other_norms_do_not_depend_on_the_unit_of_length(power):
    E, values, sequences, labels, _, p = draw(0)
    scores, chosen = single(E, values, sequences, labels, p)
    found, unit = constraints(scores.corpus, chosen), 2.0**power
    weights = np.arange(1.0, len(found.better) + 1)
    for q in (1.0, 1.5, 2.0, np.inf):
        one = certify_max_margin(E, found, weights, np.zeros(0), p=p, q=q)
        other = certify_max_margin(E * unit, found, weights, np.zeros(0), p=p / unit, q=q)
        assert one.feasible
        assert_same(one, other, unit, SOLUTION)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_bilinear_problems_do_not_depend_on_the_units_of_length(rng, norm):
    u, z, sequence = 1 + rng.normal(size=(8, 3)), 1 + rng.normal(size=(4, 3)), rng.integers(0, 4, 8)
    one = bilinear_max_margin(u, z, sequence, norm=norm)
    for power in (-200, -50, 3, 200):
        unit = 2.0**power
        assert_same(one, bilinear_max_margin(u * unit, z, sequence, norm=norm), unit, BILINEAR)
        assert_same(one, bilinear_max_margin(u, z * unit, sequence, norm=norm), unit, BILINEAR)


def test_an_inexact_solution_has_no_derivative_in_any_unit():
    """‖p‖² is of order 1e-30 for long keys, which an absolute tolerance would accept."""
    E, values, sequences, labels, _, p = draw(0)
    scores, chosen = single(E, values, sequences, labels, p)
    for unit in (2.0**-50, 1.0, 2.0**50):
        solution = max_margin(scores.replace(keys=E * unit), chosen)
        differentiable_direction(E * unit, solution)
        with pytest.raises(ja.InputError, match="inexact"):
            differentiable_direction(E * unit, solution.replace(multipliers=2 * solution.multipliers))


def test_results_do_not_depend_on_the_order_of_tokens_and_sequences(rng):
    for seed in (0, 2, 4, 6, 8):
        E, values, sequences, labels, top, p = draw(seed)
        place, order = rng.permutation(VOCAB), rng.permutation(len(sequences))
        moved = np.empty_like(E)
        moved[place] = E
        others = posed(
            moved,
            values[np.argsort(place)],
            [place[sequences[k]].tolist() for k in order],
            [labels[k] for k in order],
            place[list(top)],
        )
        scores, chosen = posed(E, values, sequences, labels, top)
        assert_close(max_margin(scores, chosen), max_margin(*others))
        p = p / np.abs(E).max()  # attention on every token
        one, other = certify_limit(scores, p, chosen), certify_limit(others[0], p, others[1])
        assert_close(one.direction, other.direction)
        assert (
            one.reason.partition(",")[0].partition("(")[0] == other.reason.partition(",")[0].partition("(")[0]
        )


@pytest.mark.more
def test_results_do_not_depend_on_the_sign_of_values_and_labels():
    for seed in range(6):
        E, values, sequences, labels, top, p = draw(seed)
        one = certify_limit(*insert(posed(E, values, sequences, labels, top), 100 * p))
        turned = posed(E, -values, sequences, [-y for y in labels], top)
        other = certify_limit(*insert(turned, 100 * p))
        assert_close(one.direction, other.direction)
        assert_same(one, other, 1.0, LIMIT)


def insert(problem, p):
    return problem[0], p, problem[1]


def assert_close(one, other):
    """Compare two solutions up to rounding, and their status exactly."""
    assert one.status == other.status
    if one.feasible and one.p.any():
        np.testing.assert_allclose(one.margin, other.margin, rtol=1e-9)
        assert one_minus_cosine(one.p, other.p) < 1e-12
