"""Sentences on the pages of a book."""

from dataclasses import make_dataclass

import pytest

from jaxattn.lab.books.page import cost, sentence

Ran = make_dataclass("Ran", ["seconds", "machine"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the flow converges", "The flow converges."),
        ("a token wins.", "A token wins."),
        (" d = 8 in all runs ", "d = 8 in all runs."),
        ("p tends to a limit", "p tends to a limit."),
        ("E·v grows", "E·v grows."),
    ],
)
def test_sentences_begin_with_a_capital_letter_unless_with_a_symbol(text, expected):
    assert sentence(text) == expected


def test_cost_adds_up_the_time_of_the_records_that_ran():
    assert cost([Ran(0, "")]) == ""
    assert (
        cost([Ran(40, "one CPU"), Ran(50, "one CPU"), Ran(0, "")])
        == "The runs took 90 s in total on one CPU."
    )
    assert cost([Ran(60, "B"), Ran(61, "A")]) == "The runs took 2 minutes in total on A and B."
    assert cost([Ran(3600, "")]) == "The runs took 60 minutes in total."
