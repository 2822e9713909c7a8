"""The numbers of the figure are those of loops in NumPy."""

import numpy as np
import pytest

import jaxattn as ja


def test_attention_matches_a_loop_over_tokens(solved, page):
    scores, path, _ = solved
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(scores.corpus))
    E = np.asarray(scores.keys, np.float64)
    for row, number in zip(page.data["rows"], (3, 0, 11), strict=True):
        held = ids[number][mask[number]]
        for k, p in enumerate(np.asarray(path.p)):
            weight = np.exp(E[held] @ p - (E[held] @ p).max())
            of_token = {s: weight[held == s].sum() / weight.sum() for s in dict.fromkeys(held.tolist())}
            shown = [cells[k] / 1000 for cells in row["weights"]]
            np.testing.assert_allclose(sorted(shown), sorted(of_token.values()), rtol=0, atol=5.001e-4)
        assert row["label"] == f"{int(scores.corpus.targets[number]):+d}"
        # The token that is selected at the end is the first.
        assert row["weights"][0][-1] == max(cells[-1] for cells in row["weights"])
        assert row["more"] == 0


def test_scores_match_products_and_are_sorted_by_the_last_point(solved, page):
    scores, path, _ = solved
    E, p = np.asarray(scores.keys, np.float64), np.asarray(path.p, np.float64)
    names = ["</script><b>", *(f"w{s}" for s in range(1, len(E)))]
    ids, mask = map(np.asarray, ja.models.reference.padded_sequences(scores.corpus))
    best = {
        int(held[(E[held] @ p[-1]).argmax()])
        for held in (row[real] for row, real in zip(ids, mask, strict=True))
    }
    shown = page.data["tokens"]
    assert sorted(token["name"] for token in shown) == sorted(names)
    for token in shown:
        s = names.index(token["name"])
        expected = [E[s] @ each / np.linalg.norm(each) for each in p]
        np.testing.assert_allclose(token["score"], expected, rtol=6e-3, atol=1e-6)
        assert token["selected"] == (s in best)
    last = [token["score"][-1] for token in shown]
    assert last == sorted(last, reverse=True)


def test_curves_and_pairs_match_explicit_formulas(solved, page):
    scores, path, limit = solved
    p, unit = np.asarray(path.p, np.float64), limit.p / np.linalg.norm(limit.p)
    norm = np.linalg.norm(p, axis=1)
    np.testing.assert_allclose(page.data["norm"], norm, rtol=1e-4)
    np.testing.assert_allclose(page.data["along"], p @ unit, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(page.data["away"], 1 - p @ unit / norm, rtol=1e-3, atol=1e-9)
    # One direction holds at most what p has moved at right angles to the ray, and here nearly all of it.
    right = p - (p @ unit)[:, None] * unit
    moved = np.linalg.norm(right - right[0], axis=1)
    assert (np.abs(page.data["off"]) <= moved * (1 + 1e-4) + 1e-6).all()
    assert np.abs(page.data["off"]).max() > 0.8 * moved.max()
    assert page.data["time"][0] is None
    np.testing.assert_allclose(page.data["time"][1:], np.asarray(path.log_time)[1:], rtol=1e-4)
    E, shown = np.asarray(scores.keys, np.float64), page.data["pairs"]
    assert len(shown) == min(24, len(limit.pairs))
    order = np.argsort(-np.asarray(limit.multipliers), kind="stable")
    for pair, (s, t), multiplier in zip(
        shown, np.asarray(limit.pairs)[order], np.asarray(limit.multipliers)[order], strict=False
    ):
        assert pair["multiplier"] == pytest.approx(multiplier, rel=1e-3)
        expected = p @ (E[s] - E[t]) / norm * np.linalg.norm(limit.p)
        np.testing.assert_allclose(pair["margin"], expected, rtol=1e-3, atol=1e-4)
        assert pair["margin"][-1] == pytest.approx(1, abs=0.05)
