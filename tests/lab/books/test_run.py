import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from jaxattn.lab.books.section import RunLocation

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.books import read_book, reproduce, run
from jaxattn.lab.books.page import write_book_page
from jaxattn.lab.books.run import Request
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results import load, report
from jaxattn.lab.storage import study_file

SMALL = (
    "model.dim=16",
    "seeds=2",
    "phases.joint.steps=4",
    "data.sequences=40",
    "data.test_sequences=20",
    "data.vocab_size=30",
    "data.relevant=20",
    "data.length=6",
)
TINY = {"study": SMALL}
PAPER = read_book("paper")
TINY_BOOK = Path(__file__).with_name("tiny")
RUN = [item for item in PAPER.items if item.measured]


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """Run some items at tiny sizes."""

    def run(*only, out=None, max_memory=None, **options):
        request = Request(only, **{"overrides": TINY} | options)
        with Reporter(quiet=True) as reporter:
            return reproduce(
                PAPER,
                request,
                out=out or folder,
                command="jaxattn reproduce",
                reporter=reporter,
                max_memory=max_memory,
            )

    folder = tmp_path_factory.mktemp("paper")
    return run


@pytest.fixture(scope="module")
def page(again):
    """The page after one item was run."""
    return again("fig2_synthetic")


@pytest.mark.parametrize("scale", ["laptop", "full"])
@pytest.mark.parametrize("item", RUN, ids=lambda item: item.name)
def test_study_of_every_item_can_be_created_at_either_scale(item, scale):
    study = item.study(scale, data_dir=Path("data"))
    assert study.name == item.name
    assert study.cells
    if item.data:
        place = study.config["data"].get("data_dir") or study.config["data"]["path"]
        assert Path(place).parts[0] == "data"


@pytest.mark.more
def test_summary_has_one_row_per_item(page):
    assert page.summary["item"].tolist() == [item.name for item in PAPER.items]
    verdicts = page.summary.set_index("item")["verdict"]
    assert verdicts["fig2_synthetic"] not in ("not run", "shown elsewhere")
    assert verdicts["v_with_p"] == "shown elsewhere"
    assert not page.failed


def test_page_shows_how_to_run_items_with_missing_data(page):
    text = page.paths[0].read_text()
    part = text[text.index("## Figure 3: one layer on IMDB") : text.index("## Figure 3: one layer on Yelp")]
    assert "Run `jaxattn reproduce paper --only fig3_imdb --data-dir DIR`, with DIR/tfds" in part
    assert page.summary.set_index("item")["verdict"]["fig3_imdb"] == "not run"


def test_requested_item_without_data_is_rejected(call, tmp_path):
    out = tmp_path / "paper"
    status, _, said = call("reproduce", "paper", "--only", "fig2_synthetic", "fig1_imdb", "--out", out)
    assert status == 2
    (line,) = said.splitlines()
    assert line.endswith(
        "--only fig1_imdb: data are missing; run `jaxattn reproduce paper --only fig1_imdb --data-dir DIR`, "
        "with DIR/tfds: imdb_reviews of tensorflow-datasets"
    )
    assert not out.exists()


@pytest.fixture
def tiny():
    """A custom book in a separate folder."""
    return read_book(TINY_BOOK)


def of_tiny(tiny, out, *only, quiet=True, **options):
    with Reporter(quiet=quiet) as reporter:
        request = Request(only, **options)
        return reproduce(tiny, request, out=out, command="jaxattn reproduce", reporter=reporter)


@pytest.mark.more
def test_numbers_of_items_requested_by_name_are_printed(call, tmp_path):
    out = tmp_path / "out"
    status, printed, _ = call("reproduce", TINY_BOOK, "--only", "step", "--out", out, "--quiet")
    assert status == 0
    (row,) = [line for line in printed.splitlines() if "power of d in the error per unit of η0" in line]
    assert "-0.5 ± 0.3" in row
    assert row.rstrip().endswith("agrees")
    # Items that were not requested are on the page only.
    assert "not run" not in printed


@pytest.mark.more
def test_custom_book_is_reproduced(call, tmp_path):
    out = tmp_path / "out"
    status, printed, _ = call("reproduce", TINY_BOOK, "--out", out, "--quiet")
    assert status == 0
    assert "A tiny book" in printed
    text = (out / "index.md").read_text(encoding="utf-8")
    verdict = "**2 numbers in 2 of 4 items are compared with a criterion: 2 agree.**"
    assert text.startswith(f"# A tiny book\n\n{verdict}\n\nNumbers that a note reports, run again.\n")
    assert "falls like d^(−1/2) (a note of nobody's)." in text
    assert "| power of d in the error per unit of η0 |" in text
    assert "| −0.5\xa0±\xa00.3 | agrees |" in text
    assert "| least one_step_error |" in text
    assert "Run `jaxattn reproduce tiny --only texts --data-dir DIR`, with DIR/texts.csv" in text
    assert "See [the rows](../claims/index.md)." in text
    assert "- sweep file: tiny/step/study.toml" in text
    assert "- overrides: seeds=6" in text
    shutil.rmtree(out / "runs")
    summary = write_book_page(read_book(TINY_BOOK), RunLocation(out, "laptop"))
    assert summary.summary["verdict"].tolist() == [
        "1 of 1 agrees",
        "1 of 1 agrees",
        "not run",
        "shown elsewhere",
    ]


def test_items_without_data_are_listed_on_one_line(tiny, tmp_path, capsys):
    of_tiny(replace_items(tiny, "texts", "elsewhere"), tmp_path, quiet=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "1 item: measures that need data are not run; add `--data-dir DIR`, with "
        "DIR/texts.csv: texts with labels"
    )
    with pytest.raises(
        InputError, match="--only texts: data are missing; run `jaxattn reproduce tiny --only texts"
    ):
        of_tiny(tiny, tmp_path, "texts")


def test_nothing_is_written_if_every_item_fails(call, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "no").mkdir()
    words = [TINY_BOOK, "--only", "texts", "--data-dir", tmp_path / "no", "--out", out]
    status, printed, error = call("reproduce", *words)
    assert (status, printed) == (1, "")
    assert error.count("texts.csv") == 1
    assert error.splitlines()[-1].startswith("jaxattn: texts: data")
    assert not out.exists()


def replace_items(book, *names):
    return replace(book, shared=msgspec.structs.replace(book.shared, items=names))


@pytest.mark.more
def test_item_without_data_or_run_is_shown_from_its_record(tiny, tmp_path):
    (tmp_path / "data").mkdir()
    rows = "".join(f"{word} film,{label}\n" for label, word in enumerate(("good", "bad")) for _ in range(9))
    (tmp_path / "data" / "texts.csv").write_text(f"text,label\n{rows}")
    made = of_tiny(tiny, tmp_path / "out", "texts", data_dir=tmp_path / "data")
    assert not made.failed
    text = made.paths[0].read_text()
    assert str(tmp_path) not in text
    records = load(tmp_path / "out" / "runs" / "laptop" / "texts").records
    records = records[(records["metric"] == "loss") & (records["phase"] == "query")]
    assert f"- loss (first cell): {records.set_index('step')['value'][2]:.3f}\n" in text
    shutil.rmtree(tmp_path / "out" / "runs")
    again = of_tiny(tiny, tmp_path / "out", "elsewhere")
    assert again.summary.set_index("item")["verdict"]["texts"] == "measured"


def test_page_contains_figure_table_and_numbers_but_no_local_paths(page):
    markdown, html = page.paths[0].read_text(), page.paths[1].read_text()
    assert "figures/fig2_synthetic.png" in markdown
    # Figures are separate files next to the page, which loads no others.
    (picture,) = re.findall(r'<img alt="([^"]*)" width="(\d+)" loading="lazy" src="([^"]*)"', html)
    assert picture[0].startswith("Figure 2: synthetic data: E·v and E·p of")
    assert 600 < int(picture[1]) < 1000
    assert (page.paths[1].parent / picture[2]).read_bytes().startswith(b"\x89PNG")
    assert (
        html.index('class="verdict"')
        < html.index('href="#fig2_synthetic"')
        < html.index('id="fig2_synthetic"')
    )
    assert "3 numbers in 1 of 31 items are compared with a criterion" in html
    assert "<summary>Bin means</summary>" in html
    assert "Spearman correlation of E·v with the bin centres" in html
    for text in (markdown, html):
        assert str(page.paths[0].parent) not in text
    numbers = pd.read_csv(page.paths[2])
    assert set(numbers["item"]) == {"fig2_synthetic"}
    assert len(numbers) == 4


def test_finished_item_is_not_run_again(page, again):
    before = [path.read_bytes() for path in page.paths]
    ran = page.paths[0].parent / "runs" / "laptop" / "fig2_synthetic"
    (records,) = ran.glob("runs/*/records.parquet")
    changed = records.stat().st_mtime_ns
    assert [path.read_bytes() for path in again("fig2_synthetic").paths] == before
    assert records.stat().st_mtime_ns == changed
    assert len(list((ran / "runs").iterdir())) == 1


def test_missing_data_file_is_reported_on_the_page(page, again, tmp_path):
    out = shutil.copytree(page.paths[0].parent, tmp_path / "paper")
    (tmp_path / "none").mkdir()
    made = again("fig3_yelp", out=out, data_dir=tmp_path / "none", overrides={})
    assert set(made.failed) == {"fig3_yelp"}
    assert "none" in made.failed["fig3_yelp"]
    assert made.status == 1
    assert "The run failed" in made.paths[0].read_text()


def test_item_that_exceeds_memory_raises_an_error_with_a_remedy(again, tmp_path):
    with pytest.raises(RunError, match=r"^fig2_synthetic: .*--max-memory"):
        again("fig2_synthetic", out=tmp_path, max_memory=1000)


def test_unknown_item_is_rejected(again):
    with pytest.raises(InputError, match="fig9: no such item"):
        again("fig9")


def test_folder_with_a_different_scale_is_rejected(page, again):
    before = {path: path.stat().st_mtime_ns for path in page.paths[0].parent.rglob("*")}
    with pytest.raises(InputError, match="contains results at laptop scale; add `--scale laptop`"):
        again("fig2_synthetic", scale="full")
    assert {path: path.stat().st_mtime_ns for path in page.paths[0].parent.rglob("*")} == before


def test_page_rebuilt_from_records_is_identical(page, again, tmp_path):
    shutil.copytree(page.paths[0].parent, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    copied = write_book_page(PAPER, RunLocation(tmp_path / "copy", "laptop"))
    assert [path.read_bytes() for path in copied.paths[:3]] == [path.read_bytes() for path in page.paths[:3]]


EVIL = "from pathlib import Path\nPath({place!r}).touch()\nclass M: ...\n"
CODE = "evil.py:M"


def _of_stranger(config, key):
    phases = config["phases"]
    forged = {
        "model": {**config["model"], "kind": CODE},
        "data": {**config["data"], "kind": CODE},
        "loss": {"kind": CODE},
        "phases": [{**phase, "kind": CODE} for phase in phases],
        "optimizer": [{**phase, "optimizer": CODE} for phase in phases],
        "start": [{**phase, "start": {"E": {"kind": CODE}}} for phase in phases],
        "probes": config["probes"] | {"own": [CODE]},
        "figures": [{"kind": CODE}],
    }
    return config | {"phases" if key in ("optimizer", "start") else key: forged[key]}


@pytest.mark.parametrize(
    "key",
    [
        "data",
        "figures",
        *(
            pytest.param(key, marks=pytest.mark.more)
            for key in ("model", "loss", "phases", "optimizer", "start", "probes")
        ),
    ],
)
@pytest.mark.more
def test_reading_a_finished_run_imports_no_code_from_its_folder(page, tmp_path, monkeypatch, key):
    out = shutil.copytree(page.paths[0].parent, tmp_path / "out")
    ran = out / "runs" / "laptop" / "fig2_synthetic"
    for place in (tmp_path, out, ran):
        (place / "evil.py").write_text(EVIL.format(place=str(tmp_path / "executed")))
    monkeypatch.chdir(tmp_path)
    known = study_file.read_study(ran)
    forged = {"config": _of_stranger(known["config"], key), "code": {CODE: None}}
    study_file.write_study(ran, known | forged)
    write_book_page(PAPER, RunLocation(out, "laptop", TINY))
    load(ran)._repr_html_()
    report.write_report(ran)
    assert not (tmp_path / "executed").exists()


def test_run_with_other_settings_is_not_shown(page, tmp_path):
    out = shutil.copytree(page.paths[0].parent, tmp_path / "out")
    ran = out / "runs" / "laptop" / "fig2_synthetic"
    known = study_file.read_study(ran)
    study_file.write_study(ran, known | {"cells": [c | {"config_hash": "f" * 16} for c in known["cells"]]})
    made = write_book_page(PAPER, RunLocation(out, "laptop", TINY))
    shown = made.sections[[item.name for item in PAPER.items].index("fig2_synthetic")]
    assert "contains a run with other settings; run it again" in shown.remedy


def test_symbolic_link_to_a_run_is_not_read(page, again, tmp_path):
    out = shutil.copytree(page.paths[0].parent, tmp_path / "out")
    (out / "runs").rename(tmp_path / "runs")
    (out / "runs").symlink_to(tmp_path / "runs")
    made = again("fig2_synthetic", out=out)
    assert "runs/laptop/fig2_synthetic: a link that leads out of" in made.failed["fig2_synthetic"]
    assert made.summary.set_index("item")["verdict"]["fig2_synthetic"] == "not run"


@pytest.fixture
def shared(tmp_path):
    """A book whose items share a study; one of them also measures texts."""
    book = shutil.copytree(TINY_BOOK, tmp_path / "shared")
    study = (book / "step" / "study.toml").read_text().replace("[16, 64, 256]", "[16, 32]")
    (book / "common.toml").write_text(study)
    (book / "step" / "study.toml").unlink()
    shutil.move(book / "texts" / "study.toml", book / "reviews.toml")
    shutil.rmtree(book / "elsewhere")
    shutil.rmtree(book / "texts")
    (book / "own" / "study.toml").write_text(
        'extends = "../common.toml"\nname = "own"\nseeds = 2\naxes.model.dim = [16]\n'
    )
    text = (
        (book / "book.toml").read_text().replace('["step", "own", "texts", "elsewhere"]', '["step", "own"]')
    )
    (book / "book.toml").write_text(text)
    path = book / "step" / "item.toml"
    path.write_text(path.read_text().replace("[[measures]]", '[[measures]]\nstudies = ["common"]'))
    more = """
[[measures]]
kind = "law"
studies = ["common"]
most_seeds = 3
criteria = {}

[[measures]]
kind = "cells"
studies = ["reviews"]
needs = "texts"
metrics = ["train_accuracy"]
criteria = {}
"""
    path = book / "own" / "item.toml"
    path.write_text(path.read_text() + more)
    return book


def ran_by(monkeypatch):
    """Record the names of studies that are run."""
    names, before = [], run.engine.run_study

    def record_name(study, *words, **options):
        names.append(study.name)
        return before(study, *words, **options)

    monkeypatch.setattr(run.engine, "run_study", record_name)
    return names


@pytest.mark.more
def test_shared_study_is_run_once(shared, tmp_path, monkeypatch, capsys):
    names, out = ran_by(monkeypatch), tmp_path / "out"
    made = of_tiny(read_book(shared), out, quiet=False)
    assert names == ["step", "own"]
    assert sorted(path.name for path in (out / "runs" / "laptop").iterdir()) == ["common", "own"]
    said = capsys.readouterr().err
    assert "1 of 2: common" in said
    assert (
        "1 item: measures that need data are not run; add `--data-dir DIR`, with "
        "DIR/texts.csv: texts with labels" in said
    )
    step, own = made.sections
    assert [finding.measured for finding in own.findings] == [
        "least one_step_error", "power of d in the error per unit of η0"
    ]  # fmt: skip
    assert own.findings[1].estimate == step.findings[0].estimate
    assert (step.findings[0].criterion is None, own.findings[1].criterion) == (False, None)
    assert own.facts["not run"] == "reviews; texts with labels"
    assert own.facts["sweep files"] == "shared/own/study.toml, shared/common.toml, shared/reviews.toml"
    assert own.facts["cells × seeds"] == "1 × 2, 2 × 8"
    assert own.command == "jaxattn reproduce shared --only own --data-dir DIR"
    assert "not run" not in step.facts
    # A requested item has both measures; only the missing study is run.
    shutil.rmtree(out / "runs" / "laptop" / "own")
    # Findings of deleted runs stay in the record, also after it is rewritten.
    for _ in range(2):
        kept = write_book_page(read_book(shared), RunLocation(out, "laptop")).sections[1]
        assert "own" in kept.facts["not run"] or "study" in kept.facts["not run"]
        assert {x.name: x.estimate for x in kept.findings} == {x.name: x.estimate for x in own.findings}
    names.clear()
    of_tiny(read_book(shared), out, "own", "step", seeds=2)
    assert names == ["own", "step"]
    assert load(out / "runs" / "laptop" / "own").manifest["seeds"] == [0, 1]
    assert len(load(out / "runs" / "laptop" / "common").manifest["seeds"]) == 8


@pytest.mark.more
def test_a_shared_study_runs_the_largest_requested_number_of_seeds(shared, tmp_path):
    both = of_tiny(read_book(shared), tmp_path / "both", seeds=4)
    assert [finding.estimate.seeds for each in both.sections for finding in each.findings] == [4, 4, 4]
    # The item with a limit alone runs no further seeds.
    (_, own) = of_tiny(read_book(shared), tmp_path / "own", "own", seeds=4).sections
    assert [finding.estimate.seeds for finding in own.findings] == [4, 3]


@pytest.mark.more
def test_a_failed_shared_study_fails_only_its_items(shared, tmp_path):
    broken = {"common": ("data.vocab_size=3",)}
    with pytest.raises(InputError, match="vocab_size"):
        of_tiny(read_book(shared), tmp_path / "out", overrides=broken)
    assert not (tmp_path / "out").exists()
    (tmp_path / "nowhere").mkdir()
    made = of_tiny(read_book(shared), tmp_path / "out", data_dir=tmp_path / "nowhere")
    assert set(made.failed) == {"own"}
    assert "texts.csv" in made.failed["own"]
    assert made.status == 1
    step, own = made.sections
    assert step.ran
    assert [finding.measured for finding in own.findings] == [
        "least one_step_error", "power of d in the error per unit of η0"
    ]  # fmt: skip


@pytest.mark.more
def test_text_data_in_the_data_folder_are_measured(shared, tmp_path):
    rows = "".join(f"{word} film,{label}\n" for label, word in enumerate(("good", "bad")) for _ in range(9))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    (_, own) = of_tiny(read_book(shared), tmp_path / "out", "own", data_dir=tmp_path).sections
    assert len(own.findings) == 3
    assert "not run" not in own.facts


@pytest.mark.more
def test_run_that_cannot_be_measured_fails_with_a_one_line_error(call, tmp_path):
    """The findings of custom code are known only after the run."""
    book = shutil.copytree(TINY_BOOK, tmp_path / "tiny")
    path = book / "own" / "item.toml"
    path.write_text(path.read_text().replace('"least one_step_error"', '"least error"'))
    out = tmp_path / "out"
    status, printed, said = call("reproduce", book, "--only", "own", "--out", out, "--seeds", 2, "--quiet")
    assert status == 1
    (line,) = said.splitlines()
    assert line == (
        "jaxattn: failed: own: the run cannot be read: criteria: no finding matches 'least error'; choose "
        "from least "
        "one_step_error"
    )
    assert "not readable" in printed
    assert (out / "index.md").is_file()
