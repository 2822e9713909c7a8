"""Meanings of settings are read from docstrings, and pages are made of them."""

from pathlib import Path

import msgspec

from jaxattn.core.docstrings import first_line, meanings, table, written
from jaxattn.data.readers import READERS
from jaxattn.study.kinds import fields_of
from jaxattn.text_settings import page


class Base:
    """A base.

    Attributes:
        size: how large, or
            how small: either way.
        colour: of the base.
    """


class Derived(Base):
    """A class with a base. More words.

    colour: this is no setting.

    Attributes:
        colour, shape: of the class.

    Returns:
        nothing: at all.
    """


def function(key, *, power=2.0):
    """Raise.

    Args:
        key: a key.
        power: the exponent | of it.
    """


def test_a_class_says_more_than_its_bases():
    assert meanings(Derived) == {
        "size": "how large, or how small: either way.",
        "colour": "of the class.",
        "shape": "of the class.",
    }
    assert meanings(function) == {"key": "a key.", "power": "the exponent | of it."}
    assert meanings(object) == {}
    assert first_line(Derived) == "A class with a base. More words."


def test_a_table_keeps_its_cells():
    rows = [["power", meanings(function)["power"]]]
    assert table(["a", "b"], rows) == "| a | b |\n|---|---|\n| power | the exponent \\| of it. |"
    defaults = [msgspec.NODEFAULT, None, ("a", 1), "\t"]
    assert [written(x) for x in defaults] == ["required", "none", '`["a",1]`', '`"\\t"`']


def test_the_page_of_texts_is_made_of_the_kinds_that_are_there():
    shipped = Path(__file__).parents[2] / "docs" / "texts.md"
    assert shipped.read_text(encoding="utf-8") == page(), "python -m jaxattn.text_settings > docs/texts.md"
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    for kind, target in READERS.items():
        for field in fields_of(target):
            own = [row for row in rows if row[0] == f"| `{field.name}`"]
            of_kind = [row for row in own if len(row) == 3 or kind in row[1].split(", ")]
            assert len(of_kind) == 1, (kind, field.name)
            assert of_kind[0][-2] == written(field.default)
