"""Findings of a run, their criteria and their combined verdicts."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from jaxattn.lab.books.findings import Finding, mean, share
from jaxattn.lab.books.tally import item_verdict

from jaxattn.core.errors import InputError
from jaxattn.lab.books import findings, metrics, page, read_book
from jaxattn.lab.books.tables import Expected
from jaxattn.lab.results.judge import Estimate, around, at_least
from jaxattn.lab.results.run import Run


def test_item_agrees_only_if_all_findings_agree():
    good = Finding("", Estimate(1.0, 1.0, 1.0), "", at_least(0.9))
    bad = Finding("", Estimate(0.0, 0.0, 0.0), "", at_least(0.9))
    lone = Finding("", Estimate(0.0, 0.0, 0.0), "")
    assert item_verdict([good, lone]) == "1 of 1 agrees"
    assert item_verdict([good, bad, good]) == "2 of 3 agree, 1 differs"
    assert item_verdict([lone]) == "measured"


def test_criterion_of_an_item_is_a_range_in_one_of_four_forms():
    made = [Expected(at_least=2.0), Expected(at_most=2.0), Expected(around=2.0, within=0.5)]
    made = [each.criterion for each in (*made, Expected(around=2.0, factor=2.0), Expected(basis="beyond"))]
    assert made[-1] is None
    ranges = [(each.low, each.high) for each in made[:-1]]
    assert ranges == [(2.0, math.inf), (-math.inf, 2.0), (1.5, 2.5), (1.0, 4.0)]
    assert made[1].text == "≤ 2"
    for wrong in ({}, {"at_least": 1.0, "at_most": 2.0}, {"around": 1.0}, {"at_most": 1.0, "within": 1.0}):
        with pytest.raises(ValueError, match="expected either"):
            Expected(**wrong)


def test_wording_of_an_item_verdict_depends_on_the_basis():
    holds, fails = (Finding("", Estimate(x, x, x), "", at_least(0.9), basis="promised") for x in (1, 0))
    limit = Finding("", Estimate(1, 1, 1), basis="promised")
    some = Finding("", Estimate(0.5, 0.4, 0.6, 9, 0, 4), "", at_least(0.9), basis="beyond")
    free = Finding("", Estimate(0.5, 0.4, 0.6, 9), basis="beyond")
    # A promise without a criterion counts, but a number that is only measured does not.
    assert item_verdict([holds, fails, limit, some, free]) == (
        "promised by the theory: 1 of 3 holds, 1 fails, 1 inconclusive; "
        "not promised: 0 of 1 hold, 1 holds for some seeds"
    )
    assert item_verdict([holds, free]) == "1 of 1 holds"


@pytest.mark.parametrize(("basis", "expected"), [("promised", "holds"), ("beyond", "holds there too")])
def test_finding_counts_seeds_without_a_value(basis, expected):
    of = {"basis": basis, "criterion": around(1.0, 0.5), "why": "the flow met NaN"}
    found = mean("x", np.array([*np.linspace(0.9, 1.1, 9), math.nan]), **of)
    assert (found.verdict, found.counted) == (expected, "9 of 10: in 1 the flow met NaN")
    known = np.arange(40) < 39
    found = share("x", known, known=known, **of | {"criterion": at_least(0.9)})
    assert (found.verdict, found.text[:8]) == (expected, "39 of 39")
    none = mean("x", [math.nan, math.nan], **of | {"why": "it is NaN"})
    assert (none.verdict, none.text, none.counted) == ("undecided", "no value", "0 of 2: in 2 it is NaN")
    assert mean("x", [1.0, 2.0], **of).counted == "2 seeds"


def test_identical_values_of_all_seeds_have_no_interval():
    of = {"basis": "promised", "criterion": around(0.0, 0.1)}
    found = mean("x", np.zeros(7), **of)
    assert (found.verdict, found.text) == ("holds", "0 (no spread over 7 seeds)")
    assert mean("x", np.zeros(5), **of).verdict == "undecided"
    assert mean("x", np.zeros(5), basis="beyond").verdict == "measured"
    assert mean("x", [1.0], basis="promised", criterion=around(1.0, 1.0)).verdict == "undecided"
    same = Finding("", Estimate(1.0, math.nan, math.nan, 6), "6 seeds", at_least(0.9))
    assert (same.verdict, same.text) == ("agrees", "1.00 (no spread over 6 seeds)")


def test_yes_no_finding_is_undecided_with_too_few_seeds():
    of = {"basis": "promised", "criterion": at_least(page.REQUIRED)}
    holds = [share("x", np.ones(n, bool), **of).verdict == "holds" for n in range(1, 60)]
    assert holds.index(True) + 1 == page.DECIDING_SEEDS == 36
    assert share("x", np.ones(64, bool), **of).text == "64 of 64 [0.944, 1.00]"
    assert page.too_few(35).startswith("35 seeds are too few for yes/no statements")
    assert page.too_few(36) == ""


def test_expected_number_of_misses_counts_only_findings_with_criteria():
    free, judged = mean("x", [1.0, 2.0]), mean("x", [1.0, 2.0], criterion=around(0, 1))
    text = page.expected_misses([free, *[judged] * 30])
    assert text.startswith("30 of 31 numbers have a criterion.")
    assert "up to 1.5 of these 30 intervals" in text


def test_page_explains_verdicts_only_for_the_bases_in_use():
    def explained(*bases):
        return " ".join(page.rules([Finding("x", Estimate(1, 0, 2, 9), basis=basis) for basis in bases]))

    assert "A number agrees if" in explained("published")
    assert "that the theory promises" not in explained("published")
    both = explained("promised", "beyond")
    assert "that the theory promises holds if" in both
    assert "which 36 seeds or more can show" in both
    assert "numbers that the theory does not promise" in both
    assert "A number agrees if" not in both
    # Without findings the page explains the rule of published numbers.
    assert "A number agrees if" in explained()


BOOK = read_book(Path(__file__).with_name("tiny"))


@pytest.fixture
def results():
    """Two cells, three seeds; accuracy 1 in the first cell, and no value for one seed of the second."""
    rows = [
        {"cell": cell, "seed": seed, "phase": phase, "step": step, "metric": "train_accuracy", "value": value}
        for cell in (0, 1)
        for seed in range(3)
        for phase, step, value in (("embed", 1, 0.25), ("joint", 5, 0.5), ("joint", 9, 1.0 - cell * seed / 4))
    ]
    table = pd.DataFrame(rows)
    table.loc[table.index[-1], "value"] = float("nan")
    cells = [{"cell": cell, "settings": {"block": name, "model.dim": 4}} for cell, name in enumerate("ab")]
    return Run(Path(), {"cells": cells}, table, pd.DataFrame())


def test_last_returns_the_mean_over_finite_seeds_at_the_end_of_the_last_phase(results):
    first, second = metrics.cells(results, BOOK.item("texts"), metrics=["train_accuracy"]).findings
    assert (first.measured, first.over) == ("a, model.dim = 4: train accuracy", "3 seeds")
    assert first.estimate.value == 1
    assert second.measured == "b, model.dim = 4: train accuracy"
    assert second.estimate.value == (1 + 0.75) / 2
    assert second.over == "2 of 3 seeds, which have a value"
    assert metrics.last(results, 0, "loss").over == "not measured"


NUMBERS = [Finding(name, Estimate(0.5, 0.4, 0.6, 3), "") for name in ("least one_step_error", "another")]


def asking(**criteria):
    """Build a measure with these criteria."""
    return msgspec.structs.replace(BOOK.item("own").measured[0], criteria=criteria)


def test_first_matching_criterion_is_used():
    (request,) = BOOK.item("own").measured
    held, other = findings.with_criteria(NUMBERS, request)
    assert (held.verdict, held.published) == ("agrees", "≥ 0")
    assert (other.verdict, other.published) == ("measured", "-")
    first, last = request.criteria["least one_step_error"], Expected(at_least=0.9)
    for criteria, verdicts in (
        ({"*": first}, ["agrees", "agrees"]),
        ({"least *": first, "*": last}, ["agrees", "differs"]),
        ({"*": last, "least *": first}, ["differs", "differs"]),
    ):
        assert [x.verdict for x in findings.with_criteria(NUMBERS, asking(**criteria))] == verdicts
    assert replace(held, criterion=None, published="-", basis=None) == NUMBERS[0]


def test_basis_is_taken_from_the_criterion_the_finding_or_the_measure():
    own = [NUMBERS[0], replace(NUMBERS[1], basis="expected", criterion=at_least(0.3))]
    request = msgspec.structs.replace(asking(), basis="promised")
    assert [(x.basis, x.verdict) for x in findings.with_criteria(own, request)] == [
        ("promised", "undecided"), ("expected", "holds")
    ]  # fmt: skip
    # A criterion of the item replaces one of the measure, with its basis.
    request = msgspec.structs.replace(
        request, criteria={"least *": Expected(basis="beyond"), "*": Expected(at_least=0.9)}
    )
    assert [(x.basis, x.verdict) for x in findings.with_criteria(own, request)] == [
        ("beyond", "measured"), ("promised", "fails")
    ]  # fmt: skip


def test_criterion_patterns_match_finding_names_that_include_the_cell():
    found = [replace(NUMBERS[0], measured="x", cell=f"η0 = {k}") for k in (1, 2)]
    held = findings.with_criteria(found, asking(**{"η0 = 2: *": Expected(at_least=0.0)}))
    assert [x.name for x in held] == ["η0 = 1: x", "η0 = 2: x"]
    assert [x.verdict for x in held] == ["measured", "agrees"]


def test_unmatched_criterion_is_rejected_unless_optional(results):
    texts = BOOK.item("texts")
    (plain,) = texts.measured
    (criterion,) = BOOK.item("own").measured[0].criteria.values()
    request = msgspec.structs.replace(plain, criteria={"x: *": criterion})
    with pytest.raises(
        InputError, match=r"criteria: no finding matches 'x: .'; choose from a, model.dim = 4: train accuracy"
    ):
        findings.measure_item([results], request, texts)
    request = msgspec.structs.replace(
        plain, criteria={"x: *": msgspec.structs.replace(criterion, optional=True)}
    )
    assert len(findings.measure_item([results], request, texts).findings) == 2
    assert len(findings.measure_item([results], plain, texts).findings) == 2
