"""Pre-publication checks for a book item: missing files and settings, changed criteria, private names."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxattn.lab.books.book import CHECKOUT, PACKAGED, Book, Item
from jaxattn.lab.books.public_names import private_uses
from jaxattn.lab.books.record import criteria_date, read_record
from jaxattn.lab.books.run import Request, requested
from jaxattn.lab.books.section import Section

# Marks open questions in the files of an item.
OPEN = "TODO"
# Minimum number of seeds for a full-scale study. A study with a single seed is exempt, because it samples
# within that seed.
SEEDS = 10


def problems(book: Book, request: Request | None = None, *, out: Path) -> pd.DataFrame:
    """List the problems to fix before items can be published, without running anything.

    Books in the package are skipped, because the package's tests check them.

    Args:
        book: the book that contains the items.
        request: the items to check, and the scale.
        out: results folder; its records show whether criteria were changed after results were recorded.

    Returns:
        A table with columns item and problem.
    """
    request = request or Request()
    rows = []
    for item in requested(book, request) if book.folder.parent != PACKAGED else ():
        kept = read_record(item, request.scale, out)
        for found in (_open_questions, _files, _prose, _seeds, _private):
            rows += [(item.name, problem) for problem in found(item)]
        rows += [(item.name, problem) for problem in _results(item, kept, out)]
    return pd.DataFrame(rows, columns=["item", "problem"])


def _open_questions(item: Item) -> Iterator[str]:
    for path in sorted(item.folder.iterdir()):
        if path.suffix in (".toml", ".py", ".md"):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            if found := [str(number) for number, line in enumerate(lines, 1) if OPEN in line]:
                where = f"line{'s' if len(found) > 1 else ''} {', '.join(found)}"
                yield f"{path.name}: answer the questions marked {OPEN} in {where}"


def _files(item: Item) -> Iterator[str]:
    if item.measured and not (item.folder / "README.md").is_file():
        yield "README.md is missing"
    if item.book.folder.resolve().parent == CHECKOUT / "sweeps":
        test = CHECKOUT / "tests" / item.book.name / f"test_{item.folder.name}.py"
        if not test.is_file():
            yield f"{test.relative_to(CHECKOUT)} is missing; test the code with a closed form or a NumPy loop"


def _prose(item: Item) -> Iterator[str]:
    for key in ("chosen", "compared"):
        if item.measured and not getattr(item, key).strip():
            yield f"item.toml: {key} is missing"


def _seeds(item: Item) -> Iterator[str]:
    if item.absent:
        return
    for name in dict.fromkeys(name for measure in item.measured for name in measure.studies):
        if item.source(name).own and 1 < (seeds := len(item.study("full", name).seeds)) < SEEDS:
            yield f"{name}.toml: {seeds} seeds at full scale; use {SEEDS} or more"


def _private(item: Item) -> Iterator[str]:
    for path in sorted(item.folder.glob("*.py")):
        for name in private_uses(path):
            yield f"{path.name}: {name} is not public; use a name of the reference, or copy the code"


def _results(item: Item, kept: Section, out: Path) -> Iterator[str]:
    # A custom measure can set its own criteria, which are unknown before its first run.
    unknown = not kept.ran and any(":" in measure.kind for measure in item.measured)
    judged = any(finding.judged for finding in kept.findings)
    if item.measured and not (item.criteria_digest or judged or unknown):
        yield "item.toml: no measure has a criterion"
    before = criteria_date(item, out)
    if before and before.digest != item.criteria_digest:
        yield (
            f"item.toml: the criteria changed after results had been recorded with those of {before.date}; "
            "restore them, or state the reason in `chosen`"
        )
    elif before and before.changed:
        yield f"the criteria were changed on {before.date}, after results had been recorded"
    if kept.doubtful and not item.reason.strip():
        yield f"item.toml: reason is missing; the results are: {kept.verdict}"
