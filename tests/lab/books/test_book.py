"""Reading of books and items."""

import re
import shutil
from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.lab.books import problems, read_book

TINY = Path(__file__).with_name("tiny")
SWEEPS = Path(__file__).parents[3] / "sweeps"
BOOKS = ("paper", "claims", "neighbours", "findings", "claims2026", "refute")


@pytest.fixture
def tiny(tmp_path):
    """Return the folder of a copy of the tiny book."""
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_items_are_in_the_order_of_the_parts():
    book = read_book(TINY)
    assert [item.name for item in book.items] == ["step", "own", "texts", "elsewhere"]
    step = book.item("step")
    assert step.title == "Error of the one-step law"
    reports = "1/error of the one-step law falls like s^(-1), with the scale s of E (a note of nobody's)."
    assert step.words.reports == reports
    assert [paper.title for paper in step.papers] == ["A note"]
    assert book.item("own").title == "Own"


def test_studies_have_places_for_their_runs(tiny):
    wide = 'wide = { file = "../step/study.toml", optional = true }'
    change(tiny / "texts" / "item.toml", "[studies]", f"[studies]\n{wide}")
    book = read_book(tiny)
    found = {item.name: {name: x.run for name, x in item.sources.items()} for item in book.items}
    assert found["step"] == {"study": "step"}
    assert found["own"] == {"study": "step.study"}
    assert found["texts"] == {"wide": "step.study", "study": "texts"}
    assert book.item("texts").required == ["study"]
    (tiny / "shared.toml").write_text("")
    other = tiny.parent / "other"
    shutil.copytree(tiny / "step", other / "step")
    change(tiny / "texts" / "item.toml", '{ data = "texts" }', '"../shared.toml"')
    assert read_book(tiny).item("texts").sources["study"].run == "shared"
    change(tiny / "texts" / "item.toml", "../shared.toml", "../../other/step/study.toml")
    assert read_book(tiny).item("texts").sources["study"].run == "other.step.study"


def test_study_of_an_item_has_the_changes_of_its_scale_and_data(tiny):
    book = read_book(tiny)
    assert len(book.item("step").study("full").seeds) == 10
    assert len(book.item("step").study("laptop").seeds) == 6
    assert len(book.item("step").study("laptop", seeds=3).seeds) == 3
    study = book.item("texts").study("full", data_dir=Path("data"))
    assert study.config["data"]["path"] == "data/texts.csv"
    change(tiny / "texts" / "item.toml", 'data = "texts"', 'data = "texts", most_seeds = 1')
    assert len(read_book(tiny).item("texts").study("full", seeds=9).seeds) == 1


def test_only_other_changes_than_seeds_reduce_an_item(tiny):
    assert not read_book(tiny).item("step").is_reduced("laptop")
    change(tiny / "step" / "item.toml", '["seeds=6"]', '["seeds=6", "model.dim=8"]')
    item = read_book(tiny).item("step")
    assert (item.is_reduced("laptop"), item.is_reduced("full")) == (True, False)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("book.toml", "title", "titel", r"book\.toml: unknown key 'titel'; did you mean 'title'\?"),
        ("step/item.toml", '"own"', '"best"', r"settings: .*'best'; known: own, chosen, reduced"),
        ("step/item.toml", "laptop =", "studies.main = 'x.toml'\n#", r"main: \S+x\.toml does not exist"),
        ("texts/item.toml", '"texts"', '"text"', r"no data set 'text'; did you mean 'texts'\?"),
        ("book.toml", '"step"', '"steps"', r"steps: no such item \(no item\.toml\)"),
        ("step/item.toml", "reports =", "# reports =", r"item\.toml: reports: is missing; state the claim"),
        ("step/item.toml", "laptop =", "claim = 'mine.py'\n#", r"claim: \S+step/mine\.py does not exist"),
        ("step/item.toml", "reports =", "[[measures]]\nreports =", r"unknown key 'measures'"),
    ],
)  # fmt: skip
def test_malformed_files_are_rejected(tiny, file, old, new, message):
    change(tiny / file, old, new)
    with pytest.raises(ja.InputError, match=message) as error:
        read_book(tiny)
    assert "\n" not in str(error.value)


def test_missing_book_and_item_name_the_nearest():
    with pytest.raises(ja.InputError, match=r"neighbors: no such book .*did you mean 'neighbours'"):
        read_book("neighbors")
    with pytest.raises(ja.InputError, match=r"^stepp: no such item; did you mean 'step'\?$"):
        read_book(TINY).item("stepp")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def check(results):\n    return [1]\n", "check: expected findings, got int"),
        (
            "from jaxattn.lab.books import Finding\n\n\ndef check(results):\n"
            "    return [Finding('a', '', 1.0), Finding('a', '', 2.0)]\n",
            "two findings have the id 'a'; rename one",
        ),
        ("def chekc(results):\n    return []\n", "'check' does not exist in check.py"),
    ],
)
def test_malformed_checks_are_rejected(tiny, code, message):
    (tiny / "step" / "check.py").write_text(code)
    with pytest.raises(ja.InputError, match=re.escape(message)):
        read_book(tiny).item("step").measure({})


@pytest.mark.parametrize("name", BOOKS)
def test_shipped_items_have_no_problems_and_studies_that_can_be_read(name):
    """The published counterexamples of the book refute are decided again from their integers."""
    book, out = read_book(SWEEPS / name), SWEEPS.parent / "results" / "published" / name
    found = problems(book, out=out)
    assert found.empty, found.to_string()
    assert {path.stem for path in out.glob("items/*.json")} == {
        item.name for item in book.items if not item.words.elsewhere
    }
    for item in book.items:
        assert item.papers or name in ("findings", "refute"), item.name
        for study in item.sources:
            for scale in ("laptop", "full"):
                assert item.study(scale, study, data_dir=Path("data")).cells
