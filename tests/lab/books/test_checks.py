import json
import shutil
from pathlib import Path

import pytest
from jaxattn.lab.books.section import CriteriaDate

from jaxattn.core.errors import InputError
from jaxattn.lab.books import create, problems, read_book, record
from jaxattn.lab.books.run import Request

ROOT = Path(__file__).parents[3]


@pytest.fixture
def item(tmp_path, monkeypatch):
    """Return the folder of an item without problems."""
    monkeypatch.chdir(tmp_path)
    create("./mine", "my_paper")
    folder = tmp_path / "mine" / "my_paper"
    for path in folder.iterdir():
        path.write_text(path.read_text(encoding="utf-8").replace("TODO", "done"), encoding="utf-8")
    return folder


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def found(item, out="out"):
    table = problems(read_book(item.parent), out=Path(out))
    assert set(table["item"]) <= {"my_paper"}
    return list(table["problem"])


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("item.toml", "", "", None),
        ("README.md", "# done", "# TODO", "README.md: answer the questions marked TODO in line 1"),
        ("item.toml", 'chosen = "All sizes are chosen here."', "", "item.toml: chosen is missing"),
        ("study.toml", "seeds = 20", "seeds = 9", "study.toml: 9 seeds at full scale; use 10 or more"),
        (
            "my_paper.py",
            "import jaxattn as ja",
            "import jaxattn as ja\nfrom jaxattn.dynamics.flows.arc_length import _step",
            "my_paper.py: jaxattn.dynamics.flows.arc_length._step is not public; use a name of the "
            "reference, or copy the code",
        ),
    ],
)
def test_each_missing_component_is_listed(item, file, old, new, problem):
    if old:
        change(item / file, old, new)
    assert found(item) == ([problem] if problem else [])


def test_missing_readme_and_measures_without_criteria_are_listed(item):
    (item / "README.md").unlink()
    text = (item / "item.toml").read_text(encoding="utf-8").partition("# done: Fix")[0]
    text = text.replace('"my_paper.py:alignment"', '"cells"\nmetrics = ["loss"]\ncriteria = {}')
    (item / "item.toml").write_text(text, encoding="utf-8")
    assert found(item) == ["README.md is missing", "item.toml: no measure has a criterion"]


def test_criterion_for_an_undeclared_finding_is_rejected_before_the_run(call, item):
    change(item / "item.toml", '"cosine of p with', '"cosine of q with')
    status, _, said = call("reproduce", item.parent, "--check")
    assert status == 2
    assert said.strip().endswith(
        "item.toml: criteria: no finding matches 'cosine of q with the first step'; choose from cosine of p "
        "with the first step"
    )


@pytest.mark.more
def test_finding_with_an_undeclared_name_raises_an_error(call, item):
    change(item / "my_paper.py", '@declare_names("cosine', '@declare_names("another", "*a cosine')
    change(item / "item.toml", '"cosine of p with the first step"', '"another"')
    status, _, said = call("reproduce", item.parent, "--seeds", "2", "--quiet")
    assert status == 1
    assert (
        "no declared name matches the finding 'cosine of p with the first step'; add it to @declare_names"
        in said
    )


def test_published_value_without_a_source_is_rejected(item):
    change(item / "item.toml", "papers = [", "labels = {}  # papers = [")
    with pytest.raises(
        InputError, match=r"'cosine of p .*' is compared with a published value, but the item has"
    ):
        read_book(item.parent)
    for shared in ('source = "a talk"', 'phrases.talk = "closed form"'):
        (item.parent / "book.toml").write_text(f'title = ""\nintroduction = ""\n{shared}\n')
        assert read_book(item.parent).items
    (item.parent / "book.toml").write_text('title = ""\nintroduction = ""\n')
    change(
        item / "item.toml",
        'kind = "my_paper.py:alignment"',
        'kind = "my_paper.py:alignment"\nbasis = "beyond"',
    )
    assert read_book(item.parent).items


@pytest.mark.more
def test_changed_criteria_are_detected_and_dated(call, item):
    """The date is kept for the same criteria; a change after results is shown on the page from then on."""
    path, words = Path("out/items/my_paper.json"), (item.parent, "--out", "out", "--seeds", "6", "--quiet")
    assert call("reproduce", *words)[0] == 0
    first = json.loads(path.read_text())["criteria"]
    assert (first["digest"], first["changed"]) == (
        read_book(item.parent).item("my_paper").criteria_digest,
        False,
    )
    content = json.loads(path.read_text()) | {"criteria": first | {"date": "2020-01-02"}}
    path.write_text(json.dumps(content))
    assert found(item) == []
    assert call("reproduce", *words)[0] == 0
    assert json.loads(path.read_text())["criteria"]["date"] == "2020-01-02"
    assert "- criteria: unchanged since 2020-01-02\n" in Path("out/index.md").read_text(encoding="utf-8")
    change(item / "item.toml", "at_least = 0.99", "at_least = 0.5")
    (problem,) = found(item)
    assert problem.startswith(
        "item.toml: the criteria changed after results had been recorded with those of 2020-01-02; "
    )
    assert call("reproduce", item.parent, "--out", "out", "--check")[0] == 1
    assert call("reproduce", *words)[0] == 0
    last = record.criteria_date(read_book(item.parent).item("my_paper"), Path("out"))
    assert last.changed
    assert last.date > "2020-01-02"
    html = Path("out/index.html").read_text(encoding="utf-8")
    assert f"<dt>criteria</dt><dd>changed on {last.date}, after results had been recorded</dd>" in html
    assert found(item) == [f"the criteria were changed on {last.date}, after results had been recorded"]


def test_criteria_descriptions_are_excluded_from_the_hash(item):
    def digest():
        return read_book(item.parent).item("my_paper").criteria_digest

    before = digest()
    change(item / "item.toml", 'published = "1 as', 'published = "one as')
    assert digest() == before
    change(
        item / "item.toml", 'kind = "my_paper.py:alignment"', 'kind = "my_paper.py:alignment"\nlevel = 0.5'
    )
    assert digest() != before


def test_criteria_date_states_whether_the_criteria_changed():
    assert CriteriaDate("", "2026-01-02").text == "unchanged since 2026-01-02"
    assert "changed on 2026-01-02, after" in CriteriaDate("", "2026-01-02", True).text


@pytest.mark.parametrize("name", ["paper", "claims", "neighbours", "findings"])
def test_shipped_items_have_no_problems(name):
    book = read_book(ROOT / "sweeps" / name if name in ("neighbours", "findings") else name)
    out = ROOT / "results" / "published" / name
    shown = problems(book, Request(scale="laptop" if name == "claims" else "full"), out=out)
    assert shown.empty, shown.to_string()


def test_only_requested_items_are_checked(item):
    shutil.copytree(item, item.parent / "other")
    change(item.parent / "other" / "item.toml", 'chosen = "All sizes are chosen here."', "")
    change(item.parent / "other" / "item.toml", 'kind = "my_paper.py:', 'kind = "my_paper.py:')
    book = read_book(item.parent)
    assert problems(book, Request(("my_paper",)), out=Path("out")).empty
    assert list(problems(book, Request(("other",)), out=Path("out"))["item"]) == ["other"]
