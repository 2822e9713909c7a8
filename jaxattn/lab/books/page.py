"""Page for a book: its items with figures, results next to published numbers, verdicts and their rules."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from jaxattn.core.errors import writing
from jaxattn.lab.books import record, tally
from jaxattn.lab.books.book import Book, Item
from jaxattn.lab.books.findings import Finding
from jaxattn.lab.books.section import RunLocation, Section, measured, missing
from jaxattn.lab.results import layout
from jaxattn.lab.results.intervals import LEVEL
from jaxattn.lab.results.judge import ENOUGH_SEEDS, VERDICTS, Basis, Estimate
from jaxattn.lab.results.layout import fill, markdown, marked, typeset
from jaxattn.lab.storage.files import inside
from jaxattn.lab.storage.files import write_file as write_file

_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Page:
    """Page written by `write_book_page`.

    Attributes:
        sections: one section per item.
        paths: all files, starting with the page.
        failed: reasons for failed runs, keyed by item.
    """

    sections: tuple[Section, ...]
    paths: tuple[Path, ...]
    failed: Mapping[str, str]

    @property
    def summary(self) -> pd.DataFrame:
        """Return a summary table with one row per item."""
        return page_summary(self.sections)

    @property
    def findings(self) -> list[Finding]:
        """Return all findings, in the order of the items."""
        return [finding for section in self.sections for finding in section.findings]

    @property
    def status(self) -> int:
        """Return the exit status: 1 if a run failed or a finding violates a theoretical guarantee, else 0."""
        fails = VERDICTS["promised"].outside
        return int(bool(self.failed) or any(finding.verdict == fails for finding in self.findings))


def _agreement(item: Item, finding: Finding) -> dict[str, Any]:
    return {
        "item": item.name,
        "measured": finding.name,
        **_numbers(finding),
        "interval_over": finding.counted,
        "published": finding.published,
        "criterion": _criterion(finding),
        "verdict": finding.verdict,
    }


def _claims(item: Item, finding: Finding) -> dict[str, Any]:
    return {
        "claim": item.name,
        "statement": finding.statement,
        "setting": finding.setting,
        "promised": finding.basis == "promised",
        "seeds": finding.estimate.seeds,
        "missing": finding.estimate.missing,
        "why": finding.why,
        "measured": finding.measured,
        **_numbers(finding),
        "tolerance": _criterion(finding),
        "verdict": finding.verdict,
        "certificate": finding.certificate,
    }


def _numbers(finding: Finding) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), finding.estimate[:3], strict=True))


def _criterion(finding: Finding) -> str:
    return finding.criterion.text if finding.criterion else "-"


# Functions that build a row of a book's table of all findings, keyed by the table's file name.
_TABLES = {"agreement.csv": _agreement, "claims.csv": _claims}


def write_book_page(
    book: Book, location: RunLocation, *, failed: Mapping[str, str] = MappingProxyType({})
) -> Page:
    """Write index.md, index.html, the table of all findings, and a record and figures for every item.

    If an item has no runs but the folder contains its record file, the item is shown from this file. A page
    can therefore combine results from several machines, and results of deleted runs.

    Returns:
        The page. Items in `failed`, and items whose runs cannot be measured, count as failed.

    Raises:
        InputError: a record is damaged.
        RunError: a file cannot be written.
    """
    fresh = {
        item.name: found and record.with_recorded(found, location.scale, location.out)
        for item in book.items
        for found in [measured(item, location)]
    }
    sections = tuple(
        fresh[item.name]
        or (
            missing(item, location.scale, "the run failed")
            if item.name in failed
            else record.read_record(item, location.scale, location.out)
        )
        for item in book.items
    )
    contents = {
        "index.md": as_markdown(book, sections, location).encode(),
        "index.html": as_html(book, sections, location).encode(),
        book.shared.table: page_table(book, sections).to_csv(index=False, lineterminator="\n").encode(),
    }
    for each in fresh.values():
        if each and each.ran:
            contents |= record.files(each, location.scale)
    unreadable = {each.item.name: each.remedy for each in fresh.values() if each and each.unreadable}
    with writing(location.out, "choose another folder with --out"):
        for name, content in contents.items():
            inside((location.out / name).parent, location.out).mkdir(parents=True, exist_ok=True)
            write_file(location.out / name, content, location.out)
    return Page(sections, tuple(location.out / name for name in contents), {**unreadable, **failed})


def page_summary(sections: tuple[Section, ...]) -> pd.DataFrame:
    """Return a table with one row per item: title, verdict, run time, memory and command."""
    return pd.DataFrame(
        {
            "item": each.item.name,
            "title": each.item.heading,
            "verdict": each.verdict,
            "run time": each.facts.get("run time", "-"),
            "peak memory": each.facts.get("peak memory", "-"),
            "command": f"`{each.command}`",
        }
        for each in sections
    )


def page_table(book: Book, sections: tuple[Section, ...]) -> pd.DataFrame:
    """Return all findings as a table; the setting `table` of the book determines its columns."""
    row = _TABLES[book.shared.table]
    rows = [row(each.item, finding) for each in sections for finding in each.findings]
    # Take the column names from a dummy finding, so that an empty table also has them.
    columns = row(book.items[0], Finding("", Estimate(0.0, 0.0, 0.0)))
    return pd.DataFrame(rows, columns=list(columns))


def as_markdown(book: Book, sections: tuple[Section, ...], location: RunLocation) -> str:
    """Return the page as Markdown."""
    lines = [f"# {book.shared.title}", f"**{verdict_summary(sections)}**"]
    lines += [marked(text) for text in _introduction(book, sections, location)]
    for title, own in parts(book, sections).items():
        lines += [f"## {title}"] if title else []
        lines += [_table(page_summary(tuple(own)).drop(columns="item"))]
    for each in sections:
        lines += _item_lines(each)
    return "\n\n".join(line for line in lines if line) + "\n"


def _item_lines(section: Section) -> list[str]:
    item = section.item
    papers = [f"{each.authors}: *{each.title}*, arXiv {each.arxiv}." for each in item.papers]
    prose = [
        ("Reported", item.reports),
        ("Chosen here", item.chosen),
        ("Compared", item.compared),
        ("Explanation", section.reason),
        ("Remedy", section.remedy),
    ]
    lines = [f"## {item.heading}", *papers, f"**Verdict:** {typeset(section.verdict)}."]
    lines += [marked(f"**{name}:** {_sentence(text)}") for name, text in prose if text]
    if item.elsewhere:
        lines += [f"See [{item.elsewhere.words}]({item.elsewhere.link})."]
    facts = {**section.origin, **section.facts}
    lines += ["\n".join(f"- {name}: {fact}" for name, fact in facts.items())]
    for picture in section.pictures:
        lines += [f"![{picture.alt(item)}]({picture.file})", typeset(picture.caption)]
    lines += (
        [marked(f"**Why a curve is flat:** {_sentence(item.flat)}")] if item.flat and section.pictures else []
    )
    for statement, table in section.agreement.items():
        lines += [typeset(f"{_capitalised(statement)}:") if statement else "", _table(table)]
    for title, table in section.labelled_tables.items():
        lines += [f"{title}:", _table(table)]
    return [*lines, f"    {section.command}"]


def _table(table: pd.DataFrame) -> str:
    return markdown(table.map(lambda text: marked(str(text))))


def _capitalised(text: str) -> str:
    """Capitalise the first word of a string unless it is a symbol like p or a name like fig1_imdb."""
    is_word = re.match(r"(a|[a-z]{2,})[ ,.:]", text)
    return text[:1].upper() + text[1:] if is_word else text


def _sentence(text: str) -> str:
    return f"{_capitalised(text.strip()).removesuffix('.')}."


def as_html(book: Book, sections: tuple[Section, ...], location: RunLocation) -> str:
    """Return the page as HTML, with figures in separate files."""
    return fill(
        _TEMPLATE,
        title=book.shared.title,
        parts=parts(book, sections),
        introduction=_introduction(book, sections, location),
        verdict=verdict_summary(sections),
        texts=layout.texts,
        location=record.location,
        capitalised=_capitalised,
        sentence=_sentence,
        table=book.shared.table,
    )


def verdict_summary(sections: tuple[Section, ...]) -> str:
    """Summarise the verdicts of all findings, in one sentence per basis of the criteria."""
    return tally.summary([each.findings for each in sections])


def parts(book: Book, sections: tuple[Section, ...]) -> dict[str, list[Section]]:
    """Group the sections by the titled parts of the book; a book without parts has a single untitled part."""
    if not book.shared.parts:
        return {"": list(sections)}
    found = {
        part.title: [each for each in sections if each.item.folder.name in part.items]
        for part in book.shared.parts
    }
    return {title: own for title, own in found.items() if own}


def _introduction(book: Book, sections: tuple[Section, ...], location: RunLocation) -> list[str]:
    files = f"the sweep files of `{book.location}`"
    reduced = any(item.laptop for item in book.items)
    sizes = {
        "laptop": "The runs on this page have reduced sizes, which are set by the overrides of each item. "
        f"`--scale full` uses {files} without overrides.",
        "full": f"The runs on this page use {files} at full scale, without overrides.",
    }
    return [
        book.shared.introduction.strip(),
        sizes[location.scale] if reduced else f"The runs on this page use {files} without overrides.",
        *([_cost(book, ran, location)] if (ran := [each for each in sections if each.seconds]) else []),
        *rules([finding for each in sections for finding in each.findings]),
    ]


def _cost(book: Book, ran: list[Section], location: RunLocation) -> str:
    minutes = sum(each.seconds for each in ran) / 60
    machines = " and ".join(sorted({each.machine for each in ran}))
    words = ["jaxattn", "reproduce", book.name, *(["--scale", "full"] if location.scale == "full" else [])]
    words += ["--data-dir", "DIR"] if book.shared.data else []
    took = f"The runs of the {len(ran)} items shown took" if len(ran) > 1 else "The run shown took"
    return f"{took} {minutes:,.0f} minutes in total on {machines}. Command: `{shlex.join(words)}`."


# Fraction of seeds for which a yes/no statement must hold.
REQUIRED = 0.9
# Minimum number of seeds that can decide a yes/no statement: if it holds for all n seeds, the lower end of
# the interval is 0.025^(1/n).
DECIDING_SEEDS = math.ceil(math.log(0.025) / math.log(REQUIRED))

_INTERVALS = (
    "Intervals are 95 % intervals over seeds: Student's t interval for a mean, a jackknife interval for "
    "a statistic of all seeds together, and the Clopper-Pearson interval for a share of seeds. A single "
    "seed has no interval. If all seeds give the same number there is no interval either; from "
    f"{ENOUGH_SEEDS} seeds on the number itself is then compared with the criterion."
)
_RULES: dict[Basis, str] = {
    "published": "A number agrees if its whole interval is within the criterion, and differs if none of "
    "the interval is. It is inconclusive if a part of the interval is within the criterion, or if there "
    "is no interval. A number without a criterion is reported without a verdict. The interval of the centre "
    "of a bin is at least as wide as the bin.",
    "promised": "A number that the theory promises holds if its whole interval is within the criterion, "
    "and fails if none of the interval is. Otherwise it is inconclusive. A promise without a criterion "
    "is inconclusive too, because it is a limit that no finite run reaches. A yes/no statement is "
    f"measured by the share of seeds that satisfy it. Its criterion is a share of at least {REQUIRED:g}, "
    f"which {DECIDING_SEEDS} seeds or more can show. The number of seeds has to be chosen before the run: "
    "adding seeds until a statement holds makes any statement hold.",
    "beyond": "The same rule applies to numbers that the theory does not promise: such a number holds, "
    "does not hold, or is inconclusive. It holds for some seeds if the share of seeds is below the "
    "criterion but not zero. It is only measured if it has no criterion.",
}
_OLD = (
    "Some intervals of this page are percentile bootstrap intervals of an earlier version, which cover "
    "less than 95 % with few seeds. With fewer than six seeds that version also resampled the tokens "
    "within bins."
)
CERTIFICATES = (
    "A certificate is a numerical proof: a duality gap, which bounds the distance of the computed "
    "max-margin direction from the true one, and a primal residual. In settings, V is the size of the "
    "vocabulary, n the number of sequences, T their length, d the dimension, and η0 the size of the one "
    "step on E."
)
_FILES = {
    "cannot tell": "The files record an inconclusive number as `cannot tell`.",
    "undecided": "The files record an inconclusive number as `undecided`.",
    "holds there too": "The files record a number that holds without a promise as `holds there too`.",
}


def rules(findings: Sequence[Finding]) -> list[str]:
    """Return paragraphs that explain the verdicts and intervals of the findings."""
    bases = {finding.basis or "published" for finding in findings} or {"published"}
    return [
        *(
            text
            for basis, text in _RULES.items()
            if basis in bases or (not findings and basis == "published")
        ),
        _INTERVALS,
        *([CERTIFICATES] if any(finding.certificate != "-" for finding in findings) else []),
        *([expected_misses(findings)] if any(finding.criterion for finding in findings) else []),
        *(text for word, text in _FILES.items() if any(finding.verdict == word for finding in findings)),
        *([_OLD] if any(finding.old for finding in findings) else []),
    ]


def expected_misses(findings: Sequence[Finding]) -> str:
    """Return a sentence with the number of intervals that are expected to miss the true value by chance."""
    judged = sum(finding.criterion is not None for finding in findings)
    return (
        f"{judged} of {len(findings)} numbers have a criterion. At a coverage of {100 * LEVEL:.0f} % up "
        f"to {(1 - LEVEL) * judged:.1f} of these {judged} intervals are expected to miss the true number "
        "by chance. Numbers of the same runs are not independent, so they may miss together."
    )


def too_few(seeds: int) -> str:
    """Return a warning if there are too few seeds to decide a yes/no statement, else ""."""
    if seeds >= DECIDING_SEEDS:
        return ""
    return (
        f"{seeds} seeds are too few for yes/no statements to hold: the whole interval of the share must be "
        f"above {REQUIRED:g}, which requires {DECIDING_SEEDS} seeds or more"
    )
