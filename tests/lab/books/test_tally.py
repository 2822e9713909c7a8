"""Combined verdicts of findings, their colours, and the summary sentence of a page."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from jaxattn.lab.books.findings import Finding
from jaxattn.lab.books.section import Section
from jaxattn.lab.books.tally import item_verdict, labelled_findings, summary, tallies

from jaxattn.lab.books import page, read_book
from jaxattn.lab.results.judge import Estimate, at_least


def finding(value, basis="published", *, spread=0.0, hits=None):
    estimate = Estimate(value, value - spread, value + spread, 9, 0, hits)
    return Finding("x", estimate, criterion=at_least(0.9), basis=basis)


GOOD, BAD, OPEN = finding(1.0), finding(0.0), finding(0.9, spread=0.1)
FREE = Finding("x", Estimate(1.0, 0.9, 1.1, 9))


@pytest.mark.parametrize(
    ("findings", "text", "tone"),
    [
        ([GOOD] * 7 + [BAD, OPEN], "7 of 9 agree, 1 differs, 1 inconclusive", "mixed"),
        ([GOOD, GOOD, FREE], "2 of 2 agree", "yes"),
        ([GOOD, BAD], "1 of 2 agrees, 1 differs", "mixed"),
        ([GOOD, BAD, BAD], "1 of 3 agrees, 2 differ", "no"),
        ([OPEN, OPEN], "0 of 2 agree, 2 inconclusive", "open"),
        ([BAD, OPEN, OPEN], "0 of 3 agree, 1 differs, 2 inconclusive", "mixed"),
    ],
)
def test_tally_text_and_tone_match_the_verdict_counts(findings, text, tone):
    assert labelled_findings(tallies(findings)) == [(text, tone)]
    assert item_verdict(findings) == text


def test_findings_are_counted_separately_for_each_basis():
    promised = [finding(1.0, "promised"), finding(0.9, "promised", spread=0.1)]
    beyond = [finding(0.0, "beyond"), finding(0.5, "beyond", hits=4), finding(1.0, "beyond")]
    assert labelled_findings(tallies([*promised, *beyond])) == [
        ("promised by the theory: 1 of 2 holds, 1 inconclusive", "mixed"),
        ("not promised: 1 of 3 holds, 1 holds for some seeds, 1 does not hold", "mixed"),
    ]
    assert item_verdict([FREE]) == "measured"


def test_summary_adds_the_counts_of_all_items():
    items = [[GOOD] * 3 + [FREE], [BAD, OPEN], [FREE], []]
    assert summary(items) == (
        "5 numbers in 2 of 4 items are compared with a criterion: 3 agree, 1 differs and 1 is inconclusive. "
        "2 further numbers have no criterion."
    )
    assert summary([[GOOD], [GOOD]]) == "2 numbers in all 2 items are compared with a criterion: 2 agree."
    assert summary([[FREE]]) == "No number is compared with a criterion yet."


def test_page_shows_labels_and_the_table_file_contains_finding_names():
    book = read_book(Path(__file__).with_name("tiny"))
    item = msgspec.structs.replace(
        book.item("own"), labels={"least one_step_error": "smallest error", "st": "x"}
    )
    own = replace(FREE, measured="d = 2: least one_step_error")
    section = Section(item, "measured", "", findings=(own,))
    (table,) = section.agreement.values()
    assert table["quantity"].tolist() == ["d = 2: smallest error"]
    assert page.page_table(book, (section,))["measured"].tolist() == ["d = 2: least one_step_error"]
