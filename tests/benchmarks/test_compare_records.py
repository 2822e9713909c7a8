"""Comparison of published records with those of an earlier revision."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "compare_records.py"
_spec = importlib.util.spec_from_file_location("compare_records", PATH)
compare = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compare)

OLD = {
    "measured": "a share",
    "estimate": [0.5, 0.4, 0.6],
    "published": "-",
    "criterion": {"low": 0.4, "high": 0.6, "text": "0.5 ± 0.1"},
    "seeds": 8,
}
NEW = {
    "id": "share",
    "text": "a share",
    "value": 0.5,
    "interval": [0.4, 0.6],
    "expected": {"low": 0.4, "high": 0.6, "text": "0.5 ± 0.1"},
    "verdict": "agrees",
    "seeds": 8,
}


def found(new=NEW, is_new=False, item="any", **old):
    return list(compare.differences("any", item, OLD | old, new, is_new))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"value": 0.51}, "value 0.5 -> 0.51"),
        ({"interval": [0.4, 0.61]}, "interval (0.4, 0.6)"),
        ({"seeds": 9}, "seeds (8, 0, None)"),
        ({"expected": {"low": 0.4, "high": None, "text": "≥ 0.4"}}, "criterion (0.4, 0.6)"),
        ({"published": "1/2"}, "published '-' -> '1/2'"),
        ({"basis": "theory"}, "basis published -> theory"),
    ],
)
def test_every_change_of_a_number_is_reported(changes, reason):
    reasons = found(NEW | changes)
    assert (reasons == []) if reason is None else any(text.startswith(reason) for text in reasons)


def test_interval_that_was_a_bin_width_is_explained():
    width = {key: x for key, x in NEW.items() if key != "interval"} | {"resolution": 0.6 - 0.4}
    assert found(width) == ["bin"]
    assert found(width | {"resolution": 0.1}) != ["bin"]


def test_rounding_is_explained_only_if_the_item_was_run_again():
    close = NEW | {"value": 0.500001}
    assert found(close, is_new=True) == ["rounding"]
    assert found(close) == ["value 0.5 -> 0.500001"]
    assert found(NEW | {"value": 0.5001}, is_new=True) == ["value 0.5 -> 0.5001"]


def test_records_of_the_same_format_are_compared_field_by_field():
    assert list(compare.differences("any", "any", NEW, NEW, False)) == []
    changed = NEW | {"verdict": "differs", "search": "falsified"}
    expected = ["verdict agrees -> differs", "search None -> falsified"]
    assert list(compare.differences("any", "any", NEW, changed, False)) == expected


@pytest.mark.parametrize(
    ("old", "verdict"),
    [
        ({"basis": "promised"}, "holds"),
        ({"basis": "beyond"}, "holds there too"),
        ({}, "agrees"),
        ({"estimate": [0.8, 0.7, 0.9]}, "differs"),
        ({"estimate": [0.2, 0.1, 0.3], "basis": "beyond", "hits": 2}, "holds for some"),
        ({"estimate": [0.5, 0.3, 0.7]}, "cannot tell"),
        ({"estimate": [0.5, None, None]}, "agrees"),
        ({"estimate": [0.5, None, None], "seeds": 5}, "cannot tell"),
        ({"criterion": None, "basis": "promised"}, "undecided"),
    ],
)
def test_earlier_verdicts_follow_the_rule_of_that_version(old, verdict):
    assert compare.old_verdict(OLD | old) == verdict
