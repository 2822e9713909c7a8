"""What README and pages say was measured is in results/published, to the digits that they print."""

import csv
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PUBLISHED = ROOT / "results" / "published"
_spec = importlib.util.spec_from_file_location("marked_numbers", DOCS / "marked_numbers.py")
numbers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(numbers)
NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)( %)?"
INTERVAL = re.compile(rf"(?:(\d[\d,]*) of )?{NUMBER} \[{NUMBER}, {NUMBER}\]")
KEYS = ("value", "low", "high")


def rows(name):
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def intervals(line):
    """Printed values, lows and highs with the errors of their last digits; counts and percents are shares."""
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
    [("explanation/theory_holds", "claims/claims.csv"), ("explanation/paper_again", "paper/agreement.csv")],
)
def test_every_interval_was_measured(name, file):
    measured, printed = rows(file), list(intervals(page(name)))
    assert len(printed) >= 10
    assert [text for text, numbers in printed if not any(is_measured(numbers, row) for row in measured)] == []


def test_every_row_of_the_table_of_claims_is_one_of_that_claim_and_verdict():
    """No two of them are the same: many rows are of 1,000 seeds of 1,000."""
    measured, claim, wrong = rows("claims/claims.csv"), "", []
    names = {row["claim"] for row in measured}
    for line in page("explanation/theory_holds").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5:
            continue
        claim = max(filter(cells[0].startswith, names), key=len, default=claim)
        for text, numbers in intervals(line):
            found = [
                row
                for row in measured
                if row["claim"] == claim
                and row["verdict"] in (cells[-1], "measured")
                and is_measured(numbers, row)
            ]
            if found:
                measured.remove(found[0])
            else:
                wrong.append((claim, text))
    assert wrong == []


def test_a_promised_row_that_does_not_hold_is_not_left_out():
    printed = [numbers for _, numbers in intervals(page("explanation/theory_holds"))]
    promised = [row for row in rows("claims/claims.csv") if row["promised"] == "True"]
    left_out = [row for row in promised if not any(is_measured(numbers, row) for numbers in printed)]
    assert {row["verdict"] for row in left_out} <= {"holds"}


@pytest.mark.parametrize(
    ("name", "file"),
    [("explanation/token_space", "imdb_gradient.md"), ("howto/accelerators", "chips.md")],
)
def test_a_table_of_a_benchmark_is_the_one_in_its_file(name, file):
    assert (PUBLISHED / "benchmarks" / file).read_text(encoding="utf-8").strip() in page(name)


@pytest.mark.parametrize("path", numbers.PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_marked_number_is_the_one_in_its_file(path):
    text = path.read_text(encoding="utf-8")
    assert numbers.renewed(text) == text, "python docs/marked_numbers.py"
    assert len(re.findall("<!-- [^>]+ > ", text)) == len(numbers.MARKED.findall(text))


def test_every_number_that_was_measured_is_marked_in_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for title in ("What the evidence says", "Speed"):
        text = readme.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        marked = len(numbers.MARKED.findall(text))
        bare = re.sub(numbers.MARKED, "", text)
        assert marked >= 4
        assert INTERVAL.search(bare) is None
        assert re.findall(r"[\d.]+ (?:ms|s|GB)\b", bare) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("0.9<!-- claims/claims.csv > claim=T4.3 & measured~1e-9 > value -->", "0.9"), ("1.0 of it", None)],
)
def test_a_wrong_number_is_renewed_and_a_bare_one_is_left(text, wrong):
    assert (numbers.renewed(text) == text) == (wrong is None)


@pytest.mark.parametrize(
    "way",
    ["claims/claims.csv > claim=T4.3 > value", "claims/none.csv > 0", "benchmarks/imdb_gradient.json > x"],
)
def test_a_marker_that_names_nothing_or_two_rows_is_refused(way):
    with pytest.raises(SystemExit):
        numbers.renewed(f"1<!-- {way} -->")


def test_the_verdicts_of_the_paper_map_are_those_of_their_rows():
    told = [line for line in page("reference/paper_map").splitlines() if line.count("> interval -->") == 1]
    assert len(told) > 20
    for line in told:
        (way,) = (way for way in re.findall("<!-- (.+?) -->", line) if way.endswith("> interval"))
        row, _ = numbers.look_up(way)
        if row["verdict"] != "measured":
            assert row["verdict"] in line, line


def test_published_texts_name_no_folder_of_the_machine_that_made_them():
    """Commands of pages hold for every reader: a folder from the root of a disk is somebody's own."""
    texts = [
        path for path in PUBLISHED.rglob("*") if path.suffix in (".html", ".md", ".json", ".csv", ".toml")
    ]
    assert len(texts) > 50
    of_a_machine = re.compile(r"(?<![\w.:/*<-])/(?:home|root|tmp|work|mnt|data|Users|private|opt)/[\w.-]")
    found = [path.name for path in texts if of_a_machine.search(path.read_text(encoding="utf-8"))]
    assert found == []
