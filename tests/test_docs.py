"""Every example on the page about extensions runs, and every note is listed."""

import re
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "howto" / "extending.md"
EXAMPLES = re.findall(
    r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.M
)


@pytest.mark.slow
@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_each_example_runs(title, code, tmp_path, monkeypatch):
    assert "assert " in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{PAGE.name}: {title}", "exec"), {"__name__": "__main__"})


def test_every_note_is_listed():
    text = (DOCS / "notes" / "README.md").read_text(encoding="utf-8")
    notes = {path.stem for path in (DOCS / "notes").glob("*.md")} - {"README"}
    assert notes == set(re.findall(r"\[(\w+)\]\(\1\.md\)", text))


def test_every_dependency_is_linked_on_the_page_of_modules():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_users = ("torch", "transformers", "cluster", "dask", "cloud", "tensorboard", "wandb")
    needed = [
        *project["dependencies"],
        *(x for name in of_users for x in project["optional-dependencies"][name]),
    ]
    names = {re.split(r"[^\w-]", requirement)[0].lower() for requirement in needed}
    page = (DOCS / "reference" / "modules.md").read_text(encoding="utf-8").partition("## Libraries")[2]
    cells = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| ")).lower()
    linked = set(re.findall(r"\[([\w-]+)\]\(https://", cells))
    # A part of JAX.
    assert names - linked == {"jaxlib"}
    assert linked - names == {"jax"} - names


def test_examples_cover_every_kind():
    kinds = ["A model", "Data", "A loss and a start", "A phase", "An optimiser", "A probe", "A figure"]
    assert [title for title, _ in EXAMPLES] == [*kinds, "Without a study"]


@pytest.mark.parametrize(
    "words", ["checkpoint", "own data", "own model", "export parameters", "final parameters", "out of memory"]
)
def test_words_that_users_search_for_are_headings_or_index_entries(words):
    """The search of the site ranks them above words in a text."""
    texts = [path.read_text(encoding="utf-8").lower() for path in DOCS.rglob("*.md")]
    found = [line for text in texts for line in re.findall(r"(?m)^(?:#+ |```\{index\} ! ).*$", text)]
    assert any(words in line for line in found)
