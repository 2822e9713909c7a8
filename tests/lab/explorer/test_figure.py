"""The figure of a path: without scripts it shows the end of the path; in a browser, its slider moves it."""

import html
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.explorer import charts

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
V, POINTS = 12, 16


def state(text):
    """Return the data that the script of a page reads."""
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def cells(text):
    """Return the tokens and attention of the table of a page, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    found = [re.findall(r"<td[^>]*>([^<]*)<small>([\d.]+)</small>", row) for row in rows]
    return [[(html.unescape(name), weight) for name, weight in row] for row in found]


def test_the_page_and_the_figure_are_self_contained(page, tmp_path):
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    for part in (text, page.figure()):
        assert "</script><b>" not in part
        assert "A path &amp; its limit" in part
        assert not re.search(r"""(src|href)=["']|@import|url\(|fetch\(|https?://""", part)
        assert len(part) < 100_000
    assert "<html" not in page.figure()
    assert "<figcaption>A path &amp; its limit</figcaption>" in page.figure()
    assert text.count("A path &amp; its limit</") == text.count("<h1>A path &amp; its limit</h1>") == 1
    assert page.figure().count("<figure") == page.figure().count("</figure>") == 1


def test_data_of_the_script_match_the_numbers(page):
    data = state(page.figure())
    assert data["attention"] == [row["weights"] for row in page.data["rows"]]
    assert data["scores"] == [token["score"] for token in page.data["tokens"]]
    for k, text in enumerate(data["readouts"]):
        time, away, norm = (page.data[name][k] for name in ("time", "away", "norm"))
        numbers = [
            float(x)
            for x in re.findall(
                r"-?[\d.]+(?:e-?\d+)?", text.replace(charts.MINUS, "-").replace("1 - cos", "")
            )
        ]
        expected = [time or 0, away, math.degrees(math.acos(1 - away)), norm]
        np.testing.assert_allclose(numbers, expected, rtol=6e-3, atol=1e-7)
    for name in ("time", "norm", "plane"):
        assert len(data["curves"][name]) == POINTS


def test_without_scripts_the_figure_shows_the_end_of_the_path(page):
    text = page.figure()
    data = state(text)
    shown = [
        [
            (name, f"{weights[-1] / 1000:.2f}")
            for name, weights in zip(row["tokens"], row["weights"], strict=True)
        ]
        for row in page.data["rows"]
    ]
    assert cells(text) == shown
    assert f">{html.escape(data['readouts'][-1])}</output>" in text
    dots = re.findall(r'<circle class="now" r="5" cx="([\d.]+)" cy="([\d.]+)"/>', text)
    assert [",".join(dot) for dot in dots] == [data["curves"][name][-1] for name in ("time", "norm", "plane")]
    margins = re.findall(r'<circle class="now margin" r="4.5" cx="([\d.]+)"', text)
    assert [float(x) for x in margins] == [row[-1] for row in data["margins"]]
    scores = re.findall(r'<circle class="token [a-z]+" r="3.5" cx="[\d.]+" cy="([\d.]+)"', text)
    zero, unit = data["scale"]
    np.testing.assert_allclose(
        [float(y) for y in scores], [zero + unit * row[-1] for row in data["scores"]], atol=0.06
    )


def test_the_slider_is_a_labelled_input_that_starts_at_the_end(page):
    text = page.figure()
    (slider,) = re.findall(r"<input [^>]*>", text)
    given = dict(re.findall(r'([a-z-]+)="([^"]*)"', slider))
    assert (given["type"], given["min"], given["max"], given["value"]) == ("range", "0", "15", "15")
    assert given["aria-label"]
    assert html.unescape(given["aria-valuetext"]) == state(text)["readouts"][-1]
    # Without scripts, the controls do not work and are hidden.
    assert '<div class="bar" hidden>' in text
    assert "<button type=" in text
    assert len(re.findall(r'<svg [^>]*role="img" aria-label="[^"]+"', text)) == text.count("<svg")
    assert '<div class="wide" tabindex="0" role="region" aria-label=' in text


def test_a_notebook_shows_the_page_in_an_iframe(page):
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
    alone = scores.replace(corpus=lone)
    found = path.replace(selection=ja.theory.selection(path.p[-1], alone))
    (row, _) = ja.explore(alone, found, limit, sequences=[0, 1]).data["rows"]
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
        with pytest.raises(ja.InputError, match=said):
            ja.explore(**({"scores": scores, "path": path, "limit": limit} | change))
    with pytest.raises(ja.RunError, match="cannot be written"):
        page.write(tmp_path / "missing" / "page.html")


def opened(page, tmp_path, point):
    """Return what a browser makes of the page with its slider at a point."""
    path = tmp_path / "page.html"
    path.write_text(page.html().replace(f'value="{POINTS - 1}"', f'value="{point}"'), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    made = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120
    )
    return made.stdout


@pytest.mark.more
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_slider_updates_attention_scores_and_curves_together(page, tmp_path):
    seen = {}
    for point in (1, POINTS - 1):
        text = opened(page, tmp_path, point)
        data = state(text)
        expected = [
            [
                (name, f"{weights[point] / 1000:.2f}")
                for name, weights in zip(row["tokens"], row["weights"], strict=True)
            ]
            for row in page.data["rows"]
        ]
        assert cells(text) == expected
        assert f">{data['readouts'][point]}</output>" in text
        assert f'aria-valuetext="{data["readouts"][point]}"' in text
        assert '<div class="bar">' in text
        dots = re.findall(r'<circle class="now" [^>]*>', text)
        for dot, name in zip(dots, ("time", "norm", "plane"), strict=True):
            x, y = data["curves"][name][point].split(",")
            assert f'cx="{x}"' in dot
            assert f'cy="{y}"' in dot
        seen[point] = [*dots, *re.findall(r'<circle class="(?:token|now margin)[^>]*>', text)]
    assert len(seen[1]) == 3 + V + len(page.data["pairs"])
    assert all(early != late for early, late in zip(seen[1][:3], seen[POINTS - 1][:3], strict=True))


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
