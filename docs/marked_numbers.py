"""Numbers of README and of the pages, taken from the files of results/published.

    python docs/marked_numbers.py

writes every marked number anew, with the digits that stand there. A marker is a comment beside its number and
names a file, the way into it, and a factor if the unit is another one:

    0.94<!-- benchmarks/shared_corpus.json > rows > seeds=16 & scores=one band > ms_per_seed > vmapped -->
    4.8<!-- benchmarks/imdb_gradient.json > load_s × 1000 -->

A step with "=" (equal) or "~" (contained) chooses the one row of a list or of a CSV file. `interval` stands
for a value with its ends, 0.58 [0.50, 0.65], and of a share for a count, 993 of 999 [0.987, 0.998].
"""

import csv
import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "results" / "published"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
MARKED = re.compile(
    rf"(?:(?P<count>{NUMBER}) of )?(?P<value>{NUMBER})(?P<ends> \[{NUMBER}, {NUMBER}\])?<!-- (?P<way>.+?) -->"
)


@cache
def _file(name: str) -> Any:
    path = PUBLISHED / name
    if not path.is_file():
        raise SystemExit(f"results/published/{name}: no such file; mend the marker that names it")
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else json.loads(text)


def _step(found: Any, step: str, way: str) -> Any:
    """Take one step into a file."""
    if not isinstance(found, list):
        if step not in found:
            raise SystemExit(f"{way}: no {step!r}; there are {', '.join(map(repr, found))}")
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
        raise SystemExit(f"{way}: {len(rows)} rows are {step!r}; name one")
    return rows[0]


def look_up(way: str) -> tuple[Any, float]:
    """Find what a marker names, and the factor of its unit."""
    steps, _, factor = way.partition(" × ")
    name, *inside = steps.split(" > ")
    found = _file(name)
    for step in inside:
        if step == "interval":
            break
        found = _step(found, step, way)
    return found, float(factor or 1)


def _like(printed: str, x: float) -> str:
    """Write a number with the digits of the one that is printed."""
    mantissa, exponential, _ = printed.partition("e")
    digits = len(mantissa.partition(".")[2])
    if exponential:
        head, _, power = f"{x:.{digits}e}".partition("e")
        return f"{head}e{int(power)}"
    return f"{x:,.{digits}f}" if "," in printed or abs(x) >= 10_000 else f"{x:.{digits}f}"


def _renew(found: re.Match[str]) -> str:
    """Write one marked number anew."""
    count, value, ends, way = found.group("count", "value", "ends", "way")
    told, factor = look_up(way)
    marker = f"<!-- {way} -->"
    if not isinstance(told, Mapping):
        return f"{found[0][: found.start('value') - found.start()]}{_like(value, float(told) * factor)}" + (
            f"{ends or ''}{marker}"
        )
    x = float(told["value"])
    first = _like(value, x * factor)
    if count is not None:
        seeds = int(told["seeds"])
        first = f"{_like(count, round(x * seeds))} of {_like(value, seeds)}"
    if ends:
        low, high = re.findall(NUMBER, ends)
        ends = f" [{_like(low, float(told['low']) * factor)}, {_like(high, float(told['high']) * factor)}]"
    return f"{first}{ends or ''}{marker}"


def renewed(text: str) -> str:
    """Write all marked numbers of a page anew."""
    return MARKED.sub(_renew, text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT), file=sys.stderr)
