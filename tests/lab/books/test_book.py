import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.books import findings, read, shapes

PAPER = read("paper")
TINY = Path(__file__).with_name("tiny")
CURVES = PAPER.shared.curves
BIN_CENTRES = np.array(CURVES["mlp_Ev"].centres)


def test_curves_have_as_many_values_as_were_published_and_name_their_source():
    for curve in CURVES.values():
        assert len(curve.values) == len(curve.centres) == (19 if "Yelp" in curve.name else 20)
        assert np.isfinite(curve.values).all()
        assert (np.diff(curve.centres) > 0).all()
        assert "2505.17282" in curve.source


def test_bin_centres_are_the_published_ones():
    assert BIN_CENTRES[0] == pytest.approx(-0.95, abs=0.005)
    assert BIN_CENTRES[-1] == pytest.approx(0.89, abs=0.006)
    # Twenty equal bins over [-1, 14/15].
    np.testing.assert_allclose(BIN_CENTRES, -1 + (14 / 15 + 1) * (np.arange(20) + 0.5) / 20, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp_Ep", "two_layers_Ep"])
def test_published_scores_are_u_shaped_by_our_own_measure(name):
    rows, centres = np.array([CURVES[name].values]), np.array(CURVES[name].centres)
    assert shapes.u_shape(rows, centres)[0] > 0.9
    assert abs(shapes.lowest(rows, centres)[0]) < 0.1


@pytest.mark.parametrize("name", ["mlp_imdb", "mlp_yelp", "two_layer_weights_imdb", "two_layer_weights_yelp"])
def test_criteria_beside_published_curves_are_those_of_the_curves(name):
    item = PAPER.item(name)
    ev, ep = item.published("Ev"), item.published("Ep")
    lowest = item.criteria[f"where {ep.letters} is lowest"]
    assert lowest.around == round(ep.centres[int(np.argmin(ep.values))], 3) == float(lowest.published)
    length, first, last = shapes.longest_rise(np.array([ev.values]))
    rise = item.criteria["bins in the longest rise of E·v*"]
    assert rise.around == length[0]
    numbers = [float(x) for x in rise.published.replace(",", "").split() if x != "to"]
    ends = [ev.centres[int(place[0])] for place in (first, last)]
    assert numbers == pytest.approx([length[0], *ends], abs=0.006)


def test_published_rows_of_yelp_change_their_sign_at_zero():
    criteria = PAPER.item("yelp4").criteria
    for name in ("yelp_Ev_2", "yelp_Ev_4"):
        curve = CURVES[name]
        signs = shapes.sign_change(np.array([curve.values]), np.array(curve.centres))[0]
        assert signs > 0.9
        published = criteria[
            f"{curve.letters}: bins whose sign is that of the posterior difference, published range"
        ]
        assert float(published.published) == pytest.approx(signs, abs=5e-4)


def test_items_beside_published_bins_have_those_and_others_hold_every_token():
    for item in PAPER.items:
        if item.elsewhere:
            continue
        probes = item.study("full").base.probes
        edges = np.linspace(probes.low, probes.high, probes.bins + 1)
        if item.name in ("topics", "xor", "negation", "yelp4", "k_class_law"):
            assert (probes.low, probes.high) == (-1, 1)
        if item.name.startswith(("fig", "mlp", "two_layer", "untrained", "one_step")):
            assert (edges[1:] + edges[:-1]) / 2 == pytest.approx(BIN_CENTRES)


def test_names_are_distinct_and_every_item_says_what_it_compares():
    assert len({item.name for item in PAPER.items}) == len(PAPER.items)
    # Whoever adds an item adds it to the list.
    assert {item.name for item in PAPER.items} == {
        path.parent.name for path in PAPER.folder.glob("*/item.toml")
    }
    for item in PAPER.items:
        assert bool(item.measure) == (item.elsewhere is None) == (item.folder / "study.toml").is_file()
        assert item.reports
        assert item.chosen
        assert item.compared
        assert "{" not in item.reports + item.chosen + item.compared + item.reason
        assert not item.criteria or item.measure
        if item.measure:
            findings.load(item)


def test_a_book_is_looked_up_by_its_name_in_sweeps_or_by_its_folder(tmp_path, monkeypatch):
    shutil.copytree(TINY, tmp_path / "sweeps" / "small")
    monkeypatch.chdir(tmp_path)
    by_name, by_folder = read("small"), read(tmp_path / "sweeps" / "small")
    assert (by_name.name, by_name.place, by_name.option) == ("small", "sweeps/small", ["--book", "small"])
    assert by_folder.place == "small"
    assert [item.name for item in by_name.items] == ["step", "own", "texts", "elsewhere"]
    assert PAPER.place == "jaxattn/lab/books/paper"
    assert PAPER.option == []


def test_a_book_without_a_list_has_all_its_items(tmp_path):
    book = shutil.copytree(TINY, tmp_path / "tiny")
    text = (book / "book.toml").read_text()
    (book / "book.toml").write_text(text.replace('items = ["step", "own", "texts", "elsewhere"]', ""))
    assert [item.name for item in read(book).items] == ["elsewhere", "own", "step", "texts"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("book.toml", 'title = "A tiny book"', "", r"book.toml: .*missing required field `title`"),
        ("book.toml", '"step", ', '"stop", ', r"stop/item.toml: no such"),
        ("step/item.toml", "chosen", "chose", r"step/item.toml: .*unknown field `chose`"),
        ("step/item.toml", "{note}", "{nte}", r"step/item.toml: {nte}: no such phrase; book.toml has note"),
        ("step/item.toml", "{note}", "{", r"step/item.toml: .*write braces that stand for themselves twice"),
        (
            "step/item.toml",
            "within = 0.3,",
            "",
            r"give at_least alone, or around with within or with factor.*criteria",
        ),
        ("step/item.toml", "[measure]", "[criterion]", r"unknown field `criterion`"),
        ("step/item.toml", 'kind = "law"', "", r"give a \[measure\] with its kind, or \[elsewhere\]"),
        (
            "texts/item.toml",
            '"texts"',
            '"text"',
            r"texts/item.toml: needs: book.toml has no 'text'; it has texts",
        ),
        ("own/item.toml", "compared", 'curves = { Ev = "x" }\ncompared', r"curves: book.toml has no 'x'"),
    ],
)
def test_a_malformed_book_is_refused_in_a_line_that_names_the_place(tmp_path, file, old, new, message):
    book = shutil.copytree(TINY, tmp_path / "tiny")
    text = (book / file).read_text()
    assert old in text
    (book / file).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        read(book)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"mine.py:least"',
            '"shape"',
            r"own/item.toml: measure: no kind 'shape'; give one of cells, .*or mine.py:NAME",
        ),
        ('"mine.py:least"', '"mine.py:lest"', r"mine.py has no 'lest'; did you mean mine.py:least"),
        ("metric =", "metrics =", r"own/item.toml: measure: mine.py:least: .*metric"),
    ],
)
def test_a_measure_that_does_not_fit_is_refused(tmp_path, old, new, message):
    book = shutil.copytree(TINY, tmp_path / "tiny")
    path = book / "own" / "item.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        findings.load(read(book).item("own"))


def test_a_book_that_is_nowhere_is_named(call, tmp_path):
    status, _, said = call("reproduce", "--book", "nowhere", "--out", tmp_path)
    assert status == 2
    (line,) = said.splitlines()
    assert "--book nowhere: no book.toml in" in line
    assert "known: " in line or "did you mean" in line
    assert "sweeps/nowhere" in line


def test_the_documented_form_of_a_book_is_read(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "howto" / "books.md").read_text(encoding="utf-8")
    (shared, about), (code,) = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("toml", "python")
    )
    item = tmp_path / "two_steps"
    item.mkdir()
    (tmp_path / "book.toml").write_text(shared)
    (item / "item.toml").write_text(about)
    (item / "mine.py").write_text(code)
    (item / "study.toml").write_text(
        (TINY / "step" / "study.toml").read_text().replace('"step"', '"two_steps"')
    )
    (shown,) = read(tmp_path).items
    assert (
        shown.reports
        == "The error of the one-step law falls like d^(-1/2) (Magen et al., arXiv ..., Figure 2)."
    )
    assert len(shown.study("laptop").seeds) == 5
    findings.load(shown)
    own = msgspec.structs.replace(shown, measure={"kind": "mine.py:least", "metric": "one_step_error"})
    findings.load(own)
