"""All neighbours are short items of one book."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from jaxattn.lab import books
from jaxattn.lab.books import findings, section

SHIPPED = Path(__file__).parents[2] / "sweeps" / "neighbours"
NAMES = sorted(path.name for path in SHIPPED.iterdir() if (path / "item.toml").is_file())


@pytest.mark.parametrize("name", NAMES)
def test_neighbour_items_have_short_code_and_a_readme_with_the_command(read, name):
    for path in (SHIPPED / name).glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 100
    assert read(name).custom_kinds
    readme = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    assert f"jaxattn run sweeps/neighbours/{name}/study.toml" in readme


def test_every_neighbour_study_is_an_item_of_the_book():
    """`jaxattn reproduce neighbours` runs them; models without a width have a name too."""
    book = books.read_book(SHIPPED)
    assert [item.name for item in book.items] == NAMES
    for item in book.items:
        for measure in item.measured:
            findings.load_measure(measure, item)
        study = item.study("full")
        assert study.name == item.name
        for measure in item.measured:
            metrics = [metric.replace("_", " ") for metric in measure.settings.get("metrics", ())]
            patterns = [criterion.rpartition(": ")[2] for criterion in measure.criteria]
            assert measure.kind != "cells" or all(
                any(fnmatchcase(metric, pattern) for metric in metrics) for pattern in patterns
            )
        assert study.config["model"]["kind"].rpartition(":")[2] in section.models(study)
