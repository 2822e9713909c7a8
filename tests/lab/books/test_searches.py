"""Items with a claim: searches, verdicts, pages, checks and export."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.books import Request, export, problems, read_book, reproduce
from jaxattn.lab.engine.progress import Reporter

SEARCHED = Path(__file__).with_name("searched")


def again(book, out, *only, **options):
    with Reporter(quiet=True) as reporter:
        return reproduce(book, Request(only, **options), out=out, command="", reporter=reporter)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Search for counterexamples to all claims; return the pages, the book and the results folder."""
    folder = tmp_path_factory.mktemp("searched")
    book = read_book(shutil.copytree(SEARCHED, folder / "searched"))
    return again(book, folder / "out"), book, folder / "out"


@pytest.fixture
def copy(made, tmp_path):
    """Return the book and a copy of the results folder."""
    return made[1], Path(shutil.copytree(made[2], tmp_path / "out"))


def test_verdicts_distinguish_exact_numerical_boundary_and_missing_counterexamples(made):
    """In Z², ‖x‖² is at most 32. The smallest x with ‖x‖² > 8 has the single entry 3."""
    page, _, _ = made
    verdicts = {row["item"]: row["claim"] for _, row in page.scorecard.iterrows()}
    assert verdicts == {
        "norm": "falsified",
        "true": "no counterexample",
        "flow": "numerical counterexample, exact target",
        "tie": "falsified (boundary case)",
    }
    (exact,), (none,), (flow,) = (page.records[name].findings for name in ("norm", "true", "flow"))
    assert (exact.value, exact.interval, exact.verdict) == (1.0, (1.0, 1.0), "differs")
    assert (flow.value, flow.interval, flow.verdict) == (0.625, (0.5, 0.75), "differs")
    # 9 + 81 vectors without 0.
    assert (none.value, none.verdict, none.counted) == (0.0, "", "88 instances, 1 seed")
    assert page.status == 0


def test_page_shows_the_instance_the_violation_and_the_files(made):
    _, _, out = made
    index, norm = ((out / f"{name}.html").read_text(encoding="utf-8") for name in ("index", "norm"))
    plain = norm.replace("\xa0", " ").replace("<wbr>", "")
    assert "1 falsified, 1 falsified (boundary case), 1 without a counterexample" in index
    assert '<b class="no">falsified</b>: after 8 instances, 1 seed' in plain
    for text in ("Counterexample: x", "largest", "left side", "<td>9</td>", "Control, for which", "x ≠ 0"):
        assert text in plain, text
    assert '<a href="norm/check.py">' in norm
    assert "claim.py with SHA-256" in norm
    done = subprocess.run([sys.executable, "-I", out / "norm" / "check.py"], check=False)
    assert done.returncode == 0
    table = pd.read_csv(out / "findings.csv").set_index("item")
    assert table["verdict"]["true"] == "no counterexample"


def test_seeds_are_searches_and_finished_ones_are_not_repeated(copy):
    book, out = copy
    state = out / "runs" / "laptop" / "norm" / "seed-0" / "search.json"
    before = state.stat().st_mtime_ns
    page = again(book, out, "norm", seeds=2)
    assert state.stat().st_mtime_ns == before
    _, found = page.records["norm"].findings
    assert (found.counts, page.records["norm"].findings[0].counted) == ((2, 2), "16 instances")
    # Earlier seeds are kept.
    assert again(book, out, "norm").records["norm"].findings[1].counts == (2, 2)


def test_recorded_counterexamples_are_decided_again(copy):
    book, out = copy
    assert problems(book, out=out).empty
    path = out / "norm" / "counterexample.json"
    record = json.loads(path.read_text())
    for change in ({"instance": {"x": [2]}}, {"left": "10"}, {"instance": {"x": [0]}}):
        path.write_text(json.dumps(record | change))
        (problem,) = problems(book, ["norm"], out=out)["problem"]
        assert problem.endswith("the claim does not confirm it; run the item again")
    path.unlink()
    (problem,) = problems(book, ["norm"], out=out)["problem"]
    assert "is missing or damaged" in problem


def test_a_falsified_claim_needs_a_number_that_differs(copy):
    book, out = copy
    path = out / "items" / "true.json"
    path.write_text(path.read_text().replace('"search": "no counterexample"', '"search": "falsified"'))
    with pytest.raises(ja.InputError, match="'search': falsified does not follow from its number"):
        problems(book, ["true"], out=out)


def test_changed_claims_are_searched_again_and_recorded_as_changed(copy, tmp_path):
    before, out = copy
    again(before, out, "norm", seeds=2)
    book = Path(shutil.copytree(SEARCHED, tmp_path / "searched"))
    path = book / "norm" / "claim.py"
    path.write_text(path.read_text().replace("claim = norm(8", "claim = norm(15").replace("proof.py", ""))
    (problem,) = problems(read_book(book), ["true"], out=out)["problem"]
    assert problem.startswith("claim.py changed after results had been recorded")
    page = again(read_book(book), out, "norm")
    assert page.records["norm"].criteria.changed
    # The search of the other claim with seed 1 is not counted.
    (found,) = page.records["norm"].findings
    assert found.counted == "8 instances, 1 seed"
    assert json.loads((out / "norm" / "counterexample.json").read_text())["left"] == "16"


def test_export_contains_claim_and_proof(copy, tmp_path):
    book, out = copy
    export(book, "laptop", out, tmp_path / "log")
    assert problems(book, out=tmp_path / "log").empty
    listed = set(pd.read_csv(tmp_path / "log" / "files.csv")["file"])
    assert {"norm/check.py", "norm/counterexample.json", "files/norm/claim.py"} <= listed
    page = (tmp_path / "log" / "norm.md").read_text(encoding="utf-8")
    assert "**falsified**" in page
    assert "Hypothesis: x ≠ 0" in page
    assert "| left side | 9 |" in page
