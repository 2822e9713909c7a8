"""Findings of a run: what a measure makes of it, held against criteria, and verdicts together."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.books import findings, read
from jaxattn.lab.books.book import Expected
from jaxattn.lab.books.findings import AGREES, MEASURED, Finding, verdict
from jaxattn.lab.results.judge import Estimate, at_least
from jaxattn.lab.results.run import Run


def test_an_item_agrees_only_if_all_its_findings_do():
    good = Finding("", Estimate(1.0, 1.0, 1.0), "", at_least(0.9))
    bad = Finding("", Estimate(0.0, 0.0, 0.0), "", at_least(0.9))
    lone = Finding("", Estimate(0.0, 0.0, 0.0), "")
    assert verdict([good, lone]) == AGREES == "agrees"
    assert verdict([good, bad, good]) == "agrees in 2, differs in 1"
    assert verdict([lone]) == MEASURED == "measured"


def test_a_number_that_no_seed_changes_says_so():
    same = Finding("", Estimate(1.0, float("nan"), float("nan"), 6), "6 seeds", at_least(0.9))
    assert (same.verdict, same.text) == ("agrees", "1.00 whichever of 6 seeds is left out")


BOOK = read(Path(__file__).with_name("tiny"))


@pytest.fixture
def results():
    """Two cells, three seeds; an accuracy of 1 in the first, and none for a seed of the second."""
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


def test_a_metric_is_that_at_the_end_of_the_last_phase_over_the_seeds_that_have_it(results):
    first, second = findings.cells(results, BOOK.item("texts"), metrics=["train_accuracy"]).findings
    assert (first.measured, first.over) == ("a, model.dim = 4: train accuracy", "3 seeds")
    assert first.estimate.value == 1
    assert second.measured == "b, model.dim = 4: train accuracy"
    assert second.estimate.value == (1 + 0.75) / 2
    assert second.over == "2 of 3 seeds, which have a value"
    assert findings.last(results, 0, "loss").over == "not measured"


def test_findings_are_held_against_the_first_criterion_whose_pattern_fits(results):
    item = BOOK.item("own")
    bare = [Finding(name, Estimate(0.5, 0.4, 0.6, 3), "") for name in ("least one_step_error", "another")]
    held, other = findings.hold(bare, item)
    assert (held.verdict, held.published) == ("agrees", "≥ 0")
    assert (other.verdict, other.published) == ("measured", "-")
    first, last = item.criteria["least one_step_error"], Expected(at_least=0.9)
    for criteria, verdicts in (
        ({"*": first}, ["agrees", "agrees"]),
        ({"least *": first, "*": last}, ["agrees", "differs"]),
        ({"*": last, "least *": first}, ["differs", "differs"]),
    ):
        ordered = msgspec.structs.replace(item, criteria=criteria)
        assert [finding.verdict for finding in findings.hold(bare, ordered)] == verdicts
    assert replace(held, criterion=None, published="-") == bare[0]


def test_a_criterion_that_fits_nothing_is_refused(results):
    texts = BOOK.item("texts")
    item = msgspec.structs.replace(
        texts, criteria={"x: *": BOOK.item("own").criteria["least one_step_error"]}
    )
    with pytest.raises(
        InputError, match=r"criteria: no finding 'x: .'; there are a, model.dim = 4: train accuracy"
    ):
        findings.measure(results, item)
    assert len(findings.measure(results, texts).findings) == 2
