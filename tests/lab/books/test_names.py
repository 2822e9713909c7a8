"""Names of findings before a run, compared with those after a run."""

import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from jaxattn.lab.books.names import MEASURED_NAMES, check_names, known_names

from jaxattn.core.errors import InputError
from jaxattn.lab.books import list_findings, read_book
from jaxattn.lab.books.run import Request

PAPER = read_book("paper")
RECORDS = Path(__file__).parents[3] / "results" / "published" / "paper" / "items"
TINY = Path(__file__).with_name("tiny")
KNOWN = [item for item in PAPER.items if item.measured and item.measured[0].kind in MEASURED_NAMES]


@pytest.mark.parametrize("item", KNOWN, ids=lambda item: item.name)
def test_finding_names_known_before_a_run_match_the_published_records(item):
    left = json.loads((RECORDS / f"{item.name}.json").read_text(encoding="utf-8"))["findings"]
    (measure,) = item.measured
    known = known_names(measure, item, item.study("full"))
    assert len(known) == len(left)
    for name, finding in zip(known, left, strict=True):
        assert name == finding["measured"] or fnmatchcase(finding["measured"], name)
    check_names(measure, item, known)


def test_findings_of_custom_measures_are_named_only_after_the_run():
    item = read_book(TINY).item("own")
    (measure,) = item.measured
    assert known_names(measure, item, item.study("laptop")) is None
    check_names(measure, item, None)
    with pytest.raises(
        InputError, match=r"own/item.toml: criteria: no finding matches 'least one_step_error'"
    ):
        check_names(measure, item, ["another"])


def test_unmatched_criterion_is_rejected_before_the_run(call, tmp_path):
    book = shutil.copytree(TINY, tmp_path / "tiny")
    text = (book / "step" / "item.toml").read_text(encoding="utf-8")
    assert "[measures.criteria]" in text
    wrong = text.replace("[measures.criteria]", '[measures.criteria]\n"power of n" = { at_least = 1.0 }')
    (book / "step" / "item.toml").write_text(wrong, encoding="utf-8")
    out = tmp_path / "out"
    for words in ((), ("--check",)):
        status, _, said = call("reproduce", book, "--only", "step", "--out", out, "--quiet", *words)
        assert status == 2
        (line,) = said.splitlines()
        assert line.endswith(
            "item.toml: criteria: no finding matches 'power of n'; choose from "
            "power of d in the error per unit of η0"
        )
    assert not out.exists()
    optional = wrong.replace("at_least = 1.0", "at_least = 1.0, optional = true")
    (book / "step" / "item.toml").write_text(optional, encoding="utf-8")
    status, printed, _ = call("reproduce", book, "--only", "step", "--out", out, "--check")
    assert (status, "README.md is missing" in printed) == (1, True)


def test_check_prints_findings_and_criteria(call, tmp_path):
    status, printed, _ = call("reproduce", TINY, "--check", "--out", tmp_path / "out")
    assert (status, "README.md is missing" in printed) == (1, True)
    assert "power of d in the error per unit of η0" in printed
    # For findings that are known only after a run, the names of the criteria.
    assert "least one_step_error" in printed
    assert not (tmp_path / "out").exists()


def test_list_findings_covers_the_findings_of_all_measures_of_an_item(tmp_path):
    found = list_findings(read_book("claims"), Request(("L4.2", "label", "MR")), out=tmp_path)
    assert found["item"].tolist() == [*["L4.2"] * 7, "label", *["MR"] * 2]
    assert found["finding"][0] == "margin · t ‖∂L/∂p‖ at the end between *"
    assert found["criterion"].tolist() == [
        *["≥ 0.9", "1 ± 0.1", "1 ± 0.01"] * 2, "-", "-", "≥ 0.9", "≥ 0.9"
    ]  # fmt: skip
    assert found["finding"][6] == found["finding"][7] == "known after the first run"
