"""Measured numbers in README and pages match results/published to the printed digits."""

import csv
import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest

from jaxattn.lab.books import read_book

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PUBLISHED = ROOT / "results" / "published"
_spec = importlib.util.spec_from_file_location("marked_numbers", DOCS / "marked_numbers.py")
numbers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(numbers)
LISTED = numbers.entries()
NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)( %)?"
INTERVAL = re.compile(rf"(?:(\d[\d,]*) of )?{NUMBER} \[{NUMBER}, {NUMBER}\]")
KEYS = ("value", "low", "high")


def rows(name):
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def intervals(line):
    """Return printed values and intervals with their rounding errors; counts and percents as shares."""
    for found in INTERVAL.finditer(line):
        count, *numbers = found.groups()
        printed = []
        for text, percent in zip(numbers[::2], numbers[1::2], strict=True):
            number = text.replace(",", "")
            scale = 100 if percent else 1
            printed.append((float(number) / scale, 0.5001 * 10 ** -len(number.partition(".")[2]) / scale))
        if count:
            printed[0] = int(count.replace(",", "")) / printed[0][0], 1e-9
        yield found.group(), printed


def is_measured(printed, row):
    return all(row[key] for key in KEYS) and all(
        abs(value - float(row[key])) <= error for (value, error), key in zip(printed, KEYS, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "file"),
    [("explanation/theory_holds", "claims/findings.csv"), ("explanation/paper_again", "paper/findings.csv")],
)
def test_every_published_interval_was_measured(name, file):
    measured, printed = rows(file), list(intervals(page(name)))
    assert len(printed) >= 10
    assert [text for text, numbers in printed if not any(is_measured(numbers, row) for row in measured)] == []


def test_every_row_of_the_claims_table_matches_its_source():
    """The code of a claim is in brackets at the end of its row."""
    measured, wrong = rows("claims/findings.csv"), []
    names = {row["item"] for row in measured}
    lines = [line.strip("|") for line in page("explanation/theory_holds").splitlines() if "|" in line]
    table = [cells for line in lines if len(cells := [cell.strip() for cell in line.split("|")]) == 5][2:]
    claims = [cells[0].rpartition("(")[2].removesuffix(")") for cells in table]
    assert set(claims) == names
    for claim, cells in zip(claims, table, strict=True):
        for text, numbers in intervals(" | ".join(cells)):
            found = [
                row
                for row in measured
                if row["item"] == claim and row["verdict"] in (cells[-1], "") and is_measured(numbers, row)
            ]
            if found:
                measured.remove(found[0])
            else:
                wrong.append((claim, text))
    assert wrong == []


def test_every_failed_prediction_is_listed_on_the_page():
    printed = [numbers for _, numbers in intervals(page("explanation/theory_holds"))]
    promised = [row for row in rows("claims/findings.csv") if row["basis"] == "theory"]
    left_out = [row for row in promised if not any(is_measured(numbers, row) for numbers in printed)]
    assert {row["verdict"] for row in left_out} <= {"agrees"}


@pytest.mark.parametrize(
    ("name", "file"),
    [("explanation/token_space", "imdb_gradient.md"), ("notes/accelerators", "chips.md")],
)
def test_benchmark_tables_match_their_files(name, file):
    assert (PUBLISHED / "benchmarks" / file).read_text(encoding="utf-8").strip() in page(name)


@pytest.mark.parametrize("path", numbers.PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_listed_numbers_match_their_sources(path):
    text, listed = path.read_text(encoding="utf-8"), LISTED.get(path.relative_to(ROOT).as_posix(), [])
    assert numbers.renewed(text, listed) == (text, listed), "python docs/marked_numbers.py"
    assert "<!--" not in text


def test_list_of_numbers_is_formatted_and_refers_only_to_pages():
    assert len(LISTED) >= 10
    assert set(LISTED) <= {path.relative_to(ROOT).as_posix() for path in numbers.PAGES}
    assert sum(map(len, LISTED.values())) > 300
    assert numbers.dump(LISTED) == numbers.LIST.read_text(encoding="utf-8"), "python docs/marked_numbers.py"


@pytest.mark.parametrize("name", LISTED)
def test_a_changed_number_on_a_page_is_detected(name):
    """Each number is found in its place: a wrong digit and a missing number are both detected."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = list(numbers.places(text, LISTED[name]))
    assert all(one.end <= two.start for one, two in itertools.pairwise(found))
    for one in found:
        digit = "2" if text[one.end - 1] == "1" else "1"
        wrong = digit.join((text[: one.end - 1], text[one.end :]))
        if text[one.end - 1] == "]":
            wrong = text[: one.start] + "9" + text[one.start :]
        for changed in (wrong, text[: one.start] + text[one.end :]):
            with pytest.raises(SystemExit):
                numbers.renewed(changed, LISTED[name])


def test_every_measured_number_in_readme_is_listed():
    readme, bare, end = (ROOT / "README.md").read_text(encoding="utf-8"), "", 0
    found = list(numbers.places(readme, LISTED["README.md"]))
    for one in found:
        bare += readme[end : one.start]
        end = one.end
    bare += readme[end:]
    assert len(found) >= 8
    assert INTERVAL.search(bare) is None
    assert re.findall(r"[\d.]+ (?:ms|s|GB)\b", bare) == []


def test_pages_linked_in_the_readme_table_show_the_number_of_their_row():
    """The page of a row prints the same digits of the same row of the published file."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = dict(re.findall(r"^\[(.+?)\]: (\S+)$", readme, re.MULTILINE))
    checked = 0
    for place in numbers.places(readme, LISTED["README.md"]):
        line = readme[readme.rfind("\n", 0, place.start) + 1 :].partition("\n")[0]
        linked = [words for words in re.findall(r"\[([^]]+)\]", line) if words in links]
        if not linked:
            continue
        target, (row, _) = links[linked[0]], numbers.look_up(place.entry.source)
        shown = [each.number for each in LISTED.get(target, ()) if numbers.look_up(each.source)[0] == row]
        if target not in LISTED:
            shown = [text for text, _ in intervals((ROOT / target).read_text(encoding="utf-8"))]
        assert place.entry.number in shown, line
        checked += 1
    assert checked == 6


WORDS = {"Three": 3, "Four": 4, "Five": 5, "Six": 6}


def test_counts_of_items_papers_and_findings_match_the_folders():
    neighbours = read_book(ROOT / "sweeps" / "neighbours").items
    papers = {paper.arxiv for item in neighbours for paper in item.papers}
    found = re.search(r"contains (\d+) items from (\d+) papers", page("reference/paper_map"))
    assert [int(x) for x in found.groups()] == [len(neighbours), len(papers)]
    listed = re.findall(r"^(\w+)$", page("findings/index"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in DOCS.glob("findings/*.md") if path.stem != "index")
    assert WORDS[re.search(r"(\w+) findings of this project", page("findings/index"))[1]] == len(listed)


@pytest.mark.parametrize("name", ["paper", "neighbours", "findings", "claims2026", "refute"])
def test_run_times_of_books_match_their_records(name):
    records = [json.loads(path.read_text("utf-8")) for path in (PUBLISHED / name / "items").glob("*.json")]
    minutes = round(sum(record["seconds"] for record in records) / 60)
    (row,) = [line for line in page("reference/published").splitlines() if f"/{name}/index.html)" in line]
    assert row.endswith(f"| {minutes} min |")
    if name == "findings":
        assert f" in {minutes} minutes on two CPU cores" in page("findings/index")


SOURCE = "claims/findings.csv > item=T4.3 & id=close > value"  # 1


@pytest.mark.parametrize(
    ("text", "listed", "expected"),
    [
        ("a 0.9 b 0.9", [("a ", "0.9")], ("a 1.0 b 0.9", ["1.0"])),
        ("a 1.00 b", [("a ", "0.9")], ("a 1.00 b", ["1.00"])),
        ("a\n  0.9 of it", [(" a ", "0.9")], None),
        ("a\n  0.9 of it", [("a ", "0.9")], ("a\n  1.0 of it", ["1.0"])),
        ("a 0.9 | 0.8 |", [("a ", "0.9"), ("… | ", "0.8")], ("a 1.0 | 1.0 |", ["1.0", "1.0"])),
        ("a 0.9 | b | 0.8 |", [("a ", "0.9"), ("… | ", "0.8")], None),
        ("a 0.8 b", [("a ", "0.9")], None),
        ("a 0.9 b a 0.9", [("a ", "0.9")], None),
        ("a 0.9 b a 3", [("a ", "0.9")], None),
        ("b 0.9 a 0.9", [("a ", "0.9"), ("b ", "0.9")], None),
        ("a 0.9 [0.8, 1.0]", [("a ", "0.9")], None),
        ("a 0.9", [("a ", "0.9 [0.8, 1.0]")], None),
        ("a 0.9", [("c ", "0.9")], None),
        ("a 0.9", [("a ", "one")], None),
    ],
)
def test_updating_a_number_changes_only_its_own_occurrence(text, listed, expected):
    entries = [numbers.Entry(after, number, SOURCE) for after, number in listed]
    if expected is None:
        with pytest.raises(SystemExit, match=r"docs/numbers\.toml"):
            numbers.renewed(text, entries)
    else:
        after, again = numbers.renewed(text, entries)
        assert (after, [one.number for one in again]) == expected


@pytest.mark.parametrize(
    "source",
    ["claims/findings.csv > item=T4.3 > value", "claims/none.csv > 0", "benchmarks/imdb_gradient.json > x"],
)
def test_missing_and_ambiguous_sources_are_rejected(source):
    with pytest.raises(SystemExit):
        numbers.renewed("a 1", [numbers.Entry("a ", "1", source)])


def test_interval_with_a_single_value_as_its_source_is_rejected():
    with pytest.raises(SystemExit, match="> interval"):
        numbers.measured("1.0 [0.9, 1.1]", SOURCE)


@pytest.mark.parametrize(("name", "least"), [("README.md", 5), ("docs/reference/paper_map.md", 21)])
def test_verdicts_in_a_table_match_the_rows_of_their_sources(name, least):
    text, sources = (ROOT / name).read_text(encoding="utf-8"), {}
    for place in numbers.places(text, LISTED[name]):
        if place.entry.source.endswith("> interval"):
            sources.setdefault(text[: place.start].count("\n"), []).append(place.entry.source)
    # Rows that state one verdict, of a number or of all their numbers.
    stated = re.compile("agrees|differs|inconclusive")
    told = {
        line: {numbers.look_up(source)[0]["verdict"] for source in sources[k]}
        for k, line in enumerate(text.splitlines())
        if k in sources and stated.search(line)
    }
    told = {line: verdicts for line, verdicts in told.items() if len(verdicts) == 1}
    assert len(told) >= least
    for line, (verdict,) in told.items():
        assert verdict in line, line


def test_published_files_contain_no_absolute_paths():
    """Commands on pages must work for every reader, so they contain no absolute paths."""
    texts = [
        path for path in PUBLISHED.rglob("*") if path.suffix in (".html", ".md", ".json", ".csv", ".toml")
    ]
    assert len(texts) > 50
    of_a_machine = re.compile(r"(?<![\w.:/*<-])/(?:home|root|tmp|work|mnt|data|Users|private|opt)/[\w.-]")
    found = [path.name for path in texts if of_a_machine.search(path.read_text(encoding="utf-8"))]
    assert found == []
