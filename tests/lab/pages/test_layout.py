"""Tables as files and pages, written atomically."""

import html
import json
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.books import read_book
from jaxattn.lab.figures import token_figures
from jaxattn.lab.pages import layout, report
from jaxattn.lab.pages.layout import breakable, coded, marked, typeset

TABLE = pd.DataFrame({"metric": ["loss"] * 5000, "mean": range(5000)})


@pytest.mark.parametrize("suffix", [".csv", ".md", ".tex", ".parquet"])
def test_existing_file_is_preserved_if_the_disk_is_full(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    path.write_bytes(b"as it was")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(ja.RunError, match=r"table\.\w+: cannot be written: File too large"):
            layout.write_page(TABLE, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [(x.name, x.read_bytes()) for x in tmp_path.iterdir()] == [(path.name, b"as it was")]
    layout.write_page(TABLE, path)
    assert path.stat().st_size > 2000


def test_write_page_preserves_a_symbolic_link(tmp_path):
    (tmp_path / "link.csv").symlink_to("real.csv")
    layout.write_page(TABLE, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "real.csv"), TABLE)


COMMITTED = Path(__file__).parents[3] / "results" / "published"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TEMPLATE = '<style>{{ style }}</style>{% from "table.html" import shown %}{{ shown(table, 2) }}'
# A4 paper with margins of 1 cm, in CSS pixels.
PAPER = 718


@pytest.fixture
def template(tmp_path):
    (tmp_path / "table.html").write_text(TEMPLATE)
    return tmp_path / "table.html"


def wide(columns):
    names = [f"a_metric_of_my_own_{k}" for k in range(columns)]
    return pd.DataFrame({"cell": ["0", "1"], "phase": "query"} | dict.fromkeys(names, "0.873 [0.871, 0.875]"))


@pytest.mark.parametrize("columns", [1, 6, 30, 100])
def test_parts_of_a_wide_table_fit_the_page_and_contain_all_columns(columns):
    table = wide(columns)
    pieces = list(layout.pieces(table, 2))
    assert all(
        piece.least <= layout.TABLE_WIDTH_REM and len(piece.columns) <= layout.TABLE_COLUMNS
        for piece in pieces
    )
    assert all([c.head for c in piece.columns[:2]] == ["cell", "phase"] for piece in pieces)
    assert [c.head for piece in pieces for c in piece.columns[2:]] == list(table.columns[2:])
    assert [piece.rows[1][0] for piece in pieces] == ["1"] * len(pieces)


def test_width_of_table_parts_is_the_same_on_all_python_versions():
    """Sequential addition of the three widths exceeds their exact sum."""
    assert 10.6 + 10.25 + 10.6 > 31.45
    columns = [layout.Column("", [], number=False, long=False, least=x) for x in (10.6, 10.25, 10.6)]
    assert layout._total_width(columns) == 31.4


def test_line_breaks_are_allowed_in_names_but_not_in_numbers():
    assert layout._words("data.vocab_size = 50") == ["data.", "vocab_", "size", "=", "50"]
    assert layout._words("-0.95 4.96e-4") == ["-0.95", "4.96e-4"]
    assert layout._words("E·v_2 is U-shaped") == ["E·v_2", "is", "U-", "shaped"]
    (piece,) = layout.pieces(pd.DataFrame({"x": ["1733 s", "0.9 [0.8, 1.0]"], "y": ["5 seeds", "-"]}))
    assert piece.rows == [("1733\xa0s", "5\xa0seeds"), ("0.9 [0.8,\xa01.0]", "–")]
    assert [column.number for column in piece.columns] == [True, False]


def test_tables_are_wrapped_in_containers_that_set_widths_and_headings(template):
    table = wide(5).rename(columns={"a_metric_of_my_own_0": 'a "quoted" <b> \\ name'})
    text = layout.fill(template, table=table)
    assert text.count("<table") == text.count('<div class="table many" style="--least:') == 1
    (style,) = map(html.unescape, re.findall(r'<div class="table many" style="([^"]*)"', text))
    assert r'--h3:"a \"quoted\" <b> \\ name"' in style
    assert "--a2:left" in style
    assert "--a3:" not in style
    assert "a_metric_of_my_own_1" in text.replace("<wbr>", "")


@pytest.mark.parametrize("template", ["pages/report.html", "books/page.html"])
def test_templates_use_the_shared_table_macro(template):
    text = (Path(layout.__file__).parents[1] / template).read_text()
    assert "<table" not in text
    assert "shown(" in text


def test_tables_and_figures_use_the_same_class_and_score_names(write, tmp_path):
    """Classes 0 to 3 are 1, 2, 4 and 5 stars; scores of two layers with weights are E·W2 p."""
    book = read_book("paper")
    config = {"model": {"kind": "two_layer_weights"}, "phases": [], "data": {"labels": [1, 2, 4, 5]}}
    run = ja.load(write(tmp_path / "four", classes=4, seeds=2, config=config))
    for label, title in ((1, "Class 2, the published E·v_2"), (3, "Class 5, the published E·v_4")):
        _, tables = book.item("yelp4").measure({"study": run})
        assert title in tables
        assert f"for {title.partition(',')[0].lower()}" in token_figures.importance(run, label=label).caption
    run = ja.load(write(tmp_path / "two", seeds=2, config=config | {"data": {}}))
    (table,) = book.item("two_layer_weights_imdb").measure({"study": run})[1].values()
    scores = {name.partition(",")[0] for name in table.columns[2:]}
    assert scores == {"E·v", "E·W2 p"}
    assert all(score in token_figures.importance(run).caption for score in scores)
    for item in book.items:
        if "two bins" in item.words.compared:
            assert ("E·W2 p" in item.words.compared) == item.name.startswith("two_layer_weights")


def widths(path, frames, tmp_path, *, printed=False):
    """Lay out a page in frames of given widths; return the widths of containers and tables by frame."""
    text = re.sub(r'src="data:image[^"]*"', "", path.read_text(encoding="utf-8"))
    if printed:
        text = text.replace("@media print", "@media all").replace("@media screen", "@media not all")
    script = """<script>addEventListener("load", () => {
        const found = [...document.querySelectorAll("iframe")].map(frame => {
            const page = frame.contentDocument
            page.querySelectorAll("details").forEach(each => { each.open = true })
            const boxes = [page.documentElement, ...page.querySelectorAll(".table, pre, p, li, dd, figure")]
            return boxes.map(box => [box.clientWidth, box.scrollWidth])
        })
        document.title = JSON.stringify(found)
    })</script>"""
    shown = [f'<iframe width="{w}" height="900" srcdoc="{html.escape(text)}"></iframe>' for w in frames]
    place = tmp_path / "frames.html"
    place.write_text(f'<!DOCTYPE html><meta charset="utf-8"><title></title>{"".join(shown)}{script}')
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom",
        "--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}", place.as_uri(),
    ]  # fmt: skip
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dumped)[1]))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("which", ["report", "paper", "claims", "neighbours", "findings"])
def test_no_column_is_cut_off_on_screen_or_paper(which, write, batch_of, rewrite, tmp_path):
    folder = write(tmp_path / "run", axes=AXES, vocab_size=60)
    path = many_columns(folder, batch_of, rewrite) if which == "report" else COMMITTED / which / "index.html"
    for frames, printed in (((420, 1000, 1400), False), ((PAPER,), True)):
        for frame, boxes in zip(frames, widths(path, frames, tmp_path, printed=printed), strict=True):
            assert len(boxes) > 5
            assert boxes[0][0] > 0.9 * frame
            assert [(room, taken) for room, taken in boxes if taken > room] == []


AXES = {
    "model.dim": [64, 128, 256],
    "phases.joint.options.weight_decay": [1e-3, 1e-1],
    "data.max_posterior_difference": [0.5, 0.9],
}


def many_columns(folder, batch_of, rewrite):
    """Draw the report of a run with a dozen cells and as many additional metrics."""
    records = pd.read_parquet(batch_of(folder) / "records.parquet")
    loss = records[records["metric"] == "loss"]
    more = [loss.assign(metric=f"a_metric_of_my_own_{k}", value=loss["value"] * 10.0**-k) for k in range(12)]
    rewrite(folder, "records", pd.concat([records, *more]))
    return report.write_report(folder).page


def test_text_in_backticks_is_rendered_as_code():
    assert layout.coded("run `a < b` and `c`") == "run <code>a &lt; b</code> and <code>c</code>"
    assert layout.coded("one ` of <b>") == "one ` of &lt;b&gt;"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-0.5 ± 0.05", "−0.5~±~0.05"),
        ("6.36e-5 [5.86e-5, 6.91e-5]", "6.36e−5 [5.86e−5,~6.91e−5]"),
        ("E·v, -0.95 to 0.89", "E·v, −0.95 to 0.89"),
        ("1 - cos ≤ 1e-9 at ‖p‖ = 1e6", "1 − cos ≤~1e−9 at ‖p‖~=~1e6"),
        ("d^(-1/2), e^(-t), -α, p - q", "d^(−1/2), e^(−t), −α, p − q"),
        ("V = 100, n = 5", "V~=~100, n~=~5"),
        ("5 s, 95 %, 6 seeds", "5~s, 95~%, 6~seeds"),
        ("-", "–"),
        ("max-margin, Figures 1-3, L4.4-4.5", "max-margin, Figures 1-3, L4.4-4.5"),
        ("2026-11-26, fig1_imdb-2.png, --only", "2026-11-26, fig1_imdb-2.png, --only"),
    ],
)
def test_numbers_are_typeset_with_minus_signs_and_no_break_spaces(given, expected):
    assert typeset(given).replace("\xa0", "~") == expected


def test_code_is_not_typeset():
    text = "the power -1/2, by `jaxattn run --set x=-1 -1`"
    assert coded(text) == "the power −1/2, by <code>jaxattn run --set x=-1 -1</code>"
    assert marked(text) == "the power −1/2, by `jaxattn run --set x=-1 -1`"
    assert marked("a ` and -1") == "a ` and -1"


def test_long_names_may_break_and_html_is_escaped():
    assert breakable("spearman_Ev_tokens & -1") == "spearman_<wbr>Ev_<wbr>tokens &amp; −1"
