"""Names of findings that are known before a run, next to those that runs have left."""

import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.books import read
from jaxattn.lab.books.names import NAMES, check, names

PAPER = read("paper")
RECORDS = Path(__file__).parents[3] / "results" / "published" / "paper" / "items"
TINY = Path(__file__).with_name("tiny")
KNOWN = [item for item in PAPER.items if item.measure.get("kind") in NAMES]


@pytest.mark.parametrize("item", KNOWN, ids=lambda item: item.name)
def test_names_are_those_that_a_run_leaves(item):
    left = json.loads((RECORDS / f"{item.name}.json").read_text(encoding="utf-8"))["findings"]
    known = names(item, item.study("full"))
    assert len(known) == len(left)
    for name, finding in zip(known, left, strict=True):
        assert name == finding["measured"] or fnmatchcase(finding["measured"], name)
    check(item, known)


def test_measures_of_own_code_have_names_when_they_have_run():
    item = read(TINY).item("own")
    assert names(item, item.study("laptop")) is None
    check(item, None)
    with pytest.raises(InputError, match=r"own/item.toml: criteria: no finding 'least one_step_error'"):
        check(item, ["another"])


def test_a_criterion_that_fits_nothing_ends_before_anything_runs(call, tmp_path):
    book = shutil.copytree(TINY, tmp_path / "tiny")
    text = (book / "step" / "item.toml").read_text(encoding="utf-8")
    assert "[criteria]" in text
    wrong = text.replace("[criteria]", '[criteria]\n"power of n" = { at_least = 1.0 }')
    (book / "step" / "item.toml").write_text(wrong, encoding="utf-8")
    out = tmp_path / "out"
    for words in ((), ("--check",)):
        status, _, said = call("reproduce", "--book", book, "--only", "step", "--out", out, "--quiet", *words)
        assert status == 2
        (line,) = said.splitlines()
        assert line.endswith(
            "item.toml: criteria: no finding 'power of n'; there are power of d in the error per unit of η0"
        )
    assert not out.exists()


def test_check_prints_findings_and_criteria(call, tmp_path):
    status, printed, _ = call("reproduce", "--book", TINY, "--check", "--out", tmp_path / "out")
    assert status == 0
    assert "power of d in the error per unit of η0" in printed
    assert "named by its code when it has run" in printed
    assert not (tmp_path / "out").exists()
