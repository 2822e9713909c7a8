"""Meanings of settings are read from docstrings."""

import msgspec

from jaxattn.core.settings import markdown_table, meanings, summary_line, written


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


def test_class_docstrings_override_those_of_base_classes():
    assert meanings(Derived) == {
        "size": "how large, or how small: either way.",
        "colour": "of the class.",
        "shape": "of the class.",
    }
    assert meanings(function) == {"key": "a key.", "power": "the exponent | of it."}
    assert meanings(object) == {}
    assert summary_line(Derived) == "A class with a base. More words."


def test_vertical_bars_are_escaped_in_tables():
    rows = [["power", meanings(function)["power"]]]
    assert markdown_table(["a", "b"], rows) == "| a | b |\n|---|---|\n| power | the exponent \\| of it. |"
    defaults = [msgspec.NODEFAULT, None, ("a", 1), "\t"]
    assert [written(x) for x in defaults] == ["required", "none", '`["a",1]`', '`"\\t"`']
