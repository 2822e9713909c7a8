"""Runs of the book of claims at test size: new runs, resumed runs and output files."""

import shutil
from dataclasses import replace

import jax
import msgspec
import numpy as np
import pandas as pd
import pytest

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.books import book as books_module
from jaxattn.lab.books import read_book, reproduce
from jaxattn.lab.books.run import Request
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results import judge, layout, load
from jaxattn.lab.results.judge import VERDICTS, Estimate
from jaxattn.lab.results.layout import typeset

SEEDS = 3
CLAIMS = read_book("claims")
FOUND = ("label", "cover", "mixture")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the runs."""
    return tmp_path_factory.mktemp("claims")


@pytest.fixture(scope="module")
def claims(plan, folder):
    """Run claims at small sizes."""

    def run(*only, book=CLAIMS, out=folder, seeds=SEEDS, quiet=True, **options):
        named = {x for item in book.items for measure in item.measured for x in measure.studies}
        overrides = {name: changes for name, changes in plan.items() if name in named}
        request = Request(only, **{"seeds": seeds, "overrides": overrides} | options)
        with Reporter(quiet) as reporter:
            return reproduce(book, request, out=out, command="jaxattn reproduce claims", reporter=reporter)

    return run


@pytest.fixture(scope="module")
def one(claims):
    """Return the page after one claim was run."""
    return claims("MC")


def section(page, name):
    """Return the section of an item."""
    (found,) = (each for each in page.sections if each.item.name == name)
    return found


def stamps(folder):
    """Return the modification times of the records of runs."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("records.parquet")}


def replace_items(*names):
    return replace(CLAIMS, shared=msgspec.structs.replace(CLAIMS.shared, items=names))


@pytest.mark.more
def test_finished_claims_are_not_run_again(one, claims, folder):
    before, written = stamps(folder), [path.read_bytes() for path in one.paths]
    assert {path.relative_to(folder).parts[:3] for path in before} == {("runs", "laptop", "law-classes")}
    assert [path.read_bytes() for path in claims("MC").paths] == written
    assert stamps(folder) == before


@pytest.mark.more
def test_only_missing_seeds_are_run(one, claims, folder, tmp_path):
    before = stamps(folder)
    fewer = claims("MC", seeds=2)
    assert stamps(folder) == before
    # The page shows all results of the folder.
    assert {finding.estimate.seeds for finding in fewer.findings} == {SEEDS}
    shutil.copytree(folder, tmp_path / "more")
    more = claims("MC", out=tmp_path / "more", seeds=SEEDS + 1)
    assert {finding.estimate.seeds for finding in more.findings} == {SEEDS + 1}
    ran = load(tmp_path / "more" / "runs" / "laptop" / "law-classes")
    assert "cells × seeds: 2 × 4" in more.paths[0].read_text(encoding="utf-8")
    old = load(folder / "runs" / "laptop" / "law-classes").records
    keys = ["cell", "seed", "phase", "step", "metric"]
    both = old.merge(ran.records, on=keys, suffixes=("", "_more"))
    assert len(both) == len(old)
    np.testing.assert_array_equal(both["value"], both["value_more"])


@pytest.mark.more
def test_written_files_match_the_table(one):
    text, shown, read_csv = (path.read_text(encoding="utf-8") for path in one.paths[:3])
    assert [path.name for path in one.paths[:3]] == ["index.md", "index.html", "claims.csv"]
    table, (found,) = pd.read_csv(one.paths[2]), [each for each in one.sections if each.ran]
    assert read_csv.splitlines()[0] == (
        "claim,statement,setting,promised,seeds,missing,why,measured,value,low,high,tolerance,verdict,certificate"
    )
    assert table["claim"].tolist() == ["MC"] * 3
    shown_tables = pd.concat(found.agreement.values())
    assert [judge.verdict_text(x) for x in table["verdict"]] == shown_tables["verdict"].tolist()
    assert table["promised"].tolist() == [finding.basis == "promised" for finding in found.findings]
    for column in ("value", "low", "high", "seeds", "missing"):
        numbers = [getattr(finding.estimate, column) for finding in found.findings]
        np.testing.assert_array_equal(table[column], numbers)
    assert list(found.agreement) == list(dict.fromkeys(table["statement"]))
    assert list(shown_tables) == [
        "setting", "quantity", "result", "interval over", "criterion", "promised", "verdict"
    ]  # fmt: skip
    for finding in found.findings:
        assert typeset(found.item.label(finding.measured)) in text
        assert f"| {typeset(finding.text)} |" in text
        assert typeset(found.item.label(finding.setting)) in text
    assert text.startswith(
        "# The claims of the theory, measured\n\n**2 numbers in 1 of 11 items are promised by the theory: "
    )
    assert "36\xa0seeds or more" in text
    assert "Made by" not in text
    plain = shown.replace("<wbr>", "").replace("\xa0", " ")
    for verdict in set(shown_tables["verdict"]):
        tone = layout.tone(verdict)
        cell = f'<td class="{tone}">{verdict}</td>' if tone else f"<td>{verdict}</td>"
        assert plain.count(cell) == (shown_tables["verdict"] == verdict).sum()
    assert shown.index("promised by the theory") < shown.index("<nav") < shown.index("<main>")


@pytest.mark.more
def test_manifest_contains_versions_and_the_command(one, folder):
    manifest = load(folder / "runs" / "laptop" / "law-classes").manifest
    assert jax.__version__ in str(manifest)
    assert "jaxattn reproduce claims" in str(manifest["command"])


@pytest.mark.more
def test_failed_prediction_exits_with_status_1(one):
    ran = section(one, "MC")
    promised = next(finding for finding in ran.findings if finding.basis == "promised")
    failed, open_ = (replace(promised, estimate=Estimate(*[x] * 3, 3)) for x in (9.0, float("nan")))
    beyond = replace(failed, basis="beyond")
    assert [x.verdict for x in (failed, open_, beyond)] == ["fails", "undecided", "does not hold"]
    for finding, status in ((failed, 1), (open_, 0), (beyond, 0)):
        assert replace(one, sections=(replace(ran, findings=(finding,)),)).status == status
    assert replace(one, sections=(), failed={"MC": "no memory"}).status == 1


@pytest.mark.more
def test_unwritable_folder_raises_a_one_line_error(one, claims, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunError, match=r"^MC: .*file: is a file, not a folder; choose another results folder with --out"
    ):
        claims("MC", out=tmp_path / "file")


def test_claims_that_require_a_checkout_are_skipped_without_one(
    one, claims, folder, tmp_path, monkeypatch, capsys, call
):
    monkeypatch.setattr(books_module, "CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    page = claims(book=replace_items("MC", *FOUND), quiet=False)
    said = capsys.readouterr().err
    reason = "findings: this book exists only in a checkout of jaxattn, in sweeps/; run the command there"
    assert f"label, cover, mixture: not run; {reason}" in said
    assert page.status == 0
    assert section(page, "MC").ran
    assert {section(page, name).verdict for name in FOUND} == {"not run"}
    # Without the checkout, its record cannot be compared with the study.
    shutil.copytree(folder, tmp_path / "out")
    (tmp_path / "out" / "items" / "cover.json").write_bytes((folder / "items" / "MC.json").read_bytes())
    page = claims("MC", out=tmp_path / "out")
    assert section(page, "cover").remedy.startswith(f"{reason}; run `jaxattn reproduce claims --only cover`")
    with pytest.raises(InputError, match=f"^--only cover: {reason}$"):
        claims("cover", out=tmp_path / "none")
    status, _, said = call("reproduce", "claims", "--only", "MC", "cover", "--out", tmp_path / "none")
    assert status == 2
    (line,) = (line for line in said.splitlines() if "36 seeds" not in line)
    assert line.endswith(f"--only cover: {reason}")
    assert not (tmp_path / "none").exists()
    status, printed, _ = call("reproduce", "claims", "--check", "--out", tmp_path / "none")
    assert status == 0
    assert "error of values" in printed


@pytest.mark.parametrize(
    ("only", "options", "message"),
    [
        ("MC", {"seeds": 1}, r"^seeds: an interval over seeds requires at least 2, got 1$"),
        ("L5", {}, r"^--only: L5: no such item; known: L4\.1, MC, "),
        ("mixtures", {}, r"^--only: mixtures: no such item; did you mean 'mixture'\?$"),
        (
            "MC",
            {"overrides": {"law-clases": ()}},
            r"^overrides: no item has a study 'law-clases'; did you mean 'law-classes'\?$",
        ),
        ("MC", {"overrides": {"law-classes": ("model.dims=3",)}}, r"dims"),
    ],
)
def test_invalid_input_is_rejected_before_the_run(claims, tmp_path, only, options, message):
    with pytest.raises(InputError, match=message) as said:
        claims(only, out=tmp_path / "out", **options)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "out").exists()


def test_too_few_seeds_for_yes_no_statements_give_a_warning(call, tmp_path):
    (tmp_path / "out").write_text("")
    for seeds, warned in ((35, True), (36, False)):
        _, _, said = call("reproduce", "claims", "--seeds", seeds, "--only", "MC", "--out", tmp_path / "out")
        assert (f"{seeds} seeds are too few for yes/no statements" in said) == warned


@pytest.fixture(scope="module")
def every(claims):
    """Run all claims but those on texts."""
    return claims()


@pytest.mark.slow
def test_every_claim_has_findings_with_intervals(every):
    assert every.failed == {}
    for each in every.sections:
        assert any(finding.basis == "promised" for finding in each.findings), each.item.name
    for finding in every.findings:
        value, low, high, seeds, *_ = finding.estimate
        assert np.isfinite(value), finding
        assert low <= value <= high or finding.text.endswith(f"(no spread over {seeds} seeds)")
        words = VERDICTS[finding.basis]
        assert finding.verdict in (*words, *(["holds for some"] if finding.basis == "beyond" else []))


@pytest.mark.slow
def test_every_study_runs_once_and_directions_have_certificates(every, folder, plan):
    ran = {path.name for path in (folder / "runs" / "laptop").iterdir()}
    assert ran == {name.replace(":", ".").replace("/", ".") for name in plan}
    table = pd.read_csv(folder / "claims.csv")
    assert table["claim"].drop_duplicates().tolist() == [item.name for item in CLAIMS.items]
    assert table[table["claim"] == "T4.3"]["certificate"].str.contains("certified").all()
    facts = section(every, "T4.3").facts
    assert facts["sweep files"] == ", ".join(
        f"jaxattn/lab/books/claims/{name}.toml" for name in ("base", "independent", "several", "beyond")
    )
    assert section(every, "L4.1").facts["not run"].startswith("law-texts; a folder of tensorflow-datasets")
    assert section(every, "cover").facts["sweep file"] == "findings:which_cover/claim"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Write labelled texts to a file."""
    rng = np.random.default_rng(0)
    words = np.array(["good", "bad", "a", "the", "film", "plot", "was", "so"])
    rows = [
        {"text": " ".join([words[1 - label], *rng.choice(words[2:], 5)]), "label": label}
        for label in [0, 1] * 20
    ]
    path = tmp_path_factory.mktemp("texts") / "train.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_text_corpora_have_separate_findings(plan, claims, texts):
    data = f'data={{kind = "csv", path = "{texts}"}}'
    descent = ("phases.step.step_size=50.0", "phases.descent.step_size=0.5", "phases.descent.steps=20")
    small = plan | {
        "law-texts": (data, "axes.model.dim=[32,64]"),
        "flow-texts": (data, "model.dim=64", *descent),
    }
    page = claims("L4.1", "L4.2", seeds=SEEDS + 1, overrides=small, data_dir=texts.parent)
    found = [
        (each.item.name, finding)
        for each in page.sections
        for finding in each.findings
        if finding.setting.startswith("texts, V = 8, n = 40")
    ]
    # At most three seeds of the flow.
    assert [(name, x.estimate.seeds) for name, x in found] == [("L4.1", 4)] * 2 + [("L4.2", 3)] * 2
    assert all(np.isfinite(x.estimate[:3]).all() for _, x in found)
    # A limit that no run reaches never holds.
    assert [x.verdict for _, x in found[2:]] == ["undecided", "undecided"]
    assert {x.basis for _, x in found} == {"promised"}


@pytest.mark.more
def test_findings_from_another_book_are_measured_with_the_code_of_that_book(one, claims):
    page = claims("MC", "cover", book=replace_items("MC", "cover"))
    assert [each.item.name for each in page.sections] == ["MC", "cover"]
    assert [len(each.findings) for each in page.sections] == [3, 3]
    text = page.paths[0].read_text(encoding="utf-8")
    assert "**4 numbers in all 2 items are promised by the theory: " in text
    assert section(page, "cover").findings[2].verdict == "measured"
