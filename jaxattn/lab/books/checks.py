"""Checks of items before publication: missing words, few seeds, changed criteria, open questions."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from jaxattn.core.errors import first_line
from jaxattn.lab.books.book import Book, Item
from jaxattn.lab.books.record import Record, criteria_of, path_of, read_record
from jaxattn.lab.refute import proof, read_claim
from jaxattn.lab.refute.space import from_lists
from jaxattn.lab.results.judge import AGREES, ENOUGH_SEEDS
from jaxattn.lab.study.import_paths import ImportPaths

# Marks open questions in the files of an item.
OPEN = "TODO"


def problems(book: Book, only: Sequence[str] = (), *, out: Path) -> pd.DataFrame:
    """List the problems to fix before items can be published, without running anything.

    Args:
        book: the book that contains the items.
        only: names of the items; all if empty.
        out: results folder. Its records are validated, and show whether criteria were changed after results
            had been recorded.

    Returns:
        A table with columns item and problem.

    Raises:
        InputError: an item does not exist, its check cannot be imported, or a record is not valid.
    """
    rows = []
    for item in [book.item(name) for name in only] or book.items:
        if item.words.elsewhere:
            continue
        path = out / path_of(item.name)
        record = read_record(path, out) if path.exists() else None
        found = [*_open_questions(item), *_parts(item), *_seeds(item), *_results(item, record, out)]
        rows += [(item.name, problem) for problem in found]
    return pd.DataFrame(rows, columns=["item", "problem"])


def _open_questions(item: Item) -> Iterator[str]:
    for path in sorted(item.folder.iterdir()):
        if path.suffix in (".toml", ".py", ".md"):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            if found := [str(number) for number, line in enumerate(lines, 1) if OPEN in line]:
                where = f"line{'s' if len(found) > 1 else ''} {', '.join(found)}"
                yield f"{path.name}: answer the questions marked {OPEN} in {where}"


def _parts(item: Item) -> Iterator[str]:
    if item.claim:
        read_claim(item.claim)
        return
    ImportPaths(item.folder).load("check.py:check")
    for key in ("chosen", "compared"):
        if not getattr(item.words, key).strip():
            yield f"item.toml: {key} is missing"


def _seeds(item: Item) -> Iterator[str]:
    """Find studies with few seeds at full scale; random choices and studies of one seed sample otherwise."""
    if _is_sensitivity(item):
        return
    for name, source in item.sources.items():
        if source.own and 1 < (seeds := len(item.study("full", name).seeds)) < ENOUGH_SEEDS:
            yield f"{source.path.name}: {seeds} seeds at full scale; use {ENOUGH_SEEDS} or more"


def _results(item: Item, record: Record | None, out: Path) -> Iterator[str]:
    if record is None:
        return
    if record.settings != item.digest(record.scale):
        yield "the settings have changed since the results were recorded; run the item again"
    criteria = criteria_of(item, out)
    if criteria.changed and not item.words.changed.strip():
        when = f"results had been recorded on or after {record.criteria.date}"
        yield f"{criteria.file} changed after {when}; explain it with `changed` in item.toml"
    verdicts = {finding.verdict for finding in record.findings if finding.verdict}
    if not verdicts and item.words.judged and not item.claim and not _is_sensitivity(item):
        yield "check.py: no finding has a criterion"
    if verdicts - {AGREES} and not item.words.reason.strip():
        yield "item.toml: reason is missing; some numbers differ or are inconclusive"
    if item.claim and verdicts:
        yield from _counterexample(item, out)


def _is_sensitivity(item: Item) -> bool:
    """Return whether the item has the random choices of another one, whose criteria it shares."""
    return any(item.name == other.words.sensitivity for other in item.book.items)


def _counterexample(item: Item, out: Path) -> Iterator[str]:
    """Decide again, with the claim, whether a recorded counterexample violates it; flows are not repeated."""
    path = out / item.name / proof.RECORD
    try:
        found, claim = json.loads(path.read_text(encoding="utf-8")), read_claim(item.claim)
        instance = from_lists(found["instance"])
        sides = claim.exact(instance) if claim.exact_target and not claim.assumptions(instance) else None
        stated = found["left"], found["right"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{path}: is missing or damaged ({first_line(error)}); run the item again"
        return
    if claim.exact_target and (sides is None or (str(sides.left), str(sides.right)) != stated):
        yield f"{path}: the claim does not confirm it; run the item again"
