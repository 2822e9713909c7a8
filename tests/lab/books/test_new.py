"""Template of new items, and the list of what an item is missing."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.books import create, problems, read_book
from jaxattn.lab.books.checks import OPEN
from jaxattn.lab.study.import_paths import ImportPaths

FILES = {"README.md", "item.toml", "study.toml", "my_paper.py", "check.py"}
TINY = Path(__file__).with_name("tiny")


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Return the relative path of a new book with one item."""
    monkeypatch.chdir(tmp_path)
    create("./mine", "my_paper")
    return Path("mine")


def test_new_item_in_a_new_book_has_all_files(book):
    assert {path.name for path in (book / "my_paper").iterdir()} == FILES
    (item,) = read_book(book).items
    assert (item.name, item.study("full").name, len(item.study("laptop").seeds)) == ("my_paper",) * 2 + (10,)
    readme = (book / "my_paper" / "README.md").read_text(encoding="utf-8")
    assert "jaxattn run mine/my_paper/study.toml\n    jaxattn reproduce mine --only my_paper\n" in readme
    text = "".join((book / "my_paper" / name).read_text(encoding="utf-8") for name in FILES)
    assert "template" not in text
    assert "BOOK" not in text


@pytest.mark.more
def test_new_item_runs_agrees_and_is_exported(call, book):
    status, printed, _ = call("reproduce", "./mine", "--new", "another")
    assert status == 0
    assert set(printed.split()) == {f"mine/another/{x.replace('my_paper', 'another')}" for x in FILES}
    assert call("reproduce", book, "--only", "my_paper", "--seeds", "6", "--quiet")[0] == 0
    page = Path("results/mine/my_paper.html").read_text(encoding="utf-8")
    assert '<b class="yes">verified</b>' in page
    assert re.search(r"check\.py with SHA-256 [0-9a-f]{12}, used since \d{4}-\d\d-\d\d", page)
    assert call("reproduce", book, "--export", "log")[0] == 0
    assert "verified" in Path("log/my_paper.md").read_text(encoding="utf-8")


def test_closed_form_in_the_template_matches_finite_differences(book):
    study = read_book(book).item("my_paper").study("full")
    data, load = study.dataset(0).train, ImportPaths(book / "my_paper").load
    v = np.random.default_rng(0).normal(size=data.dim).astype(np.float32)
    X, y = (np.asarray(x, np.float64) for x in (data.X, data.targets))

    def loss(p):
        q = np.exp(X @ p)
        f = ((q / q.sum(axis=1, keepdims=True)) * (X @ v)).sum(axis=1)
        return np.log1p(np.exp(-y * f)).mean()

    slope = [(loss(1e-5 * e) - loss(-1e-5 * e)) / 2e-5 for e in np.eye(data.dim)]
    found = load("my_paper.py:first_step")(v, data)
    np.testing.assert_allclose(found, np.negative(slope), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("place", "name", "words"),
    [
        ("./mine", "My-Paper", "--new My-Paper: use only lower-case letters, digits and underscores"),
        ("./mine", "numpy", "--new numpy: a Python module has this name; choose another name"),
        ("./mine", "my_paper", r"--new my_paper: \S+ already exists; choose another name"),
        ("./mine", "shared_code", r"--new shared_code: \S+shared_code.py already exists"),
        ("nowhere", "mine", "nowhere: no such book"),
    ],
)
def test_invalid_names_and_books_are_rejected(call, book, place, name, words):
    (book / "shared_code.py").touch()
    status, _, said = call("reproduce", place, "--new", name)
    assert status == 2
    (line,) = said.splitlines()
    assert re.search(words, line)


def test_a_new_item_is_in_the_list_of_a_book_that_lists_its_items(call, book):
    old = (book / "book.toml").read_text(encoding="utf-8")
    parts = '[[parts]]\ntitle = "First"\nitems = ["my_paper"]\n'
    (book / "book.toml").write_text(old + parts, encoding="utf-8")
    assert call("reproduce", book, "--new", "second_paper")[0] == 0
    found = read_book(book)
    assert [(part.title, part.items) for part in found.parts] == [
        ("First", ("my_paper",)),
        ("New", ("second_paper",)),
    ]
    assert found.item("second_paper").title


@pytest.fixture
def item(book):
    """Return the folder of an item without problems."""
    folder = book / "my_paper"
    for path in folder.iterdir():
        path.write_text(path.read_text(encoding="utf-8").replace(OPEN, "done"), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("item.toml", "title", "title", None),
        ("README.md", "# done", "# TODO", "README.md: answer the questions marked TODO in line 1"),
        ("item.toml", 'chosen = "All sizes are chosen here."', "", "item.toml: chosen is missing"),
        ("study.toml", "seeds = 20", "seeds = 5", "study.toml: 5 seeds at full scale; use 6 or more"),
    ],
)
def test_each_missing_part_is_listed(item, file, old, new, problem):
    text = (item / file).read_text(encoding="utf-8")
    assert old in text
    (item / file).write_text(text.replace(old, new), encoding="utf-8")
    table = problems(read_book(item.parent), out=Path("out"))
    assert list(table["problem"]) == ([problem] if problem else [])


def test_item_without_a_check_is_rejected(item):
    (item / "check.py").unlink()
    with pytest.raises(ja.InputError, match=r"check\.py: no such file"):
        problems(read_book(item.parent), out=Path("out"))


def test_new_item_can_be_added_to_a_book_in_sweeps(tmp_path, monkeypatch):
    (tmp_path / "sweeps").mkdir()
    shutil.copytree(TINY / "step", tmp_path / "sweeps" / "mine" / "step")
    book = tmp_path / "sweeps" / "mine" / "book.toml"
    book.write_text('title = ""\nintroduction = ""\n')
    monkeypatch.chdir(tmp_path)
    create("mine", "my_paper")
    readme = Path("sweeps/mine/my_paper/README.md").read_text(encoding="utf-8")
    assert "jaxattn reproduce sweeps/mine --only my_paper" in readme
    assert [item.name for item in read_book("mine").items] == ["my_paper", "step"]
