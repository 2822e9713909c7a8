"""Margins of attention heads against plain NumPy, clarabel and loops; nulls; corrections."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from head_margins import margin_ratio, null_selections, selecting_sequences
from head_measures import HeadSettings, _kinds, compare, holm, measure_layer, verdicts
from transformer import Layer, TokenisedTexts


def layer(seed=0, n=12, length=7, dim=6, heads=2, size=3, rotary=False, bias=True, scale=4.0):
    """A layer with random inputs and weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, length, dim))
    lengths = rng.integers(length - 2, length + 1, n)
    # One pair of components turns by one radian per position; the third component does not turn.
    angles = np.arange(length)[:, None] * np.ones(2) if rotary else None
    return Layer(
        inputs=x,
        visible=np.arange(length) < lengths[:, None],
        query=x[:, 1],
        W_Q=scale * rng.normal(size=(heads, size, dim)),
        b_Q=rng.normal(size=(heads, size)) if bias else None,
        W_K=rng.normal(size=(heads, size, dim)),
        rotary=None if angles is None else (np.cos(angles), np.sin(angles)),
        position=np.ones(n, int),
    )


def texts(given):
    n, length = given.visible.shape
    tokens = np.array([[f"w{t}" for t in range(length)]] * n)
    return TokenisedTexts(
        np.zeros((n, length), int), given.visible, given.position, np.zeros((n, length), bool), tokens
    )


def rotate(x, angle):
    """Rotate the components (0, 1) of a key by an angle."""
    turned = x.copy()
    turned[0] = x[0] * np.cos(angle) - x[1] * np.sin(angle)
    turned[1] = x[1] * np.cos(angle) + x[0] * np.sin(angle)
    return turned


def by_loops(given, head, chosen, space):
    """Features of all pairs and the head's matrix as a vector, by loops over sequences and tokens."""
    features, size = [], given.W_Q.shape[1]
    W = given.W_Q[head] / np.sqrt(size)
    if given.b_Q is not None:
        W = np.concatenate([W, given.b_Q[head][:, None] / np.sqrt(size)], axis=1)
    for row, top in zip(chosen.rows, chosen.top, strict=True):
        z = given.query[row] if given.b_Q is None else np.append(given.query[row], 1)
        tokens = given.inputs[row]
        if space == "query":
            tokens = [given.W_K[head] @ x for x in tokens]
            if given.rotary is not None:
                tokens = [rotate(k, float(t - 1)) for t, k in enumerate(tokens)]
        for t in range(len(tokens)):
            if given.visible[row, t] and t != top:
                features.append(np.outer(tokens[top] - tokens[t], z).ravel())
    vector = (W if space == "query" else given.W_K[head].T @ W).ravel()
    return np.array(features), vector


@pytest.mark.parametrize(("space", "rotary"), [("query", False), ("query", True), ("frobenius", False)])
def test_margin_and_cosine_match_clarabel(space, rotary, clarabel_direction):
    given = layer(rotary=rotary)
    # Four queries do not span their space, in which W is then restricted.
    chosen = selecting_sequences(given, given.scores(0), 0.9).group(0, 4)
    found = margin_ratio(given, 0, chosen, space)
    features, vector = by_loops(given, 0, chosen, space)
    assert (features @ vector).min() > 0
    # Only the part of W in the span of the queries affects the scores.
    z = np.concatenate([given.query[chosen.rows], np.ones((len(chosen.rows), 1))], axis=1)
    projection = np.linalg.pinv(z) @ z
    vector = (vector.reshape(-1, z.shape[1]) @ projection).ravel()
    best = clarabel_direction(features)
    margin = (features @ vector).min() / np.linalg.norm(vector)
    assert found.margin == pytest.approx(margin, rel=1e-9)
    assert found.largest == pytest.approx(1 / np.linalg.norm(best), rel=1e-6)
    assert found.ratio == pytest.approx(margin * np.linalg.norm(best), rel=1e-6)
    cosine = vector @ best / np.linalg.norm(vector) / np.linalg.norm(best)
    assert found.cosine == pytest.approx(cosine, abs=1e-6)


def test_rotary_scores_depend_only_on_relative_positions():
    given = layer(rotary=True, bias=False)
    scores = given.scores(0)
    z, W = given.query[3], given.W_Q[0]
    for t in range(given.visible.shape[1]):
        if given.visible[3, t]:
            key = rotate(given.W_K[0] @ given.inputs[3, t], float(t))
            expected = key @ rotate(W @ z, 1.0) / np.sqrt(3)
            assert scores[3, t] == pytest.approx(expected, rel=1e-12)


def test_max_margin_matrix_has_margin_ratio_and_cosine_one(clarabel_direction):
    given = layer(bias=False)
    chosen = selecting_sequences(given, given.scores(0), 0.0)
    features, _ = by_loops(given, 0, chosen, "query")
    best = clarabel_direction(features).reshape(3, -1)
    trained = given._replace(W_Q=best[None].repeat(2, axis=0))
    found = margin_ratio(trained, 0, chosen, "query")
    assert found.ratio == pytest.approx(1, abs=1e-6)
    assert found.cosine == pytest.approx(1, abs=1e-6)


def test_equal_keys_do_not_make_the_problem_infeasible():
    given = layer(n=4)
    inputs = given.inputs.copy()
    chosen = selecting_sequences(given, given.scores(0), 0.0)
    inputs[0, (chosen.top[0] + 1) % 5] = inputs[0, chosen.top[0]]
    found = margin_ratio(given._replace(inputs=inputs), 0, chosen._replace(query=chosen.query), "query")
    assert found.status.name in ("SOLVED", "LOOSE")


def test_null_baselines_preserve_the_scale_of_the_queries():
    given = layer(n=400, dim=4)
    keys, rng = given.keys(0), np.random.default_rng(0)
    for null in ("shuffled", "covariance"):
        (other,) = null_selections(given, 0, keys, 400, null, 1, rng)
        assert sorted(other.rows) == list(range(400))
        z = other.query[:, :-1]
        if null == "shuffled":
            assert not (z == given.query[other.rows]).all(axis=1).any()
            np.testing.assert_allclose(np.sort(z, axis=0), np.sort(given.query, axis=0))
        else:
            visible = given.inputs[given.visible]
            np.testing.assert_allclose(np.cov(z.T), np.cov(visible.T), atol=0.3)


def test_matched_null_baseline_shifts_all_queries_by_the_same_vector():
    given = layer()
    (other,) = null_selections(given, 0, given.keys(0), 12, "matched", 1, np.random.default_rng(0))
    moved = other.query[:, :-1] - given.query
    np.testing.assert_allclose(moved, moved[:1].repeat(12, axis=0), atol=1e-12)
    assert np.abs(moved).max() > 0.1


@pytest.mark.parametrize(("of_groups", "of_draws"), [(1.0, 0.0), (0.1, 1.0), (1.0, 1.0)])
def test_intervals_cover_zero_under_group_and_draw_variation(of_groups, of_draws):
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        groups, draws = of_groups * rng.normal(size=(1, 8)), of_draws * rng.normal(size=(10, 1))
        _, low, high, p = compare(groups + draws + 0.1 * rng.normal(size=(10, 8)), 0.95)
        covered += low <= 0 <= high
        assert (low <= 0 <= high) == (p >= 0.05)
    assert covered >= 0.93 * 400


def test_holm_correction_matches_its_definition():
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    assert len(holm(np.zeros(0))) == 0
    np.testing.assert_allclose(holm(np.array([0.01, np.nan, 0.04])), [0.02, np.nan, 0.04])


def test_null_baseline_without_spread_has_no_verdict():
    """Two groups, two draws: equal differences allow no comparison, and different ones do."""
    keys = [("none", 0, g, 0.5 + 0.1 * g) for g in range(2)]
    for spread, expected in ((0.0, "not defined"), (0.2, "inconclusive")):
        null = [("covariance", d, g, 0.4 + 0.1 * g + spread * (d - g)) for d in range(2) for g in range(2)]
        margins = pd.DataFrame(keys + null, columns=["null", "draw", "group", "cosine"])
        margins = margins.assign(space="query", ratio=1.0, layer=0, head=0)
        heads = pd.DataFrame({"layer": [0], "head": [0], "kind": ["first"]})
        (row,) = verdicts(heads, margins).to_dict("records")
        assert (row["verdict"], row["groups"]) == (expected, 2)
        assert np.isnan([row["corrected"], row["low"]]).all() == (spread == 0)


@pytest.mark.more
def test_only_the_max_margin_head_is_closer_than_its_null_baselines(clarabel_direction):
    settings = HeadSettings(share=0.0, group=10, draws=5, nuclear=0)
    random = layer(n=60, dim=20, heads=1, size=6, bias=False)
    features, _ = by_loops(random, 0, selecting_sequences(random, random.scores(0), 0.0), "query")
    trained = random._replace(W_Q=clarabel_direction(features).reshape(1, 6, 20))
    for given, expected in ((trained, "closer"), (random, "inconclusive")):
        heads, margins = measure_layer(given, None, texts(given), 0, settings)
        assert heads["has_selection"].all()
        assert (verdicts(heads, margins)["verdict"] == expected).all()
        assert (margins["gap"] < 1e-8).all()


def test_tutorial_solves_a_problem_without_a_transformer(capsys):
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "heads.md").read_text(encoding="utf-8")
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(compile(code, "heads.md", "exec"), names)
    assert capsys.readouterr().out == "SOLVED (3, 3) True\n"
    pairs = zip(names["differences"], names["queries"][[0, 0, 1]], strict=True)
    assert min(u @ names["best"].matrix @ z for u, z in pairs) == pytest.approx(1)


def test_head_that_selects_no_tokens_has_no_margins():
    given = layer(scale=0.01)
    heads, margins = measure_layer(given, None, texts(given), 3, HeadSettings(group=3))
    assert not heads["has_selection"].any()
    assert margins.empty
    assert verdicts(heads, margins).empty


def test_selected_tokens_are_classified_by_kind():
    given = layer()
    chosen_rows = np.arange(5)
    scores = np.full((12, 7), -9.0)
    scores[:, 5] = 5
    scores[chosen_rows, [0, 1, 2, 3, 4]] = 50
    special = np.zeros((12, 7), bool)
    special[3, 3] = True
    own = texts(given)._replace(special=special)
    visible = given._replace(visible=np.ones((12, 7), bool))
    found = _kinds(selecting_sequences(visible, scores, 0.9), own)
    assert list(found[:5]) == ["first", "itself", "neighbour", "separator", "other"]
    assert pd.Series(found[5:]).eq("other").all()
