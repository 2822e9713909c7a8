"""Findings, their verdicts, and the verdicts on claims."""

import numpy as np
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.lab.books import (
    Finding,
    around,
    at_least,
    at_most,
    claim_verdict,
    leave_one_out,
    mean,
    share,
    slug,
    within_factor,
)
from jaxattn.lab.books.finding import tally


def test_mean_has_students_interval_and_counts_missing_seeds(rng):
    samples = np.append(rng.normal(size=9), [np.nan, np.inf])
    found = mean("x", "a quantity", samples, why="NaN")
    known = samples[:9]
    low, high = stats.t.interval(0.95, 8, known.mean(), stats.sem(known))
    np.testing.assert_allclose([found.value, *found.interval], [known.mean(), low, high])
    assert (found.seeds, found.missing, found.counted) == (9, 2, "9 of 11 seeds: in 2 NaN")


def test_share_has_the_exact_binomial_interval():
    found = share("x", "a condition", [True, True, False, True], known=[True, True, True, False], unit="run")
    interval = stats.binomtest(2, 3).proportion_ci(method="exact")
    assert (found.counts, found.seeds, found.missing) == ((2, 3), 3, 1)
    np.testing.assert_allclose(found.interval, [interval.low, interval.high])
    assert found.measured.startswith("2 of 3 [")
    assert found.counted == "3 of 4 runs have a value"


def test_leave_one_out_matches_students_interval_for_a_mean(rng):
    x = rng.normal(size=7)
    rows = [x.mean(), *(np.delete(x, k).mean() for k in range(7))]
    np.testing.assert_allclose(leave_one_out("x", "", rows).interval, mean("x", "", x).interval)


@pytest.mark.parametrize(
    ("value", "interval", "seeds", "resolution", "verdict"),
    [
        (0.5, (0.45, 0.55), 8, 0.0, "agrees"),
        (0.5, (0.39, 0.61), 8, 0.0, "inconclusive"),
        (0.7, (0.65, 0.75), 8, 0.0, "differs"),
        (0.5, None, 6, 0.0, "agrees"),
        (0.5, None, 5, 0.0, "inconclusive"),
        (0.7, None, 6, 0.0, "differs"),
        (float("nan"), None, 6, 0.0, "inconclusive"),
        # The value is known up to half the width of a bin.
        (0.5, None, 2, 0.1, "agrees"),
        (0.5, None, 2, 0.3, "inconclusive"),
        (0.9, None, 2, 0.1, "differs"),
        (0.5, None, 1, 0.1, "inconclusive"),
        (0.5, (0.35, 0.65), 2, 0.1, "inconclusive"),
    ],
)
def test_verdict_depends_on_the_whole_interval(value, interval, seeds, resolution, verdict):
    found = Finding("x", "", value, interval, expected=around(0.5, 0.1), seeds=seeds, resolution=resolution)
    assert found.verdict == verdict


def test_number_without_a_criterion_has_a_verdict_only_if_the_theory_predicts_it():
    assert Finding("x", "", 1.0).verdict == ""
    assert Finding("x", "", 1.0, basis="theory").verdict == "inconclusive"


@pytest.mark.parametrize(
    ("criterion", "low", "high"),
    [
        (at_least(2), 2, np.inf),
        (at_most(2), -np.inf, 2),
        (around(2, 0.5), 1.5, 2.5),
        (within_factor(2, 4), 0.5, 8),
    ],
)
def test_criteria_are_ranges(criterion, low, high):
    assert (criterion.low, criterion.high) == (low, high)


def number(verdict, basis="published"):
    """Return a finding with this verdict."""
    value = {"agrees": 1.0, "differs": 0.0, "inconclusive": float("nan"), "": 1.0}[verdict]
    expected = at_least(0.5) if verdict else None
    return Finding("x", "", value, expected=expected, basis=basis, seeds=6)


@pytest.mark.parametrize(
    ("verdicts", "settings", "claim"),
    [
        (["agrees", "agrees"], "own", "verified"),
        (["agrees", "agrees"], "chosen", "verified"),
        (["agrees", "agrees"], "reduced", "toy"),
        (["agrees", "differs"], "own", "falsified"),
        # A missed number whose settings are not published falsifies nothing.
        (["agrees", "differs"], "chosen", "inconclusive"),
        (["differs"], "reduced", "toy"),
        (["agrees", "inconclusive"], "own", "inconclusive"),
        (["agrees", ""], "own", "verified"),
        ([""], "own", ""),
    ],
)
def test_claim_is_judged_by_its_numbers_and_settings(verdicts, settings, claim):
    assert claim_verdict([number(verdict) for verdict in verdicts], settings) == claim


def test_numbers_beyond_a_claim_do_not_count_for_it():
    own, beyond = number("agrees"), number("differs", "beyond")
    assert claim_verdict([own, beyond], "own") == "verified"
    assert claim_verdict([beyond], "own") == ""


@pytest.mark.parametrize(
    ("verdicts", "settings", "claim"),
    [
        (["agrees"], "own", "inconclusive"),
        (["differs"], "own", "inconclusive"),
        (["agrees"], "reduced", "toy"),
        ([""], "own", ""),
    ],
)
def test_claim_of_an_abstract_is_at_most_inconclusive(verdicts, settings, claim):
    assert claim_verdict([number(verdict) for verdict in verdicts], settings, "abstract") == claim
    quoted = claim_verdict([number(verdict) for verdict in verdicts], settings, "transcription")
    assert quoted == claim_verdict([number(verdict) for verdict in verdicts], settings)


def test_counterexample_to_an_abstract_is_inconclusive():
    assert claim_verdict([searched("falsified")], "own", "abstract") == "inconclusive"
    assert claim_verdict([searched("no counterexample")], "own", "abstract") == "no counterexample"


def searched(verdict):
    """Return the finding of a search with this verdict."""
    return Finding("search", "", 1.0, (1.0, 1.0), expected=at_most(0), search=verdict, unit="9 instances")


@pytest.mark.parametrize(
    ("search", "verdicts", "settings", "claim"),
    [
        # An exact counterexample falsifies, whatever was measured in other settings.
        ("falsified", ["agrees"], "reduced", "falsified"),
        ("falsified", [], "chosen", "falsified"),
        ("falsified (boundary case)", [], "own", "falsified (boundary case)"),
        # Otherwise the numbers decide, and a search without them keeps its own verdict.
        ("numerical counterexample", ["agrees"], "own", "verified"),
        ("no counterexample", ["differs"], "own", "falsified"),
        ("no counterexample", [""], "own", "no counterexample"),
    ],
)
def test_search_falsifies_only_with_an_exact_counterexample(search, verdicts, settings, claim):
    found = [searched(search), *map(number, verdicts)]
    assert claim_verdict(found, settings) == claim


def test_tally_counts_numbers_of_each_verdict():
    words = ["agrees", "agrees", "differs", "inconclusive", ""]
    assert tally([number(word) for word in words]) == "2 of 4 numbers agree, 1 differs, 1 inconclusive"
    assert tally([number("")]) == "1 number without a criterion"
    mixed = [number("agrees"), number("agrees", "beyond"), number("differs", "beyond")]
    assert tally(mixed) == "1 of 1 number agrees; beyond the claim 1 of 2 agrees, 1 differs"
    assert tally([searched("falsified"), number("agrees")]) == "after 9 instances; 1 of 1 number agrees"
    assert tally([searched("no counterexample")]) == "in 9 instances"


def test_bin_width_is_shown_and_not_mistaken_for_an_interval_over_seeds():
    found = leave_one_out("x", "minimum", [0.05] * 4, resolution=0.1, expected=around(0.0, 0.2))
    assert found.interval is None
    assert found.measured == "0.0500 (no spread over 3 seeds), bins of 0.100"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("n = 3, SGD", "n=3-sgd"),
        ("λ falls from 1", "lambda-falls-from-1"),
        ("model.dim = 64", "model.dim=64"),
    ],
)
def test_names_of_cells_become_parts_of_ids(text, id):
    assert slug(text) == id


@pytest.mark.parametrize("id", ["", "two words"])
def test_malformed_id_is_rejected(id):
    with pytest.raises(ja.InputError, match="an id has no spaces, such as slope"):
        Finding(id, "", 1.0)
