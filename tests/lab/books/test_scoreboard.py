import re
from dataclasses import replace
from datetime import UTC, datetime

import jax
import numpy as np
import pandas as pd
import pytest

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.books import board as pages
from jaxattn.lab.books import scoreboard
from jaxattn.lab.books.board import CLAIMS, FOUND, PARTS
from jaxattn.lab.books.scoreboard import VERDICTS as MEASURED
from jaxattn.lab.books.scoreboard import run
from jaxattn.lab.results import layout
from jaxattn.lab.results.judge import VERDICTS, Estimate

SEEDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the studies are run."""
    return tmp_path_factory.mktemp("claims")


@pytest.fixture(scope="module")
def board(plan, folder):
    """One claim."""
    return run(seeds=SEEDS, only=["MC"], overrides=plan, folder=folder)


@pytest.fixture(scope="module")
def every(plan, folder):
    """All synthetic claims."""
    return run(seeds=SEEDS, overrides=plan, folder=folder)


@pytest.mark.slow
def test_every_claim_has_rows_and_every_row_a_number_with_an_interval(every):
    assert {row.claim.name for row in every.rows if row.claim.promised} == set(CLAIMS)
    for row in every.rows:
        value, low, high, seeds, *_ = row.estimate
        assert np.isfinite(value), row
        assert low <= value <= high or row.text.endswith(f" in all {seeds}")
        assert row.verdict in (
            VERDICTS["promised"] if row.claim.promised else (*VERDICTS["beyond"], "holds for some")
        )


@pytest.mark.slow
def test_promised_rows_come_first_and_certificates_where_a_direction_was_computed(every):
    assert tuple(every.parts) == PARTS
    own = [row for row in every.rows if row.claim.name not in FOUND]
    assert {row.claim.name for row in every.rows[len(own) :]} == set(FOUND)
    promised = [row.claim.promised for row in own]
    assert promised == sorted(promised, reverse=True)
    for row in every.rows:
        assert ("certified" in row.certificate) or row.claim.name != "T4.3"


def test_what_is_done_is_not_done_again(board, plan, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/records.parquet")}
    assert before
    assert run(seeds=SEEDS, only=["MC"], overrides=plan, folder=folder) == board
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # Of a folder that holds more seeds, those asked for are judged.
    fewer = run(seeds=2, only=["MC"], overrides=plan, folder=folder)
    assert {row.estimate.seeds for row in fewer.rows} == {2}


def test_the_files_say_what_the_table_says(board, tmp_path):
    csv, markdown, html = board.write(tmp_path / "new" / "folder", command="jaxattn claims --seeds 3")
    read, table = pd.read_csv(csv), board.table()
    assert list(table.columns) == [
        "claim", "setting", "seeds", "measured", "value", "tolerance", "verdict", "certificate",
    ]  # fmt: skip
    for column in ("claim", "setting", "measured", "tolerance", "verdict", "certificate"):
        assert read[column].tolist() == table[column].tolist()
    for column in ("value", "low", "high", "seeds", "missing"):
        np.testing.assert_array_equal(read[column], [getattr(row.estimate, column) for row in board.rows])
    assert read["promised"].tolist() == [row.claim.promised for row in board.rows]
    text = markdown.read_text(encoding="utf-8")
    assert all(f"| {value} |" in text for value in table["value"])
    assert text.index("## What the theory promises") < text.index("## Where the theory promises nothing")
    assert text.count("\n| ") == len(table) + 2
    assert text.startswith("# ")
    assert "Made by: `jaxattn claims --seeds 3`" in text
    assert f"Date: {datetime.now(UTC):%Y-%m-%d}" in text
    assert f"jax {jax.__version__}" in text
    assert f"**{board.rows[0].claim.name}**: " in text
    assert "36 seeds or more" in text
    assert "more seeds would tell" not in text
    shown = html.read_text(encoding="utf-8").replace("<wbr>", "").replace("\xa0", " ")
    # Every row is there, and its verdict has its colour.
    for verdict in set(table["verdict"]):
        tone = layout.tone(verdict)
        cell = f'<td class="{tone}">{verdict}</td>' if tone else f"<td>{verdict}</td>"
        assert shown.count(cell) == (table["verdict"] == verdict).sum()
    promised = sum(row.claim.promised for row in board.rows)
    assert shown.index(f"Of {promised} promised rows") < shown.index("<nav") < shown.index("<main>")


def test_every_claim_is_said_in_words():
    assert all(len(pages.STATEMENTS[name].split()) > 10 for name in CLAIMS)


def test_the_chances_of_a_wrong_row_are_told(board):
    judged = sum(row.criterion is not None for row in board.rows)
    assert f"{judged} of them judged" in pages.chances(board.rows)
    assert f"up to {0.05 * judged:.1f} of the {judged} intervals" in pages.chances(board.rows)
    assert pages.too_few(35).startswith("35 seeds are too few for yes/no rows")
    assert pages.too_few(36) == ""


def test_a_folder_that_cannot_be_written(board, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written: .*give another folder"):
        board.write(tmp_path / "file")


def test_a_row_that_fails_makes_the_status_1(board):
    (row, *_) = (row for row in board.rows if row.claim.promised and row.criterion)
    failed = replace(row, estimate=Estimate(9.0, 9.0, 9.0, 3))
    assert failed.verdict == "fails"
    assert replace(board, rows=(failed,)).status == 1
    assert replace(board, rows=tuple(row for row in board.rows if row.verdict != "fails")).status == 0


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Labelled texts in a file."""
    rng = np.random.default_rng(0)
    words = np.array(["good", "bad", "a", "the", "film", "plot", "was", "so"])
    rows = [
        {"text": " ".join([words[1 - label], *rng.choice(words[2:], 5)]), "label": label}
        for label in [0, 1] * 20
    ]
    path = tmp_path_factory.mktemp("texts") / "train.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def of_file(path):
    return f'data={{kind = "csv", path = "{path}"}}'


@pytest.mark.slow
def test_texts_give_rows_of_their_own(plan, folder, texts):
    small = plan | {
        "law-texts": (of_file(texts), "axes.model.dim=[32,64]"),
        "flow-texts": (
            of_file(texts), "model.dim=64", "phases.step.step_size=50.0",
            "phases.descent.step_size=0.5", "phases.descent.steps=20",
        ),
    }  # fmt: skip
    board = run(seeds=SEEDS, only=["L4.1", "L4.2"], overrides=small, data_dir=texts.parent, folder=folder)
    rows = [row for row in board.rows if row.claim.setting.startswith("texts, V = 8, n = 40")]
    assert [(row.claim.name, row.estimate.seeds) for row in rows] == [("L4.1", 3)] * 2 + [("L4.2", 3)] * 2
    assert all(np.isfinite(row.estimate[:3]).all() for row in rows)
    # A limit that no run reaches is never said to hold.
    assert [row.verdict for row in rows[2:]] == ["undecided", "undecided"]


@pytest.mark.more
def test_findings_are_measured_where_their_book_is(plan, folder, tmp_path, monkeypatch):
    with_book = run(seeds=SEEDS, only=["MC", "cover"], overrides=plan, folder=folder)
    assert [row.claim.name for row in with_book.rows] == ["MC", "MC", "MC", "cover", "cover", "cover"]
    assert tuple(with_book.parts) == PARTS
    text = pages.page(with_book, {})
    assert text.index(PARTS[1]) < text.index(f"## {PARTS[2]}")
    assert re.search(
        r"Of 2 promised rows .+\. Of 3 found rows .+, 1 without a criterion\.</p>",
        pages.as_html(with_book, {}),
    )
    # As beside an installed package, where a stranger's `sweeps` may be.
    monkeypatch.setattr("jaxattn.lab.books.scoreboard.CHECKOUT", tmp_path)
    monkeypatch.setattr(
        "jaxattn.lab.books.scoreboard.VERDICTS", [x for x in MEASURED if x.claim in ("MC", *FOUND)]
    )
    without = run(seeds=SEEDS, overrides=plan, folder=folder)
    assert {row.claim.name for row in without.rows} == {"MC"}
    with pytest.raises(InputError, match="by sweeps/findings of a checkout"):
        run(only=["cover"], overrides=plan)


def test_no_study_of_the_working_directory_is_read(tmp_path, monkeypatch):
    (tmp_path / "sweeps" / "findings" / "which_cover").mkdir(parents=True)
    (tmp_path / "sweeps" / "findings" / "which_cover" / "claim.toml").write_text("a stranger's")
    monkeypatch.chdir(tmp_path)
    assert scoreboard._study("which_cover/claim", 2, None, ()).name == "cover"


def test_wrong_input_is_named_with_a_remedy(plan, texts, tmp_path):
    with pytest.raises(InputError, match=r"seeds: 1; .* at least 2"):
        run(seeds=1, overrides=plan)
    with pytest.raises(InputError, match=r"only: no claim 'L5'; give some of L4\.1"):
        run(only=["L5"], overrides=plan)
    with pytest.raises(InputError, match="no claim of V is measured on texts"):
        run(only=["V"], overrides=plan, data_dir=tmp_path)
    nowhere = {"law-texts": (of_file(tmp_path / "nowhere.csv"),)}
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        run(only=["L4.1"], overrides=plan | nowhere, data_dir=tmp_path)
    three = tmp_path / "three.csv"
    three.write_text(texts.read_text() + "so so,2\n")
    classes = {"law-texts": (of_file(three), "data.labels=[0,1,2]")}
    with pytest.raises(InputError, match="3 classes; give texts with two labels"):
        run(only=["L4.1"], overrides=plan | classes, data_dir=tmp_path)
