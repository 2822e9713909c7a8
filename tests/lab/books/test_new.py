import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.books import create, problems, read_book
from jaxattn.lab.books.book import CHECKOUT
from jaxattn.lab.books.checks import OPEN
from jaxattn.lab.books.new import TEMPLATE
from jaxattn.lab.study.import_paths import ImportPaths

FILES = {"README.md", "item.toml", "study.toml", "my_paper.py"}
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
    assert (item.name, item.study("full").name, len(item.study("laptop").seeds)) == (
        "my_paper",
        "my_paper",
        10,
    )
    readme = (book / "my_paper" / "README.md").read_text(encoding="utf-8")
    assert "jaxattn run mine/my_paper/study.toml\n    jaxattn reproduce ./mine --only my_paper\n" in readme
    text = "".join((book / "my_paper" / name).read_text(encoding="utf-8") for name in FILES)
    assert TEMPLATE.name not in text


@pytest.mark.more
def test_new_item_runs_and_agrees_with_its_closed_form(call, book):
    """The command prints the files; the item gives a page, with the date of its criteria."""
    status, printed, _ = call("reproduce", "./mine", "--new", "another")
    assert status == 0
    assert printed.split() == [
        f"mine/another/{name.replace('my_paper', 'another')}"
        for name in ("README.md", "item.toml", "study.toml", "my_paper.py")
    ]
    assert call("reproduce", book, "--only", "my_paper", "--seeds", "6", "--quiet")[0] == 0
    page = Path("results/mine/index.md").read_text(encoding="utf-8")
    assert "1 agrees" in page
    assert re.search(r"- written by: TODO: your names\n- criteria: unchanged since \d{4}-\d\d-\d\d\n", page)
    code = book / "my_paper" / "my_paper.py"
    code.write_text(
        code.read_text(encoding="utf-8").replace("data.X - ", "1.0 * data.X - "), encoding="utf-8"
    )
    status, _, said = call("reproduce", book, "--only", "my_paper", "--seeds", "6")
    assert status == 0
    assert "6 runs computed again, because my_paper.py:" in said
    assert len(list(Path("results/mine/runs/laptop/my_paper/runs").iterdir())) == 2


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


def test_new_item_can_be_added_to_a_book_in_sweeps(tmp_path, monkeypatch):
    (tmp_path / "sweeps").mkdir()
    shutil.copytree(TINY / "step", tmp_path / "sweeps" / "mine" / "step")
    (tmp_path / "sweeps" / "mine" / "book.toml").write_text(
        'title = ""\nintroduction = ""\nphrases.note = ""\n'
    )
    monkeypatch.chdir(tmp_path)
    create("mine", "my_paper")
    readme = Path("sweeps/mine/my_paper/README.md").read_text(encoding="utf-8")
    assert "jaxattn run sweeps/mine/my_paper/study.toml\n    jaxattn reproduce mine --only" in readme
    assert [item.name for item in read_book("mine").items] == ["my_paper", "step"]


@pytest.mark.parametrize(
    ("place", "name", "words"),
    [
        ("paper", "mine", "the book paper is part of the package; choose 'neighbours' or a folder"),
        ("./mine", "My-Paper", "--new My-Paper: use only lower-case letters, digits and underscores"),
        ("./mine", "numpy", "--new numpy: a Python module has this name; choose another name"),
        ("./mine", "my_paper", r"--new my_paper: \S+ already exists; choose another name"),
        (
            "./mine",
            "shared_code",
            r"--new shared_code: \S+shared_code.py already exists; choose another name",
        ),
        ("nowhere", "mine", "nowhere: no such book"),
        (
            TINY,
            "mine",
            r"book.toml: `items` lists the items, so a new item would not be shown; remove `items`",
        ),
    ],
)
def test_invalid_names_and_books_are_rejected(call, book, place, name, words):
    (book / "shared_code.py").touch()
    status, _, said = call("reproduce", place, "--new", name)
    assert status == 2
    (line,) = said.splitlines()
    assert re.search(words, line)


def test_neighbours_book_has_no_problems_and_rejects_an_existing_item_name(monkeypatch, tmp_path):
    """The template itself passes all checks of a new item, apart from its open questions."""
    shown = problems(read_book("neighbours"), out=tmp_path)
    assert shown.empty, shown.to_string()
    with pytest.raises(InputError, match="exists; choose another name"):
        create("neighbours", "two_steps")
    assert all(OPEN in path.read_text(encoding="utf-8") for path in TEMPLATE.glob("*.*"))
    assert (CHECKOUT / "sweeps" / "neighbours").is_dir()
