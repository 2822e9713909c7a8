import errno
import os
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from io import BytesIO
from xml.etree import ElementTree

import msgspec
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import jaxattn as ja
from jaxattn.lab.figures import style
from jaxattn.lab.pages import overview, report, seeds
from jaxattn.lab.pages.definitions import definition
from jaxattn.lab.results import aggregate
from jaxattn.lab.results.statistics import last_steps
from jaxattn.lab.storage import batch_record, provenance

FIGURES = (
    {"kind": "importance", "phase": "joint", "cell": 0},
    {"kind": "top_tokens", "number": 5},
    {"kind": "scaling", "axis": "model.dim"},
)


@pytest.fixture(scope="module")
def written(write, tmp_path_factory):
    folder = write(
        tmp_path_factory.mktemp("run"), vocab_size=200, seeds=3, figures=FIGURES, failures=((0, 1, 40),)
    )
    return report.write_report(folder)


@pytest.fixture
def folder(write, tmp_path):
    """A small folder with one figure, importance_joint."""
    return write(tmp_path / "run", vocab_size=50, seeds=1, text=False, figures=FIGURES[:1])


class Page(HTMLParser):
    """Parser that collects links, unclosed tags and text."""

    def __init__(self, html):
        super().__init__()
        self.links, self.open, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href") and value[0] != "#"]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_report_writes_page_summary_and_figures(written):
    folder = written.page.parent
    assert [path.relative_to(folder).as_posix() for path in written.paths] == [
        "report.html",
        "summary.csv",
        "figures/importance_joint.svg",
        "figures/top_tokens_joint.svg",
    ]
    assert all(path.stat().st_size > 1000 for path in written.paths)
    assert not list(folder.rglob(".*"))
    assert len(written.problems) == 1
    assert "axis 'model.dim': not swept; swept keys: none" in written.problems[0].line


def test_page_is_self_contained(written):
    html = written.page.read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == []
    assert len(page.links) == 2
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert not re.search(r"https?://|@import|url\(|<script|<link", html)


def test_page_describes_the_run(written):
    html = written.page.read_text(encoding="utf-8")
    text = Page(html).text
    for expected in (
        "jaxattn run sweeps/planted.toml --set 'model.dim=64'",
        "0123456789abcdef",
        "jax 0.10.2",
        "1 × cpu",
        "83 s",
        "1 seed failed",
        "cell 0, seed 1, phase joint, step 40: loss is not finite",
        "Not drawn:",
        "Full config",
        '"step_size": 200.0',
        "(n=2)",
        "After the phase joint",
    ):
        assert expected in text, expected


def test_page_shows_six_metrics_before_the_full_list(written):
    run, text = ja.load(written.page.parent), Page(written.page.read_text(encoding="utf-8")).text
    first, below = text.split("All metrics\n")
    table = first[first.index("Last step of each phase") :]
    assert all(metric in table for metric in overview.metrics(run))
    assert "p_norm" not in table
    assert all(metric in below for metric in overview.recorded(run))


def test_page_escapes_text_from_the_run(written):
    html = written.page.read_text(encoding="utf-8")
    assert "Planted laws &lt;b&gt;and&lt;/b&gt; a little noise." in html
    assert "<br>" not in html


def test_summary_file_contains_the_aggregate_of_the_last_steps(written):
    run = ja.load(written.page.parent)
    expected = last_steps(aggregate(run)).reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(written.summary), expected, check_dtype=False, rtol=1e-8)


def test_top_tokens_of_synthetic_data_are_not_listed(folder):
    page = Page(report.write_report(folder).page.read_text(encoding="utf-8")).text
    assert "Tokens that attention prefers" not in page


def test_reports_on_the_same_folder_are_bitwise_identical(written, tmp_path):
    again = report.write_report(shutil.copytree(written.page.parent, tmp_path / "again"))
    for old, new in zip(written.paths, again.paths, strict=True):
        assert old.read_bytes() == new.read_bytes(), old.name


def test_figures_are_saved_at_print_quality(folder):
    written = report.write_report(folder, formats=("png", "pdf"))
    assert [path.suffix for path in written.figures] == [".svg", ".png", ".pdf"]
    svg, png, pdf = (path.read_bytes() for path in written.figures)
    image = Image.open(BytesIO(png))
    assert image.info["dpi"] == pytest.approx((style.DPI, style.DPI), abs=0.1)
    assert np.asarray(image.convert("L")).std() > 5
    assert b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    # The page shows the SVG file at the size of the PNG file on a screen of high density.
    shown = int(re.search(r'<img [^>]*width="(\d+)"', written.page.read_text(encoding="utf-8"))[1])
    assert shown == pytest.approx(image.width / 2, abs=1)
    # Letters are outlines, so that they do not depend on fonts.
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("}svg")
    assert not [each for each in root.iter() if each.tag.endswith("}text")]


def test_page_shows_the_final_value_of_each_seed(written):
    html, run = written.page.read_text(encoding="utf-8"), ja.load(written.page.parent)
    ends = last_steps(run.records)
    for metric in overview.metrics(run):
        part = html.partition(f"<h3>{metric}</h3>")[2].partition("<h3>")[0]
        own = ends[(ends["metric"] == metric) & np.isfinite(ends["value"])]
        assert part.count("<circle") == len(own)
        assert part.count("<svg") == own["phase"].nunique()
        if (meaning := definition(metric)) is not None:
            words = Page(part).text.replace("\u2212", "-")
            assert meaning[1:20].replace("`", "") in words


def test_dots_are_placed_in_proportion_to_the_values(load_planted):
    rows = [(0, seed, "query", 5, "error", value) for seed, value in enumerate([3.0, 1.0, 2.5])]
    run = load_planted(
        rows,
        name="planted",
        config={"phases": [{"name": "query"}]},
        cells=[{"cell": 0, "settings": {}}],
        seeds=[0, 1, 2],
    )
    (found,) = seeds.of_metrics(run, ["error"])
    (row,) = found["rows"]
    assert row["dots"] == [0, 0.75, 1]
    assert (found["name"], found["axis"]) == ("error", "1.00 to 3.00")
    assert (row["name"], row["words"]) == ("query", "3 seeds: 1.00 to 3.00")


def test_unwritable_folder_raises_a_one_line_error(folder):
    (folder / "figures").write_text("in the way")
    with pytest.raises(
        ja.RunError, match=r"figures/importance_joint\.svg: cannot be written \(.*\); free disk space"
    ) as caught:
        report.write_report(folder)
    assert "\n" not in str(caught.value)


def test_old_report_is_preserved_if_the_disk_is_full(folder, monkeypatch):
    (folder / "figures").mkdir()
    (folder / "figures" / "importance_joint.svg").write_bytes(b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ja.RunError, match="No space left on device"):
        report.write_report(folder)
    assert [path.read_bytes() for path in (folder / "figures").iterdir()] == [b"old"]


def test_folder_deleted_during_a_report_is_not_recreated(folder, monkeypatch):
    render = report.render
    monkeypatch.setattr(report, "render", lambda *given: shutil.rmtree(folder) or render(*given))
    with pytest.raises(ja.RunError, match=r"report.html: cannot be written \(No such file"):
        report.write_report(folder)
    assert not folder.exists()


@pytest.mark.more
def test_page_reports_a_different_source_version(folder, batch_of, batches):
    made = "made by jaxattn 0.1.0 at commit 000000000000; this is jaxattn"
    written = report.write_report(folder)
    assert written.made_by.startswith(made)
    assert made in unescape(written.page.read_text(encoding="utf-8"))
    origin = batch_record.read_record(batch_of(folder), folder).origin
    origin = msgspec.structs.replace(origin, package=provenance.installed())
    batches.change(batch_of(folder), origin=origin)
    written = report.write_report(folder)
    assert written.made_by == ""
    assert made not in unescape(written.page.read_text(encoding="utf-8"))


def test_unreadable_folder_is_rejected(tmp_path):
    with pytest.raises(ja.InputError, match="no such folder"):
        report.write_report(tmp_path / "none")


def test_token_text_is_escaped(folder, batch_of, rewrite):
    tokens = pd.read_parquet(batch_of(folder) / "tokens.parquet")
    rewrite(folder, "tokens", tokens.assign(token="<script>alert(1)</script>"))
    html = report.write_report(folder).page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "<script>alert(1)</script>" in unescape(html)


@pytest.mark.parametrize("label", [r"$\frac{1}$", r"$\nonsense$", "$x^$", "${$"])
@pytest.mark.more
def test_invalid_mathematics_in_a_label_fails_only_its_figure(write, change_study, tmp_path, label):
    folder = write(
        tmp_path / "run", vocab_size=20, seeds=1, figures=({"kind": "curves", "metrics": ["loss"]},)
    )
    change_study(folder, labels={"loss": label})
    made = report.write_report(folder)
    assert made.page.exists()
    for problem in made.problems:
        assert problem.line.startswith("figures[0] (curves_")
        assert "could not be drawn: ValueError" in problem.line
        assert "\n" not in problem.line
    assert len(made.problems) + len(made.figures) == 1


def test_long_label_is_truncated(write, change_study, tmp_path):
    folder = write(
        tmp_path / "run", vocab_size=20, seeds=1, figures=({"kind": "curves", "metrics": ["loss"]},)
    )
    change_study(folder, labels={"loss": "$x$ " * 10_000})
    run = ja.load(folder)
    assert len(run.label("loss")) < 500
    assert run.label("p_norm") == ja.load(folder).label("p_norm")
    assert report.write_report(folder).problems == ()


def test_unrenderable_figure_is_reported(write, tmp_path, monkeypatch):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1, figures=({"kind": "curves"},))

    def svg(figure):
        raise ValueError("no\nmathematics")

    monkeypatch.setattr("jaxattn.lab.figures.style.svg", svg)
    made = report.write_report(folder)
    assert made.figures == ()
    (problem,) = made.problems
    assert problem.line.endswith("could not be drawn: ValueError: no mathematics")
    assert "Not drawn" in made.page.read_text(encoding="utf-8")


def test_page_with_many_cells_shows_the_first_rows(write, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_ROWS", 3)
    failures = tuple((cell, 0, 40) for cell in range(5))
    folder = write(
        tmp_path / "run", axes={"model.dim": list(range(1, 9))}, seeds=1, vocab_size=20, failures=failures
    )
    seen = []
    made = report.write_report(folder, progress=lambda what, share: seen.append((what, share)))
    text = Page(made.page.read_text(encoding="utf-8")).text
    assert "The first 3 of 16 rows." in text
    assert "The first 3 of 8 cells." in text
    assert "5 seeds failed." in text
    assert "The files runs/*/run.json list 2 more." in text
    assert len(set(pd.read_csv(made.summary)["cell"])) == 8
    shares = [share for _, share in seen]
    assert min(shares) == 0
    assert max(shares) == 1
    assert {"summary.csv", "report.html"} <= {what for what, _ in seen}
    assert [what for what, _ in seen if what.startswith(("drawing figures[", "writing figure"))]
