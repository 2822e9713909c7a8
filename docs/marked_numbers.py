"""Update the measured numbers of README and docs from the files of results/published.

    python docs/marked_numbers.py

updates every number that docs/numbers.toml lists, in its page and in the list, with as many digits as the
page prints. The list has one entry per number, in the order of the page:

    [["docs/reference/benchmarks.md"]]
    after = "16 seeds together, scores within one band | "
    number = "0.94"
    source = "benchmarks/shared_corpus.json > rows > seeds=16 & scores=one band > ms_per_seed > vmapped"

    [["docs/reference/benchmarks.md"]]
    after = "… | "
    number = "1.95"
    source = "benchmarks/shared_corpus.json > rows > seeds=16 & scores=one band > ms_per_seed > scipy.sparse"

`after` is the text before the number. It must occur exactly once in front of a number of the page, so that
an entry cannot match another number. Any white space matches any other white space. An `after` that starts
with "…" continues where the previous number ends, such as in the next cell of a row.

`number` is what the page prints: a value, a value with its interval as in 0.58 [0.50, 0.65], or a count of
seeds as in 993 of 999 [0.987, 0.998].

`source` is a file in results/published and the path to the value, joined by " > ". A step with "=" (equal)
or "~" (contains) selects the one matching row of a list or of a CSV file; " & " joins conditions. `interval`
as the last step takes a value and the ends of its interval from a row, in columns that COLUMNS lists. A final
" × 1000" converts the unit.
"""

import csv
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "results" / "published"
LIST = Path(__file__).parent / "numbers.toml"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
HEAD = "# Sources of the measured numbers of README and docs. docs/marked_numbers.py explains the format.\n"
# Match complete numbers, never a prefix: 1,000 is not read as 1, nor 0.95 as 0.9.
NUMBER = r"(?>-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e-?\d+)?)"
PRINTED = re.compile(rf"(?:(?P<count>{NUMBER}) of )?(?P<value>{NUMBER})(?P<ends> \[{NUMBER}, {NUMBER}\])?")

# Columns of a value and the ends of its interval: in tables of verdicts, summaries of runs, and diagrams.
COLUMNS = (("value", "low", "high"), ("mean", "mean_low", "mean_high"), ("threshold", "low", "high"))


class Entry(NamedTuple):
    """One number of a page: the text before it, what is printed, and the path to its value."""

    after: str
    number: str
    source: str


class Place(NamedTuple):
    """The position of a number in the text of its page, and its entry."""

    start: int
    end: int
    entry: Entry


@cache
def _file(name: str) -> Any:
    path = PUBLISHED / name
    if not path.is_file():
        raise SystemExit(f"results/published/{name}: no such file; correct the source that names it")
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else json.loads(text)


def _step(found: Any, step: str, source: str) -> Any:
    """Return the part of the content `found` of a file that one step of a source selects."""
    if not isinstance(found, list):
        if step not in found:
            raise SystemExit(f"{source}: no {step!r}; there are {', '.join(map(repr, found))}")
        return found[step]
    if step.isdecimal():
        return found[int(step)]
    wanted = [re.fullmatch(r"([^=~]+)([=~])(.*)", part).groups() for part in step.split(" & ")]
    rows = [
        row
        for row in found
        if all(x in str(row[key]) if how == "~" else x == str(row[key]) for key, how, x in wanted)
    ]
    if len(rows) != 1:
        raise SystemExit(f"{source}: {len(rows)} rows match {step!r}; exactly one must")
    return rows[0]


def look_up(source: str) -> tuple[Any, float]:
    """Return the value or row that a source selects, and the factor that converts its unit."""
    steps, _, factor = source.partition(" × ")
    name, *inside = steps.split(" > ")
    found = _file(name)
    for step in inside:
        if step == "interval":
            break
        found = _step(found, step, source)
    return found, float(factor or 1)


def _like(printed: str, x: float) -> str:
    """Format x with as many digits as the printed number."""
    mantissa, exponential, _ = printed.partition("e")
    digits = len(mantissa.partition(".")[2])
    if exponential:
        head, _, power = f"{x:.{digits}e}".partition("e")
        return f"{head}e{int(power)}"
    return f"{x:,.{digits}f}" if "," in printed or abs(x) >= 10_000 else f"{x:.{digits}f}"


def measured(number: str, source: str) -> str:
    """Format the value that a source selects, in the form and with the digits of a printed number."""
    count, value, ends = PRINTED.fullmatch(number).group("count", "value", "ends")
    row, factor = look_up(source)
    if not isinstance(row, Mapping):
        if count or ends:
            raise SystemExit(f"{source}: one value, printed as {number}; end the source with '> interval'")
        return _like(value, float(row) * factor)
    columns = next((columns for columns in COLUMNS if columns[0] in row), None)
    if columns is None:
        raise SystemExit(f"{source}: no column {' or '.join(first for first, *_ in COLUMNS)}")
    x = float(row[columns[0]])
    first = _like(value, x * factor)
    if count:
        seeds = int(row["seeds"])
        first = f"{_like(count, round(x * seeds))} of {_like(value, seeds)}"
    if ends:
        low, high = re.findall(NUMBER, ends)
        bounds = (float(row[column]) * factor for column in columns[1:])
        ends = f" [{', '.join(map(_like, (low, high), bounds))}]"
    return f"{first}{ends or ''}"


def _words(after: str) -> str:
    """Return a pattern for the text before a number, in which white space matches any white space."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", after))


def _form(number: str) -> re.Pattern[str]:
    """Return a pattern for numbers of the same form, that is, with or without a count and an interval."""
    found = PRINTED.fullmatch(number)
    if found is None:
        raise SystemExit(f"docs/numbers.toml: {number!r} is not a number, with or without its interval")
    count = f"{NUMBER} of " if found["count"] else ""
    ends = rf" \[{NUMBER}, {NUMBER}\]" if found["ends"] else rf"(?! \[{NUMBER})"
    return re.compile(rf"{count}{NUMBER}{ends}(?![.,]?\d)")


def places(text: str, entries: Iterable[Entry]) -> Iterator[Place]:
    """Yield the place of each listed number in the text of a page.

    Raises:
        SystemExit: the text before a number does not occur, also occurs before another number, or occurs out
            of order; or the text after it is not a number of the printed form.
    """
    end = 0
    for entry in entries:
        said = f"docs/numbers.toml: {entry.after!r}"
        if entry.after.startswith("…"):
            found = re.compile(_words(entry.after[1:])).match(text, end)
            starts = [] if found is None else [found.end()]
        else:
            pattern = f"{_words(entry.after)}(?P<number>{NUMBER})"
            starts = [found.start("number") for found in re.finditer(pattern, text)]
        if len(starts) != 1:
            raise SystemExit(f"{said} is before {len(starts)} numbers of its page; it must be before one")
        if starts[0] < end:
            raise SystemExit(f"{said} is not in the order of its page")
        number = _form(entry.number).match(text, starts[0])
        if number is None:
            raise SystemExit(f"{said} is not followed by a number such as {entry.number}")
        end = number.end()
        yield Place(starts[0], end, entry)


def renewed(text: str, entries: Iterable[Entry]) -> tuple[str, list[Entry]]:
    """Return the text of a page and its entries, both updated with the numbers of the files.

    Raises:
        SystemExit: a number is not found, or the page prints neither the listed nor the measured number.
    """
    parts, listed, end = [], [], 0
    for place in places(text, entries):
        printed = text[place.start : place.end]
        number = measured(printed, place.entry.source)
        if printed not in (number, place.entry.number):
            raise SystemExit(
                f"docs/numbers.toml: {place.entry.after!r} is followed by {printed}, not by the listed "
                f"{place.entry.number} or the measured {number}; correct the page or the list"
            )
        parts += [text[end : place.start], number]
        listed.append(place.entry._replace(number=number))
        end = place.end
    return "".join([*parts, text[end:]]), listed


def entries() -> dict[str, list[Entry]]:
    """Read docs/numbers.toml: the entries of every page, by its path from the root of the project."""
    found = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return {page: [Entry(**one) for one in listed] for page, listed in found.items()}


def dump(pages: Mapping[str, Iterable[Entry]]) -> str:
    """Return the entries of all pages in the format of docs/numbers.toml."""
    lines = [HEAD]
    for page in sorted(pages):
        for one in pages[page]:
            lines.append(f"[[{json.dumps(page)}]]")
            lines += [f"{key} = {json.dumps(x, ensure_ascii=False)}" for key, x in one._asdict().items()]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    listed = entries()
    for name in listed:
        before = (ROOT / name).read_text(encoding="utf-8")
        after, listed[name] = renewed(before, listed[name])
        if after != before:
            (ROOT / name).write_text(after, encoding="utf-8")
            print(name, file=sys.stderr)
    LIST.write_text(dump(listed), encoding="utf-8")
