"""What README says was measured is in the files of results/published, to the digits that README prints."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PUBLISHED = ROOT / "results" / "published"
NUMBER = r"(-?\d+(?:\.\d+)?)( %)?"
INTERVAL = re.compile(rf"(?:(\d+) of )?{NUMBER} \[{NUMBER}, {NUMBER}\]")
KEYS = ("value", "low", "high")


def rows(name):
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def section(title):
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def intervals(text):
    """Printed values, lows and highs with the errors of their last digits; counts and percents are shares."""
    for found in INTERVAL.finditer(text):
        count, *numbers = found.groups()
        printed = []
        for number, percent in zip(numbers[::2], numbers[1::2], strict=True):
            scale = 100 if percent else 1
            printed.append((float(number) / scale, 0.5001 * 10 ** -len(number.partition(".")[2]) / scale))
        if count:
            printed[0] = int(count) / printed[0][0], 1e-9
        yield found.group(), printed


def is_measured(printed, row):
    return all(row[key] for key in KEYS) and all(
        abs(value - float(row[key])) <= error for (value, error), key in zip(printed, KEYS, strict=True)
    )


@pytest.mark.parametrize(
    ("title", "file"),
    [("Does the theory hold?", "claims/claims.csv"), ("The paper, run again", "paper/agreement.csv")],
)
def test_every_interval_was_measured(title, file):
    measured, printed = rows(file), list(intervals(section(title)))
    assert len(printed) >= 10
    assert [text for text, numbers in printed if not any(is_measured(numbers, row) for row in measured)] == []


def test_every_row_of_the_table_of_claims_is_one_of_that_claim_and_verdict():
    """No two of them are the same: many rows are of 1,000 seeds of 1,000."""
    measured, claim, wrong = rows("claims/claims.csv"), "", []
    names = {row["claim"] for row in measured}
    for line in section("Does the theory hold?").splitlines():
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
    printed = [numbers for _, numbers in intervals(section("Does the theory hold?"))]
    promised = [row for row in rows("claims/claims.csv") if row["promised"] == "True"]
    left_out = [row for row in promised if not any(is_measured(numbers, row) for numbers in printed)]
    assert {row["verdict"] for row in left_out} <= {"holds"}


@pytest.mark.parametrize(
    ("page", "file"),
    [("README.md", "imdb_gradient.md"), ("docs/accelerators.md", "chips.md")],
)
def test_a_table_of_a_benchmark_is_the_one_in_its_file(page, file):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert (PUBLISHED / "benchmarks" / file).read_text(encoding="utf-8").strip() in text
