"""The page of a book: every item with its figure, our numbers next to the published ones, and its verdict."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from jaxattn.core.errors import counted, writing
from jaxattn.lab.books import reading, record
from jaxattn.lab.books.book import Book, Item
from jaxattn.lab.books.findings import Finding
from jaxattn.lab.books.section import Place, Section, measured, missing
from jaxattn.lab.results import layout
from jaxattn.lab.results.judge import VERDICTS, Basis, Estimate
from jaxattn.lab.results.layout import fill, markdown
from jaxattn.lab.storage.files import inside
from jaxattn.lab.storage.files import write as write_file

TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Page:
    """What was written.

    Attributes:
        sections: one for every item.
        paths: all files, the page first.
        failed: items whose run failed, and why.
    """

    sections: tuple[Section, ...]
    paths: tuple[Path, ...]
    failed: Mapping[str, str]

    @property
    def summary(self) -> pd.DataFrame:
        """One row per item."""
        return summary(self.sections)

    @property
    def findings(self) -> list[Finding]:
        """All findings, item by item."""
        return [finding for section in self.sections for finding in section.findings]

    @property
    def status(self) -> int:
        """Exit status: 1 if a run failed or something promised fails, else 0."""
        fails = VERDICTS["promised"].outside
        return int(bool(self.failed) or any(finding.verdict == fails for finding in self.findings))


def _agreement(item: Item, finding: Finding) -> dict[str, Any]:
    return {
        "item": item.name,
        "measured": finding.name,
        **_numbers(finding),
        "interval_over": finding.over,
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


# The row of a finding in the table of all numbers, by the name of its file.
TABLES = {"agreement.csv": _agreement, "claims.csv": _claims}


def write(book: Book, place: Place, *, failed: Mapping[str, str] = MappingProxyType({})) -> Page:
    """Write index.md, index.html, the table of all numbers, and the record and figures of every item.

    An item whose runs are not there is shown from its record, if the folder has one: the page grows item by
    item, also if the runs are on several machines or have been deleted.

    Args:
        book: whose items.
        place: where the runs are, and where the page is written; its records are read too.
        failed: items whose run failed, and why.

    Returns:
        What was written. Items whose runs cannot be measured have failed, too.

    Raises:
        InputError: a record that is damaged.
        RunError: a file cannot be written.
    """
    fresh = {
        item.name: found and record.with_kept(found, place.scale, place.out)
        for item in book.items
        for found in [measured(item, place)]
    }
    sections = tuple(
        fresh[item.name]
        or (
            missing(item, place.scale, "the run failed")
            if item.name in failed
            else record.read(item, place.scale, place.out)
        )
        for item in book.items
    )
    contents = {
        "index.md": as_markdown(book, sections, place).encode(),
        "index.html": as_html(book, sections, place).encode(),
        book.shared.table: table(book, sections).to_csv(index=False, lineterminator="\n").encode(),
    }
    for each in fresh.values():
        if each and each.ran:
            contents |= record.files(each, place.scale)
    unreadable = {each.item.name: each.remedy for each in fresh.values() if each and each.unreadable}
    with writing(place.out, "give another folder with --out"):
        for name, content in contents.items():
            inside((place.out / name).parent, place.out).mkdir(parents=True, exist_ok=True)
            write_file(place.out / name, content, place.out)
    return Page(sections, tuple(place.out / name for name in contents), {**unreadable, **failed})


def summary(sections: tuple[Section, ...]) -> pd.DataFrame:
    """One row per item: what is reported, the verdict, how long it ran and how to run it."""
    return pd.DataFrame(
        {
            "item": each.item.name,
            "title": each.item.heading,
            "reported": each.item.reports,
            "verdict": each.verdict,
            "run time": each.facts.get("run time", "-"),
            "most memory": each.facts.get("most memory", "-"),
            "command": f"`{each.command}`",
        }
        for each in sections
    )


def table(book: Book, sections: tuple[Section, ...]) -> pd.DataFrame:
    """All numbers of all findings, in the columns of the book's table."""
    row = TABLES[book.shared.table]
    rows = [row(each.item, finding) for each in sections for finding in each.findings]
    # Columns are there without rows too.
    columns = row(book.items[0], Finding("", Estimate(0.0, 0.0, 0.0)))
    return pd.DataFrame(rows, columns=list(columns))


def as_markdown(book: Book, sections: tuple[Section, ...], place: Place) -> str:
    """Write the page in Markdown."""
    introduction = [line for text in _introduction(book, sections, place) for line in (text, "")]
    items = summary(sections).drop(columns="title")
    lines = [
        f"# {book.shared.title}",
        "",
        f"**{in_numbers(sections)}**",
        "",
        *introduction,
        markdown(items),
        "",
    ]
    for each in sections:
        item = each.item
        lines += [f"## {item.name}", "", f"**{item.heading}.** {each.verdict.capitalize()}.", ""]
        lines += [f"**Reported:** {item.reports}", ""]
        lines += [f"**Not published and chosen here:** {item.chosen}.", ""] if item.chosen else []
        lines += [f"**Compared:** {item.compared}.", ""] if item.compared else []
        lines += [f"**Why:** {each.reason}.", ""] if each.reason else []
        if item.elsewhere:
            lines += [f"Not run here: see [{item.elsewhere.words}]({item.elsewhere.link}).", ""]
        if each.remedy:
            lines += [f"{each.verdict.capitalize()}: {each.remedy}.", ""]
        lines += [*(f"- {name}: {fact}" for name, fact in each.facts.items()), ""]
        lines += [markdown(each.agreement), ""] if each.findings else []
        for picture in each.pictures:
            lines += [f"![{picture.alt(item)}]({picture.file})", "", picture.caption, ""]
        lines += [f"**Why it is flat:** {item.flat}.", ""] if item.flat and each.pictures else []
        for title, table in each.tables.items():
            lines += [f"{title}:", "", markdown(table), ""]
        lines += [f"    {each.command}", ""]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def as_html(book: Book, sections: tuple[Section, ...], place: Place) -> str:
    """Write the page as HTML that holds everything it shows."""
    return fill(
        TEMPLATE,
        title=book.shared.title,
        sections=sections,
        introduction=_introduction(book, sections, place),
        verdict=in_numbers(sections),
        contents=contents(sections),
        texts=layout.texts,
        place=record.place,
        table=book.shared.table,
    )


# The subject of a sentence about findings of a basis, and the plurals of its verdicts.
_SUBJECTS: dict[Basis, tuple[str, dict[str, str]]] = {
    "published": ("judged number", {"agrees": "agree", "differs": "differ", "cannot tell": "cannot tell"}),
    "promised": ("promised number", {"holds": "hold", "fails": "fail", "undecided": "are undecided"}),
    "beyond": (
        "unpromised number",
        {
            "holds there too": "hold there too",
            "holds for some": "hold for some",
            "does not hold": "do not hold",
            "undecided": "are undecided",
        },
    ),
}


def in_numbers(sections: tuple[Section, ...]) -> str:
    """Summarise the verdicts of all findings in a sentence for each basis."""
    sentences = []
    for basis, (subject, plurals) in _SUBJECTS.items():
        own = {each.item.name: _verdicts(each.findings, basis) for each in sections}
        said = [verdict for verdicts in own.values() for verdict in verdicts]
        if not said:
            continue
        parts = []
        for verdict, plural in plurals.items():
            number = said.count(verdict)
            parts += [f"{number} {verdict if number == 1 else plural}"] if number else []
        items = f"{sum(map(bool, own.values()))} of {counted(len(sections), 'item')}"
        sentences.append(f"Of {counted(len(said), subject)} in {items}, {', '.join(parts)}.")
    return " ".join(sentences) or "Nothing is judged yet."


def _verdicts(findings: Sequence[Finding], basis: Basis) -> list[str]:
    """List the verdicts of judged findings of a basis."""
    return [x.verdict for x in findings if x.judged and (x.basis or "published") == basis]


def contents(sections: tuple[Section, ...]) -> dict[str, list[Section]]:
    """Group the items by the worst verdict of their findings, for a table of contents."""
    promised = any(finding.basis == "promised" for each in sections for finding in each.findings)
    names = {
        "no": "Fails, at least in part" if promised else "Differs, at least in part",
        "open": "Undecided" if promised else "Cannot tell",
        "yes": "Holds" if promised else "Agrees",
        "": "Only measured, or not run here",
    }
    groups = {tone: [each for each in sections if each.tone == tone] for tone in names}
    return {names[tone]: group for tone, group in groups.items() if group}


def _introduction(book: Book, sections: tuple[Section, ...], place: Place) -> list[str]:
    files = f"the sweep files of {book.place} as they are"
    reduced = any(item.laptop for item in book.items)
    sizes = {
        "laptop": "This page is at laptop scale: sizes are reduced by the overrides that every item names; "
        f"`--scale full` runs {files}.",
        "full": f"This page is at full scale: {files}.",
    }
    return [
        book.shared.introduction.strip(),
        sizes[place.scale] if reduced else f"Its studies are {files}.",
        *([_cost(book, ran, place)] if (ran := [each for each in sections if each.seconds]) else []),
        *reading.rules([finding for each in sections for finding in each.findings]),
    ]


def _cost(book: Book, ran: list[Section], place: Place) -> str:
    minutes = sum(each.seconds for each in ran) / 60
    machines = " and ".join(sorted({each.machine for each in ran}))
    words = ["jaxattn", "reproduce", book.name, *(["--scale", "full"] if place.scale == "full" else [])]
    words += ["--data-dir", "DIR"] if book.shared.data else []
    took = f"The runs of the {len(ran)} items shown took" if len(ran) > 1 else "The run shown took"
    return f"{took} {minutes:,.0f} minutes in all on {machines}: `{shlex.join(words)}`."
