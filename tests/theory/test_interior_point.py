import numpy as np
import pytest

from jaxattn.theory.interior_point import interior_point, isometric


def gap(rows, multipliers):
    """The relative duality gap, from the multipliers alone."""
    assert (multipliers >= 0).all()
    w = multipliers @ rows
    lower, upper = (rows @ w).min() / np.linalg.norm(w), np.linalg.norm(w) / multipliers.sum()
    return 1 - (lower / upper) ** 2


@pytest.fixture(scope="module")
def answers():
    """Problems of several sizes in five dimensions and what becomes of them, all solved side by side.

    Five with margins down to 0.03 of the longest row; the third again with every row three times; five
    with rows all around zero.
    """
    rng = np.random.default_rng(1)
    problems = []
    for pairs, margin in ((1, 1.0), (3, 0.3), (7, 0.1), (40, 0.1), (40, 0.03)):
        rows = rng.normal(size=(pairs, 5))
        rows[:, 0] = margin * (1 + rng.exponential(size=pairs))
        problems.append(rows / np.linalg.norm(rows, axis=1).max())
    problems.append(np.vstack([problems[2]] * 3))
    problems += [rng.normal(size=(40, 5)) / 3 for _ in range(5)]
    return list(zip(problems, interior_point(problems), strict=True))


def test_multipliers_are_right_to_rounding_without_help_from_another_solver(answers):
    for rows, (multipliers, iterations) in answers[:6]:
        assert multipliers.shape == (len(rows),)
        assert gap(rows, multipliers) < 1e-12
        # The predictor alone would take up to 17.
        assert 1 <= iterations <= 14


def test_rows_around_zero_sum_to_zero_with_the_multipliers(answers):
    for rows, (multipliers, _) in answers[6:]:
        assert (multipliers >= 0).all()
        assert np.linalg.norm(multipliers @ rows) < 1e-13 * multipliers.sum()


def test_rows_that_repeat_share_their_multiplier(answers):
    once, often = answers[2][1].multipliers, answers[5][1].multipliers.reshape(3, -1).sum(axis=0)
    np.testing.assert_allclose(often / often.sum(), once / once.sum(), atol=1e-8)


@pytest.mark.parametrize("seed", [177, 295, 438])
def test_a_corrector_that_leads_astray_does_not_go_round_in_a_circle(seed):
    """Most rows far from the nearest point: with the whole corrector every predictor comes to a tenth."""
    rows = np.random.default_rng(seed).normal(size=(6, 3)) / 3
    rows[:, 0] += 1
    rows = rows[[*range(6), *[5] * 18]] / np.linalg.norm(rows, axis=1).max()
    ((multipliers, iterations),) = interior_point([rows])
    assert iterations < 20
    assert gap(rows, multipliers) < 1e-12


def test_more_problems_than_run_side_by_side_have_each_their_own_answer(rng):
    """With two rows the answer is the point of a segment that is nearest to zero."""
    problems = [np.abs(rng.normal(size=(2, 2))) for _ in range(70)]
    for number, (rows, (multipliers, _)) in enumerate(zip(problems, interior_point(problems), strict=True)):
        a, b = rows
        share = np.clip(b @ (b - a) / ((a - b) @ (a - b)), 0, 1)
        got = multipliers / multipliers.sum()
        np.testing.assert_allclose(got, [share, 1 - share], atol=1e-10, err_msg=str(number))


def test_shorter_embeddings_have_the_same_inner_products(rng):
    E = rng.normal(size=(66, 4, 9))
    E[5, :2] = np.outer([1, 2], np.eye(9)[0])
    short = isometric(E)
    assert short.shape == (66, 4, 4)
    fine = np.arange(66) != 5
    np.testing.assert_allclose(short[fine] @ short[fine].mT, E[fine] @ E[fine].mT, atol=1e-13)
    # Two of the embeddings of this seed are dependent.
    assert np.isnan(short[5]).any()
