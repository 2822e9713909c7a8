import csv
import json
import math
import re
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from jaxattn.lab.books.findings import Finding
from jaxattn.lab.books.section import NOT_RUN, RunLocation, Section, SectionPicture, texts

from jaxattn.core.errors import InputError
from jaxattn.lab.books import findings, page, read_book, record
from jaxattn.lab.results.judge import Estimate, around, at_least, at_most
from jaxattn.lab.results.layout import typeset

PAPER = read_book("paper")
ITEM = PAPER.item("fig2_synthetic")
SECTION = Section(
    ITEM,
    "2 of 3 agree, 1 inconclusive",
    "jaxattn reproduce paper --only fig2_synthetic",
    facts={"run time": "3 s"},
    findings=(
        Finding("ρ of E·v", Estimate(0.1 + 0.2, math.nan, 1.0, 5), "5 seeds", at_least(0.9), "increasing"),
        Finding("the lowest", Estimate(0.0, -0.1, 0.1), "tokens", around(0.0, 0.3), old=True),
        Finding("alone", Estimate(1.0, math.nan, math.nan), "nothing"),
        Finding("the largest", Estimate(0.1, 0.0, 0.2, 5), "5 seeds", at_most(0.3)),
    ),
    tables={"Bin means": pd.DataFrame({"x": ["-0.5", "–"], "tokens": ["3", "4"]})},
    pictures=(SectionPicture("figures/fig2_synthetic.png", "All seeds.", b"\x89PNG"),),
    seconds=3.25,
    machine="2 CPU cores",
)
PUBLISHED = Path(__file__).parents[3] / "results" / "published"
BOOKS = {name: read_book(name) for name in ("paper", "claims")} | {
    name: read_book(Path(__file__).parents[3] / "sweeps" / name) for name in ("neighbours", "findings")
}
# The claims have no laptop scale.
SCALES = {name: "laptop" if name == "claims" else "full" for name in BOOKS}
ITEMS = [(book, item) for book in BOOKS.values() for item in book.items if item.measured]
HERE = RunLocation(Path("nowhere"), "laptop")


@pytest.fixture
def folder(tmp_path):
    """A folder with one record."""
    return keep(SECTION, tmp_path)


def keep(section, folder):
    for name, content in record.files(section, "laptop").items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_records_round_trip_through_files(folder):
    mine = record.read_record(ITEM, "laptop", folder)
    assert page.as_markdown(PAPER, (mine,), HERE) == page.as_markdown(PAPER, (SECTION,), HERE)
    assert page.as_html(PAPER, (mine,), HERE) == page.as_html(PAPER, (SECTION,), HERE)
    for book in (PAPER, BOOKS["claims"]):
        ours, theirs = page.page_table(book, (mine,)), page.page_table(book, (SECTION,))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    verdicts = [finding.verdict for finding in mine.findings]
    assert verdicts == ["cannot tell", "agrees", "measured", "agrees"]


def test_tables_with_numeric_column_names_are_preserved(tmp_path):
    """A pivot table has numbers as column names."""
    table = texts(pd.DataFrame({"step": ["a"], 100: [0.5]}))
    keep(replace(SECTION, tables={"Steps": table}), tmp_path)
    pd.testing.assert_frame_equal(record.read_record(ITEM, "laptop", tmp_path).tables["Steps"], table)


def test_page_shows_records_and_commands_for_missing_items(folder):
    written = page.write_book_page(PAPER, RunLocation(folder, "laptop"))
    verdicts = written.summary.set_index("item")["verdict"]
    assert verdicts["fig2_synthetic"] == SECTION.verdict
    assert verdicts["fig3_imdb"] == NOT_RUN
    text = written.paths[0].read_text()
    assert "![Figure 2: synthetic data: All seeds](figures/fig2_synthetic.png)" in text
    assert (
        "**3 numbers in 1 of 31 items are compared with a criterion: 2 agree and 1 is inconclusive. "
        "1 further number has no criterion.**" in text
    )
    assert written.status == 0
    failed = page.write_book_page(
        PAPER, RunLocation(folder, "laptop"), failed={"fig2_synthetic": "no memory"}
    )
    assert failed.status == 1
    assert (
        "the run failed"
        in failed.sections[[item.name for item in PAPER.items].index("fig2_synthetic")].remedy
    )


def test_results_at_a_different_scale_are_not_overwritten(folder):
    with pytest.raises(
        InputError, match=r"contains results at laptop scale; add `--scale laptop`, or choose"
    ):
        record.read_record(ITEM, "full", folder)


def test_record_with_different_settings_is_not_shown(folder):
    path = folder / record.location(ITEM)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"settings": "of before"}))
    shown = record.read_record(ITEM, "laptop", folder)
    assert shown.verdict == NOT_RUN
    assert shown.remedy.startswith("its settings have changed since it was run; run `jaxattn reproduce")


def test_digest_depends_on_scale_but_not_on_data_folder():
    digests = {item.digest(scale) for item in PAPER.items if item.measured for scale in ("laptop", "full")}
    runs = [item for item in PAPER.items if item.measured]
    assert len(digests) == len(runs) + sum(bool(item.laptop) for item in runs)


@pytest.mark.parametrize("damage", ["[]", "{", '{"scale": "laptop"}'])
def test_damaged_record_raises_an_error_with_a_remedy(folder, damage):
    (folder / record.location(ITEM)).write_text(damage)
    with pytest.raises(InputError, match=r"fig2_synthetic.json: damaged.*; remove it and run `jaxattn"):
        record.read_record(ITEM, "laptop", folder)


def test_page_marks_intervals_from_an_older_version():
    assert typeset(page._OLD) in page.as_markdown(PAPER, (SECTION,), HERE)
    new = (
        Finding("the lowest", Estimate(0.0, -0.1, 0.1, 5), "5 seeds", around(0.0, 0.3)),
        Finding("certified", Estimate(0.5, 0.499, 0.5), "its duality gap"),
    )
    assert typeset(page._OLD) not in page.as_markdown(PAPER, (replace(SECTION, findings=new),), HERE)


def test_missing_figure_is_reported(folder):
    (folder / "figures" / "fig2_synthetic.png").unlink()
    with pytest.raises(InputError, match=r"figures/fig2_synthetic.png: missing, but .* refers to it; run `"):
        record.read_record(ITEM, "laptop", folder)


def of_book(parameter):
    """Return the test id of an item."""
    book, item = parameter
    return f"{book.name}-{item.name}"


@pytest.mark.parametrize("item", [item for item in PAPER.items if item.measured], ids=lambda item: item.name)
def test_published_record_lists_models_and_dimensions(item):
    facts = record.read_record(item, "full", PUBLISHED / "paper").facts
    kinds, dims = facts["model"].split(", d = ")
    models = [cell.tables["model"] for cell in item.study("full", data_dir=Path("nowhere")).cells]
    assert set(kinds.split(", ")) == {model["kind"] for model in models}
    assert set(dims.split(", ")) == {str(model["dim"]) for model in models}


@pytest.fixture(scope="module", params=BOOKS)
def committed(request):
    """Return a book with its published sections and their place."""
    place = RunLocation(PUBLISHED / request.param, SCALES[request.param])
    book = BOOKS[request.param]
    return book, tuple(record.read_record(item, place.scale, place.out) for item in book.items), place


def test_published_page_matches_its_records(committed):
    book, sections, place = committed
    assert page.as_markdown(book, sections, place) == (place.out / "index.md").read_text(encoding="utf-8")
    assert page.as_html(book, sections, place) == (place.out / "index.html").read_text(encoding="utf-8")
    numbers = place.out / book.shared.table
    assert page.page_table(book, sections).to_csv(index=False) == numbers.read_text(encoding="utf-8")
    assert {each.item.name for each in sections if each.verdict == NOT_RUN} == set()


def test_every_published_discrepancy_has_a_reason(committed):
    book, sections, _ = committed
    doubtful = [
        each for each in sections if re.search("differ|fail|not hold|some|inconclusive", each.verdict)
    ]
    assert book.name != "paper" or doubtful
    assert {each.item.name for each in doubtful if not each.reason} == set()


@pytest.mark.parametrize("way", ["dots", "absolute", "link"])
def test_record_cannot_refer_to_files_outside_its_folder(folder, tmp_path, way):
    out = tmp_path / "out"
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("out"))
    (tmp_path / "secret.png").write_bytes(b"secret")
    (out / "figures" / "link.png").symlink_to(tmp_path / "secret.png")
    file = {"dots": "../secret.png", "absolute": str(tmp_path / "secret.png"), "link": "figures/link.png"}[
        way
    ]
    path = out / record.location(ITEM)
    content = json.loads(path.read_text())
    content["pictures"][0]["file"] = file
    path.write_text(json.dumps(content))
    words = {
        "link": r"link\.png: a link that leads out of .*, but \S+fig2_synthetic.json refers to it; run `",
        "dots": r"fig2_synthetic.json: damaged: invalid figure path '\.\./secret\.png'; remove",
        "absolute": r"fig2_synthetic.json: damaged: invalid figure path '/.*; remove it",
    }
    with pytest.raises(InputError, match=words[way]):
        record.read_record(ITEM, "laptop", out)


@pytest.mark.parametrize(("book", "item"), ITEMS, ids=[of_book(x) for x in ITEMS])
def test_published_findings_have_the_criteria_of_their_item(book, item):
    """Criteria that a measure sets itself are not in the item."""
    kept = record.read_record(item, SCALES[book.name], PUBLISHED / book.name).findings
    assert kept
    by_itself = any(measure.kind.endswith(":predicted") for measure in item.measured)
    for finding in kept if not by_itself else ():
        bare = replace(finding, criterion=None, published="-", basis=None)
        assert finding in [findings.with_criteria([bare], measure)[0] for measure in item.measured]
    for measure in item.measured:
        for pattern, expected in measure.criteria.items():
            assert expected.optional or any(fnmatchcase(each.name, pattern) for each in kept)


def test_claims_table_has_one_row_per_finding():
    book, place = BOOKS["claims"], PUBLISHED / "claims"
    sections = [record.read_record(item, "laptop", place) for item in book.items]
    found = [(each.item.name, finding) for each in sections for finding in each.findings]
    with (place / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found) > 80
    for row, (name, finding) in zip(rows, found, strict=True):
        assert (row["claim"], row["measured"], row["verdict"]) == (name, finding.measured, finding.verdict)
        assert (row["promised"] == "True") == (finding.basis == "promised")
        numbers = [float(row[key] or math.nan) for key in ("value", "low", "high")]
        np.testing.assert_array_equal(numbers, finding.estimate[:3])
        assert [int(row["seeds"]), int(row["missing"])] == list(finding.estimate[3:5])


@pytest.mark.more
def test_published_verdict_counts_match_the_table(committed):
    book, sections, place = committed
    with (place.out / book.shared.table).open(encoding="utf-8", newline="") as file:
        verdicts = [row["verdict"] for row in csv.DictReader(file)]
    text = page.verdict_summary(sections)
    for words, recorded in (
        (r"(\d+) agree", "agrees"),
        (r"(\d+) differ", "differs"),
        (r"(\d+) (?:is|are) inconclusive", "cannot tell|undecided"),
        (r"(\d+) further numbers? (?:has|have) no criterion", "measured"),
    ):
        count = sum(bool(re.fullmatch(recorded, verdict)) for verdict in verdicts)
        assert sum(map(int, re.findall(words, text))) == count
    assert text in page.as_html(book, sections, place).replace("\xa0", " ")


@pytest.mark.more
def test_paper_page_starts_with_figures_and_shows_each_item_once():
    sections = tuple(record.read_record(item, "full", PUBLISHED / "paper") for item in PAPER.items)
    parts = page.parts(PAPER, sections)
    (title, first), *_ = parts.items()
    assert title == "Figures of the paper"
    assert all(each.item.heading.startswith("Figure ") and each.pictures for each in first)
    assert [each.item.name for own in parts.values() for each in own] == [item.name for item in PAPER.items]
    html = page.as_html(PAPER, sections, RunLocation(PUBLISHED / "paper", "full"))
    assert html.index('<h2 class="part">Figures of the paper</h2>') < html.index('id="fig1_imdb"')


@pytest.mark.more
def test_page_text_does_not_contain_folder_names(committed):
    """Readers see titles; only commands contain folder names."""
    book, sections, place = committed
    html = page.as_html(book, sections, place)
    prose = re.sub(r"<(code|style)\b.*?</\1>|<[^>]*>", " ", html, flags=re.S)
    names = {each.item.name for each in sections if "_" in each.item.name}
    assert {name for name in names if re.search(rf"(?<![\w/]){name}(?![\w./])", prose)} == set()


@pytest.mark.more
def test_item_from_another_paper_shows_title_and_authors(committed):
    book, sections, place = committed
    html = page.as_html(book, sections, place)
    assert all(bool(each.item.papers) == (book.name == "neighbours") for each in sections)
    for each in sections:
        for paper in each.item.papers:
            assert f"{paper.authors.replace(chr(39), '&#39;')}: <cite>{paper.title}</cite>" in html


@pytest.mark.more
def test_statements_of_findings_are_used_as_table_headings(committed):
    book, sections, place = committed
    html = page.as_html(book, sections, place)
    for each in sections:
        rows = [len(table) for table in each.agreement.values()]
        assert sum(rows) == len(each.findings)
        assert all("statement" not in table for table in each.agreement.values())
        assert set(each.agreement) == {each.item.label(finding.statement) for finding in each.findings}
    assert book.name != "claims" or html.count("<h3>") >= 10
