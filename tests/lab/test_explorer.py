"""The page of a path: numbers are those of loops in NumPy; in a browser, its slider moves everything."""

import html
import json
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError, RunError

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Sizes of the tests of the exact flow, whose programs serve here too.
V, POINTS = 12, 16


@pytest.fixture(scope="module")
def solved():
    corpus = ja.data.assumption1(jax.random.key(0), vocab_size=V, relevant=4, length=4, sequences=20)
    start = ja.models.one_layer.init(jax.random.key(1), vocab_size=V, dim=64)
    params = jax.jit(lambda x: ja.dynamics.one_step(x, corpus, step_size=100.0))(start)
    scores = ja.theory.scores.one_layer(params, corpus)
    path = ja.dynamics.exact_flow(scores, params.p, until_norm=1e3, points=POINTS)
    limit = ja.theory.max_margin(scores, path.selection)
    return scores, path, limit


@pytest.fixture(scope="module")
def page(solved):
    names = ["</script><b>", *(f"w{s}" for s in range(1, V))]
    return ja.explore(*solved, sequences=[3, 0, 11], tokens=names, title="A path & its limit")


@pytest.mark.more
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
        # The token of the end stands first.
        assert row["weights"][0][-1] == max(cells[-1] for cells in row["weights"])
        assert row["more"] == 0


@pytest.mark.more
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


def test_the_page_is_self_contained(page, tmp_path):
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    (data,) = re.findall(r"const D = (.*), N = ", text)
    assert json.loads(data) == page.data
    assert "</script><b>" not in text
    assert "A path &amp; its limit" in text
    assert not re.search(r"""(src|href)=["']|@import|url\(|fetch\(""", text)
    assert len(text) < 100_000


def test_a_notebook_shows_the_same_page_in_an_iframe(page):
    (held,) = re.findall(r'srcdoc="([^"]*)"', page._repr_html_())
    assert html.unescape(held) == page.html()
    assert repr(page) == "Explorer('A path & its limit', 16 points of the path)"


def test_long_sequences_and_repeated_rows_are_truncated(solved):
    scores, path, limit = solved
    again = path.replace(
        **{
            name: np.concatenate([getattr(path, name), getattr(path, name)[-1:]])
            for name in ("p", "arc_length", "norm", "log_gradient_norm", "log_time", "steps")
        }
    )
    assert len(ja.explore(scores, again, limit).data["norm"]) == POINTS
    rows = ja.explore(scores, path, limit).data["rows"]
    assert [row["label"] for row in rows] == ["+1"] * 6 + ["-1"] * 6
    lone = ja.data.from_sequences([list(range(V)), [0, 1]], [1, -1], vocab_size=V)
    (row, _) = ja.explore(scores.replace(corpus=lone), path, limit, sequences=[0, 1]).data["rows"]
    assert (len(row["tokens"]), row["more"]) == (10, V - 10)


def test_incompatible_arguments_raise_one_line_errors(solved, page, tmp_path):
    scores, path, limit = solved
    for change, said in (
        ({"path": path.replace(p=np.stack([path.p] * 2))}, "path: expected p"),
        (
            {"limit": limit.replace(status=np.int8(0), margin=np.float64(np.inf))},
            "not a max-margin direction",
        ),
        ({"tokens": ["a"]}, "tokens: 1 names for 12"),
        ({"sequences": [20]}, "indices from 0 to 19"),
    ):
        with pytest.raises(InputError, match=said):
            ja.explore(**({"scores": scores, "path": path, "limit": limit} | change))
    with pytest.raises(RunError, match="cannot be written"):
        page.write(tmp_path / "missing" / "page.html")


def opened(page, tmp_path, point):
    """What a browser makes of the page with its slider at a point."""
    path = page.write(tmp_path / "page.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    made = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", f"{path.as_uri()}#{point}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return html.unescape(made.stdout)


@pytest.mark.more
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_slider_updates_attention_plane_and_curves_together(page, tmp_path):
    seen = {}
    for point in (2, POINTS):
        text = opened(page, tmp_path, point)
        titles = re.findall(r'title="([^"]*): attention ([\d.]+)"', text)
        expected = [
            (name, f"{cells[point - 1] / 1000:.3f}")
            for row in page.data["rows"]
            for name, cells in zip(row["tokens"], row["weights"], strict=True)
        ]
        assert titles == expected
        assert f"point {point} of {POINTS}" in text
        dots = re.findall(r'<circle class="now"[^>]*c[xy]="[^>]*>', text)
        assert len(dots) == 3 + len(page.data["pairs"])
        seen[point] = dots, text.count("<polyline")
    assert seen[2][1] == seen[POINTS][1] == 6
    assert all(early != late for early, late in zip(seen[2][0], seen[POINTS][0], strict=True))


@pytest.mark.more
def test_limit_computed_for_a_different_selection_is_reported():
    """Two sequences of one bag balance 0 and 1 at a finite difference, where `selection` sees 0 alone."""
    corpus = ja.data.from_sequences([[0, 1, 2], [0, 1, 2], [3, 4]], [1, -1, 1], vocab_size=5)
    scores = ja.theory.Scores(np.eye(5), corpus, np.array([1.0, -1.2, -3, 1, -1]))
    path = ja.dynamics.exact_flow(scores, np.zeros(5), until_norm=1e5)
    tied = ja.theory.max_margin(scores, path.selection)
    assert "disagree" not in repr(ja.explore(scores, path, tied))
    alone = ja.theory.max_margin(scores, ja.theory.selection(path.p[-1], scores))
    page = ja.explore(scores, path, alone, tokens=list("abcde"))
    assert "disagree: a and b" in repr(page)
    assert "max_margin(scores, path.selection)" in page.html()
