"""All neighbours are items of one book."""

from pathlib import Path

import pytest

from jaxattn.lab import books
from jaxattn.lab.books import reproduction

SHIPPED = Path(__file__).parents[2] / "sweeps" / "neighbours"
NAMES = sorted(path.name for path in SHIPPED.iterdir() if (path / "item.toml").is_file())


@pytest.mark.parametrize("name", NAMES)
def test_neighbour_items_have_custom_code_and_a_readme_with_the_command(read, name):
    assert read(name).custom_kinds
    readme = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    assert f"jaxattn run sweeps/neighbours/{name}/study.toml" in readme


def test_every_neighbour_study_is_an_item_of_the_book():
    """`jaxattn reproduce neighbours` runs them; models without a width have a name too."""
    book = books.read_book(SHIPPED)
    assert [item.name for item in book.items] == NAMES
    for item in book.items:
        study = item.study("full")
        assert study.name == item.name
        assert study.config["model"]["kind"].rpartition(":")[2] in reproduction.models(study)
