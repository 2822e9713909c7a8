"""Reproduction of a small book: runs, records, pages, export and checks."""

import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.books import Request, export, problems, read_book, reproduce
from jaxattn.lab.books.record import criteria_of, find_record, read_record
from jaxattn.lab.engine.progress import Reporter

TINY = Path(__file__).with_name("tiny")


def again(book, out, *only, quiet=True, **options):
    with Reporter(quiet) as reporter:
        request = Request(only, **options)
        return reproduce(book, request, out=out, command="jaxattn reproduce", reporter=reporter)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run the items that need no data; return the pages, the book and the results folder."""
    folder = tmp_path_factory.mktemp("tiny")
    book = read_book(shutil.copytree(TINY, folder / "tiny"))
    return again(book, folder / "out"), book, folder / "out"


@pytest.fixture
def copy(made, tmp_path):
    """Return the book and a copy of the results folder."""
    return made[1], Path(shutil.copytree(made[2], tmp_path / "out"))


def items(out, name="step"):
    return json.loads((out / "items" / f"{name}.json").read_text(encoding="utf-8"))


def test_records_hold_the_numbers_of_the_check(made):
    page, _, out = made
    assert (set(page.records), page.failed, page.status) == ({"step", "own"}, {}, 0)
    (finding,) = page.records["step"].findings
    records = ja.load(out / "runs" / "laptop" / "step").records
    records = records[records["metric"] == "one_step_error"]
    wide = records.groupby(["seed", "cell"])["value"].last().unstack().to_numpy()
    slopes = np.polyfit(np.log([0.25, 1.0]), -np.log(wide).T, 1)[0]
    np.testing.assert_allclose(finding.value, slopes.mean(), rtol=1e-9)
    record = items(out)
    assert record["findings"][0]["verdict"] == "agrees"
    assert record["facts"]["cells × seeds"] == "2 × 6"
    check = (TINY / "step" / "check.py").read_bytes()
    assert record["criteria"]["sha256"] == hashlib.sha256(check).hexdigest()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["criteria"]["date"])


def test_pages_show_scorecard_claims_and_the_way_to_other_items(made):
    page, _, out = made
    index, step = ((out / f"{name}.html").read_text(encoding="utf-8") for name in ("index", "step"))
    plain = step.replace("\xa0", " ").replace("<wbr>", "")
    assert [path.name for path in page.paths] == ["index.html", "step.html", "own.html", "findings.csv"]
    assert '<b class="yes">verified</b>' in index
    assert "1 of 1 number agrees; 6 seeds" in index
    assert '<a href="step.html">' in index
    assert "jaxattn reproduce tiny --only texts --data-dir DIR" in index
    assert '<a href="../claims/index.md">Elsewhere</a>' in index
    assert 'rel="next" href="own.html"' in step
    assert 'href="https://arxiv.org/abs/0000.00000"' in step
    assert "falls like s^(−1), with the scale s of E (a note of nobody&#39;s)." in plain
    assert '<td class="yes">agrees</td>' in plain
    assert "Numbers that do not agree" not in plain
    assert "−1 ± 0.3" in plain
    assert str(out) not in index + step


def test_shares_of_random_choices_are_beside_the_verdict(made):
    """The item "own" has the draws of "step": findings with the same id."""
    page, _, out = made
    (finding,) = page.records["step"].findings
    assert finding.sensitivity == (20, 20)
    assert "20 of 20" in (out / "step.html").read_text(encoding="utf-8")
    table = pd.read_csv(out / "findings.csv").set_index("item")
    assert (table["agreeing_draws"]["step"], table["draws"]["step"]) == (20, 20)
    # It is found when pages are written, and not part of the record.
    assert "sensitivity" not in items(out)["findings"][0]


@pytest.mark.more
def test_items_without_runs_are_shown_from_their_records(copy, capsys):
    book, out = copy
    shutil.rmtree(out / "runs")
    page = again(book, out, "own", quiet=False)
    assert set(page.records) == {"step", "own"}
    assert {path.name for path in (out / "runs" / "laptop").iterdir()} == {"step.study"}
    assert "studies that need data" not in capsys.readouterr().err


@pytest.mark.more
def test_finished_runs_are_not_repeated_and_earlier_seeds_are_kept(copy):
    book, out = copy
    before = {path: path.stat().st_mtime_ns for path in out.rglob("records.parquet")}
    page = again(book, out, "step", seeds=2)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("records.parquet")} == before
    assert page.records["step"].findings[0].seeds == 6


@pytest.mark.more
def test_changed_criteria_are_recorded_as_changed_if_the_study_changed_with_them(copy):
    book, out = copy
    item = book.item("step")
    assert not criteria_of(item, out).changed
    study, check = item.folder / "study.toml", item.check_file
    before = study.read_text(encoding="utf-8"), check.read_text(encoding="utf-8")
    try:
        study.write_text(before[0].replace("seeds = 10", "seeds = 9"), encoding="utf-8")
        check.write_text(before[1] + "# another criterion\n", encoding="utf-8")
        assert find_record(item, "laptop", out)[0] is None
        assert criteria_of(item, out).changed
    finally:
        study.write_text(before[0], encoding="utf-8")
        check.write_text(before[1], encoding="utf-8")


def test_changed_criteria_are_recorded_as_changed(copy, tmp_path):
    _, out = copy
    book = read_book(shutil.copytree(TINY, tmp_path / "tiny"))
    path = tmp_path / "tiny" / "step" / "check.py"
    assert problems(book, ["step"], out=out).empty
    path.write_text(path.read_text().replace("0.3", "0.001"))
    book = read_book(tmp_path / "tiny")
    (problem,) = problems(book, ["step"], out=out)["problem"]
    assert problem.startswith("check.py changed after results had been recorded")
    page = again(book, out, "step")
    assert page.records["step"].criteria.changed
    written = (out / "step.html").read_text(encoding="utf-8")
    assert "changed after results had been recorded" in written
    assert re.search(
        r"Numbers that do not agree:.*\n<ul>\n<li>exponent of s in 1/error: .* compared with", written
    )
    assert page.records["step"].findings[0].verdict != "agrees"


@pytest.mark.more
def test_an_item_without_a_criterion_states_that_it_only_measures(copy, tmp_path):
    _, out = copy
    book = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    item = book / "step"
    check = item / "check.py"
    check.write_text(check.read_text().replace("expected=expected, ", ""))
    again(read_book(book), out, "step")
    assert "check.py: no finding has a criterion" in set(
        problems(read_book(book), ["step"], out=out)["problem"]
    )
    (item / "item.toml").write_text(f"judged = false\n{(item / 'item.toml').read_text()}")
    (problem,) = problems(read_book(book), ["step"], out=out)["problem"]
    assert problem.startswith("check.py changed after results")


@pytest.mark.more
def test_falsified_theory_gives_exit_status_1(made, tmp_path):
    for basis, settings, status in (
        ("theory", "own", 1),
        ("published", "own", 0),
        ("theory", "chosen", 0),
    ):
        folder = tmp_path / f"{basis}_{settings}"
        shutil.copytree(made[2], folder / "out")
        shutil.copytree(TINY, folder / "tiny")
        path = folder / "tiny" / "step" / "check.py"
        path.write_text(
            path.read_text()
            .replace("around(-1.0, 0.3)", "around(5.0, 0.3)")
            .replace("expected=expected", f'expected=expected, basis="{basis}"')
        )
        item = folder / "tiny" / "step" / "item.toml"
        item.write_text(item.read_text().replace('"own"', f'"{settings}"', 1))
        assert again(read_book(folder / "tiny"), folder / "out", "step").status == status
        page = (folder / "out" / "step.html").read_text(encoding="utf-8")
        assert ("falsifies nothing here, because settings were chosen" in page) == (settings == "chosen")


@pytest.mark.more
def test_failing_check_names_its_line(copy, tmp_path):
    _, out = copy
    shutil.copytree(TINY, tmp_path / "tiny")
    path = tmp_path / "tiny" / "step" / "check.py"
    path.write_text(path.read_text().replace('"one_step_error"', '"one_step_eror"'))
    page = again(read_book(tmp_path / "tiny"), out, "step")
    assert page.failed["step"].startswith("one_step_eror: not recorded in phase embed; did you mean")
    path.write_text("def check(results):\n    return 1 / 0\n")
    page = again(read_book(tmp_path / "tiny"), out, "step")
    assert page.failed["step"].startswith("check.py: line 2: ZeroDivisionError: division by zero")
    assert page.status == 1
    # The earlier record is still shown.
    assert "step" in page.records


def test_texts_are_run_only_with_their_data(tmp_path):
    book = read_book(TINY)
    with pytest.raises(
        ja.InputError, match=r"--only texts: data are missing; add `--data-dir DIR`, with DIR/texts"
    ):
        again(book, tmp_path / "out", "texts")
    (tmp_path / "data").mkdir()
    with pytest.raises(ja.RunError, match="texts: data"):
        again(book, tmp_path / "out", "texts", data_dir=tmp_path / "data")
    rows = "".join(f"{word} film,{label}\n" for label, word in enumerate(("good", "bad")) for _ in range(9))
    (tmp_path / "data" / "texts.csv").write_text(f"text,label\n{rows}")
    page = again(book, tmp_path / "out", "texts", data_dir=tmp_path / "data")
    (finding,) = page.records["texts"].findings
    assert (finding.id, finding.text, finding.verdict) == ("train_accuracy", "train accuracy", "")
    assert str(tmp_path) not in (tmp_path / "out" / "texts.html").read_text()


@pytest.mark.parametrize(
    ("only", "options", "message"),
    [
        ("step", {"seeds": 1}, r"^seeds: an interval over seeds requires at least 2, got 1$"),
        ("steps", {}, r"^--only: steps: no such item; did you mean 'step'\?$"),
        ("step", {"data_dir": Path("nowhere")}, r"^--data-dir nowhere: the folder does not exist"),
    ],
)
def test_invalid_requests_are_rejected_before_the_run(tmp_path, only, options, message):
    with pytest.raises(ja.InputError, match=message):
        again(read_book(TINY), tmp_path / "out", only, **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x["findings"][0].update(verdict="differs"), "verdict on 'exponent' does not follow"),
        (lambda x: x["findings"][0].update(value=9.0), "'exponent' is outside its interval"),
        (lambda x: x["pictures"].append({"file": "../x.png", "caption": ""}), "invalid path of a figure"),
        (lambda x: x.pop("criteria"), "criteria"),
        (lambda x: x.update(scale="huge"), "huge"),
    ],
)
def test_records_of_others_are_validated(copy, change, message):
    book, out = copy
    record = items(out)
    change(record)
    path = out / "items" / "step.json"
    path.write_text(json.dumps(record))
    with pytest.raises(ja.InputError, match=message):
        read_record(path, out)
    with pytest.raises(ja.InputError, match=message):
        problems(book, ["step"], out=out)


@pytest.mark.more
def test_record_of_another_scale_or_of_other_settings_is_not_shown(copy, tmp_path):
    book, out = copy
    with pytest.raises(ja.InputError, match="contains results at laptop scale; add `--scale laptop`"):
        again(book, out, "own", scale="full")
    shutil.copytree(TINY, tmp_path / "tiny")
    study = tmp_path / "tiny" / "step" / "study.toml"
    study.write_text(study.read_text().replace("sequences = 40", "sequences = 42"))
    page = again(read_book(tmp_path / "tiny"), out, "own")
    assert "step" not in page.records
    assert "its settings have changed" in (out / "index.html").read_text()


def test_exported_logbook_lists_its_files_with_hashes(copy, tmp_path):
    book, out = copy
    shutil.rmtree(out / "runs")
    target = tmp_path / "logbook"
    paths = export(book, "laptop", out, target)
    listed = pd.read_csv(target / "files.csv")
    assert {target / name for name in listed["file"]} | {target / "files.csv"} == set(paths)
    for name, size, digest in listed.itertuples(index=False):
        content = (target / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, digest)
    assert set(listed["file"]) >= {
        "files/step/check.py",
        "files/step/study.toml",
        "files/shared/book.toml",
        "figures/step.svg",
    }
    assert problems(book, ["step"], out=target).empty
    readme, step = ((target / name).read_text(encoding="utf-8") for name in ("README.md", "step.md"))
    assert "[Error of the one-step law](step.md)" in readme
    assert "| verified | 1 of 1 number agrees | 6 seeds |" in readme
    assert "**verified** (6 seeds)" in step
    assert re.search(r"\| exponent of s in 1/error \| −1 \| −1\s±\s0.3 \| .* \| agrees \|", step)
    numbers = pd.read_csv(target / "findings.csv").set_index("item")
    assert math.isclose(numbers["value"]["step"], items(out)["findings"][0]["value"])
    with pytest.raises(ja.InputError, match="--only: nosuch: no such item"):
        export(book, "laptop", out, tmp_path / "none", ["nosuch"])
    with pytest.raises(ja.InputError, match="no records at scale 'laptop' to export"):
        export(book, "laptop", tmp_path / "empty", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert export(book, "laptop", out, tmp_path / "one", ["own"])
    assert not (tmp_path / "one" / "step.md").exists()


@pytest.mark.more
def test_command_prints_numbers_and_files(call, tmp_path, made):
    out = Path(shutil.copytree(made[2], tmp_path / "out"))
    status, printed, _ = call("reproduce", made[1].folder, "--only", "step", "--out", out, "--quiet")
    assert status == 0
    (row,) = [line for line in printed.splitlines() if "exponent of s in 1/error" in line]
    assert "-1 ± 0.3" in row
    assert "verified" in printed
    status, said, _ = call("reproduce", made[1].folder, "--only", "step", "--out", out, "--check")
    assert (status, said) == (0, "step: nothing is missing\n")
    status, printed, _ = call("reproduce", TINY, "--out", out, "--export", tmp_path / "log")
    assert status == 0
    assert str(tmp_path / "log" / "README.md") in printed
