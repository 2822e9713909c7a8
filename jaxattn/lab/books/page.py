"""The page of a book: every item with its figure, our numbers beside the published ones, and its verdict."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from jaxattn.core.errors import counted, writing
from jaxattn.lab.books import findings, record
from jaxattn.lab.books.book import Book, Scale
from jaxattn.lab.books.section import Section, measured, missing
from jaxattn.lab.results import layout
from jaxattn.lab.results.layout import fill, markdown
from jaxattn.lab.storage.files import inside
from jaxattn.lab.storage.files import write as write_file

TEMPLATE = Path(__file__).with_name("page.html")
AGREEMENT = (
    "item", "measured", "value", "low", "high", "interval_over", "published", "criterion", "verdict",
)  # fmt: skip


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


def write(
    book: Book,
    out: Path,
    runs: Mapping[str, Path],
    *,
    scale: Scale,
    failed: Mapping[str, str] = MappingProxyType({}),
    overrides: Sequence[str] = (),
) -> Page:
    """Write index.md, index.html and agreement.csv, and of every item its record and its figures.

    An item whose run is not there is shown from its record, if the folder has one: the page grows item by
    item, also where the runs lie on several machines or are gone.

    Args:
        book: whose items.
        out: where; its records are read too.
        runs: the run folder of every item by name.
        scale: the scale of the runs.
        failed: items whose run failed, and why.
        overrides: further overrides that the runs were made with.

    Returns:
        What was written.

    Raises:
        InputError: a record that is damaged.
        RunError: a file cannot be written.
    """
    fresh = {item.name: measured(item, runs[item.name], scale, out, overrides) for item in book.items}
    sections = tuple(
        fresh[item.name]
        or (missing(item, scale, "the run failed") if item.name in failed else record.read(item, scale, out))
        for item in book.items
    )
    contents = {
        "index.md": as_markdown(book, sections, scale).encode(),
        "index.html": as_html(book, sections, scale).encode(),
        "agreement.csv": agreement(sections).to_csv(index=False, lineterminator="\n").encode(),
    }
    for each in fresh.values():
        if each and each.ran:
            contents |= record.files(each, scale)
    with writing(out, "give another folder with --out"):
        for name, content in contents.items():
            inside((out / name).parent, out).mkdir(parents=True, exist_ok=True)
            write_file(out / name, content, out)
    return Page(sections, tuple(out / name for name in contents), failed)


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


def agreement(sections: tuple[Section, ...]) -> pd.DataFrame:
    """Every finding of every item with its numbers, for computing."""
    rows = [
        {
            "item": each.item.name,
            "measured": finding.measured,
            "value": finding.estimate.value,
            "low": finding.estimate.low,
            "high": finding.estimate.high,
            "interval_over": finding.over,
            "published": finding.published,
            "criterion": finding.criterion.text if finding.criterion else "-",
            "verdict": finding.verdict,
        }
        for each in sections
        for finding in each.findings
    ]
    return pd.DataFrame(rows, columns=list(AGREEMENT))


def as_markdown(book: Book, sections: tuple[Section, ...], scale: Scale) -> str:
    """Write the page in Markdown."""
    introduction = [line for text in _introduction(book, sections, scale) for line in (text, "")]
    table = summary(sections).drop(columns="title")
    lines = [
        f"# {book.shared.title}",
        "",
        f"**{in_numbers(sections)}**",
        "",
        *introduction,
        markdown(table),
        "",
    ]
    for each in sections:
        item = each.item
        lines += [f"## {item.name}", "", f"**{item.heading}.** {each.verdict.capitalize()}.", ""]
        lines += [f"**Reported:** {item.reports}", ""]
        lines += [f"**Not published and chosen here:** {item.chosen}.", ""]
        lines += [f"**Compared:** {item.compared}.", ""]
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


def as_html(book: Book, sections: tuple[Section, ...], scale: Scale) -> str:
    """Write the page as HTML that holds everything it shows."""
    return fill(
        TEMPLATE,
        title=book.shared.title,
        sections=sections,
        introduction=_introduction(book, sections, scale),
        verdict=in_numbers(sections),
        contents=contents(sections),
        texts=layout.texts,
        place=record.place,
    )


def in_numbers(sections: tuple[Section, ...]) -> str:
    """Say in a line what the verdicts of all findings say."""
    said = [finding.verdict for each in sections for finding in each.findings if finding.criterion]
    if not said:
        return "Nothing is judged yet."
    parts = []
    for verdict, plural in ((findings.AGREES, "agree"), (findings.DIFFERS, "differ")):
        number = said.count(verdict)
        parts += [f"{number} {verdict if number == 1 else plural}"] * (number > 0)
    parts += [f"{said.count(findings.CANNOT_TELL)} cannot tell"] * (findings.CANNOT_TELL in said)
    judged = sum(any(finding.criterion for finding in each.findings) for each in sections)
    items = f"{judged} of {counted(len(sections), 'item')}"
    return f"Of {counted(len(said), 'judged number')} in {items}, {', '.join(parts)}."


def contents(sections: tuple[Section, ...]) -> dict[str, list[Section]]:
    """Group the items by the worst that their findings say, for a table of contents."""
    names = {
        "no": "Differs, at least in part",
        "open": "Cannot tell",
        "yes": "Agrees",
        "": "Only measured, or not run here",
    }
    groups = {tone: [each for each in sections if layout.tone(each.verdict) == tone] for tone in names}
    return {names[tone]: group for tone, group in groups.items() if group}


def _introduction(book: Book, sections: tuple[Section, ...], scale: Scale) -> list[str]:
    sizes = (
        "This page is at laptop scale: sizes are reduced by the overrides that every item names; "
        f"`--scale full` runs the sweep files of {book.place} as they are."
        if scale == "laptop"
        else f"This page is at full scale: the sweep files of {book.place} as they are."
    )
    return [
        book.shared.introduction.strip(),
        sizes,
        *([_cost(book, ran, scale)] if (ran := [each for each in sections if each.ran]) else []),
        findings.RULE,
        *([findings.OLD] if any(finding.old for each in sections for finding in each.findings) else []),
    ]


def _cost(book: Book, ran: list[Section], scale: Scale) -> str:
    minutes = sum(each.seconds for each in ran) / 60
    machines = " and ".join(sorted({each.machine for each in ran}))
    words = ["jaxattn", "reproduce", *book.option, *(["--scale", scale] if scale != "laptop" else [])]
    words += ["--data-dir", "DIR"] if book.shared.data else []
    took = f"The {len(ran)} runs shown took" if len(ran) > 1 else "The run shown took"
    return f"{took} {minutes:,.0f} minutes in all on {machines}: `{shlex.join(words)}`."
