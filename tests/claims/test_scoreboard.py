from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jaxattn.claims import CLAIMS, run
from jaxattn.claims.reviews import TextPlan
from jaxattn.data.readers import Csv
from jaxattn.errors import InputError, RunError

VERDICTS = {
    True: {"holds", "fails", "undecided"},
    False: {"holds there too", "does not hold", "holds for some", "undecided", "measured"},
}


@pytest.fixture(scope="module")
def said():
    """What progress was told."""
    return []


@pytest.fixture(scope="module")
def board(plan, seeds, said):
    """All synthetic claims."""
    return run(seeds=seeds, plan=plan, progress=lambda *told: said.append(told))


def test_every_claim_has_rows_and_every_row_a_number_with_an_interval(board):
    assert {row.claim.name for row in board.rows if row.claim.promised} == set(CLAIMS)
    for row in board.rows:
        assert np.isfinite([row.value, row.low, row.high]).all(), row
        assert row.low <= row.value <= row.high
        assert row.verdict in VERDICTS[row.claim.promised]


def test_promised_rows_come_first_and_certificates_where_a_direction_was_computed(board):
    promised = [row.claim.promised for row in board.rows]
    assert promised == sorted(promised, reverse=True)
    for row in board.rows:
        assert ("certified" in row.certificate) or row.claim.name != "T4.3"


def test_progress_is_told_before_every_part_and_at_the_end(board, said):
    done, total = zip(*((done, total) for _, done, total in said), strict=True)
    assert done == tuple(range(total[0] + 1))
    assert set(total) == {total[0]}


def test_the_files_say_what_the_table_says(board, tmp_path):
    csv, markdown = board.write(tmp_path / "new" / "folder")
    read, table = pd.read_csv(csv), board.table()
    assert list(table.columns) == [
        "claim", "setting", "seeds", "measured", "value", "tolerance", "verdict", "certificate",
    ]  # fmt: skip
    for column in ("claim", "setting", "seeds", "measured", "tolerance", "verdict", "certificate"):
        assert read[column].tolist() == table[column].tolist()
    for column in ("value", "low", "high"):
        np.testing.assert_array_equal(read[column], [getattr(row, column) for row in board.rows])
    assert read["promised"].tolist() == [row.claim.promised for row in board.rows]
    text = markdown.read_text(encoding="utf-8")
    assert all(f"| {value} |" in text for value in table["value"])
    assert text.index("What the theory promises") < text.index("Where the theory promises nothing")
    assert text.count("\n| ") == len(table) + 4


def test_a_folder_that_cannot_be_written(board, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written: .*give another folder"):
        board.write(tmp_path / "file")


def test_a_flow_that_is_cut_short_fails_and_the_status_says_so(plan, seeds, board):
    short = replace(plan, until_norm=2.0, step_sizes=())
    cut = run(seeds=seeds, only=["T4.3"], plan=short)
    assert {row.claim.name for row in cut.rows} == {"T4.3"}
    assert [row.verdict for row in cut.rows if row.claim.promised] == ["fails", "fails"]
    assert cut.status == 1
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


def test_texts_give_rows_of_their_own(plan, seeds, texts):
    small = TextPlan(law_dims=(32, 64), law_seeds=3, dim=64, step_size=50.0, steps=20, rate=0.5)
    board = run(seeds=seeds, only=["L4.1", "L4.2"], plan=plan, source=Csv(path=str(texts)), text_plan=small)
    rows = [row for row in board.rows if row.claim.setting.startswith("texts, V = 8, n = 40")]
    assert [(row.claim.name, row.seeds) for row in rows] == [("L4.1", 3)] * 2 + [("L4.2", 3)] * 2
    assert all(np.isfinite([row.value, row.low, row.high]).all() for row in rows)
    # A limit that no run reaches is never said to hold.
    assert [row.verdict for row in rows[2:]] == ["undecided", "undecided"]


def test_wrong_input_is_named_with_a_remedy(plan, texts, tmp_path):
    with pytest.raises(InputError, match=r"seeds: 1; .* at least 2"):
        run(seeds=1, plan=plan)
    with pytest.raises(InputError, match=r"only: no claim 'L5'; give some of L4\.1"):
        run(only=["L5"], plan=plan)
    with pytest.raises(InputError, match="no claim of V is measured on texts"):
        run(only=["V"], plan=plan, source=Csv(path=str(texts)))
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        run(only=["L4.1"], plan=plan, source=Csv(path=str(tmp_path / "nowhere.csv")))
    with pytest.raises(InputError, match="3 classes; give texts with two labels"):
        run(only=["L4.1"], plan=plan, source=Csv(path=str(texts), labels=(0, 1, 2)))
