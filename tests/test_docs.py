"""Every example on the page about extensions runs, and every note is listed."""

import re
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


def test_examples_cover_every_kind():
    kinds = [
        "A model",
        "Data",
        "A loss and a start",
        "A phase",
        "An objective and clamps",
        "An optimiser",
        "A probe",
        "A figure",
    ]
    assert [title for title, _ in EXAMPLES] == [*kinds, "Without a study"]
