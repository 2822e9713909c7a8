"""Pages of a book: a scorecard of all items, and a page for each item with claims, numbers and figures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pandas as pd

from jaxattn.core.errors import counted, writing
from jaxattn.lab.books import record as records
from jaxattn.lab.books.book import Book, Item, RunScale
from jaxattn.lab.books.finding import FALSIFIED, TOY, Finding, Read
from jaxattn.lab.books.record import Record
from jaxattn.lab.pages.layout import fill, texts
from jaxattn.lab.refute.search import NONE
from jaxattn.lab.results.intervals import LEVEL
from jaxattn.lab.results.judge import DIFFERS, ENOUGH_SEEDS, INCONCLUSIVE
from jaxattn.lab.storage.files import inside, write_file

_TEMPLATE = Path(__file__).with_name("page.html")
TABLE = "findings.csv"
NOT_RUN = "not run"
# Finding of an item with random choices: the share of draws that reproduce all numbers.
ALL_NUMBERS = "all"
RULES = (
    "A number agrees if its whole 95 % interval over seeds is inside the criterion, differs if none of the "
    "interval is, and is inconclusive otherwise, or if it has no interval. If all seeds give the same "
    f"number, this number is compared, from {ENOUGH_SEEDS} seeds on. Intervals are Student's for a mean, a "
    "jackknife interval for a statistic of all seeds together, and Clopper and Pearson's for a fraction of "
    "seeds. The centre of a bin is known up to the width of the bin, which is stated.",
    "A claim is verified if all its numbers agree. It is falsified if a number differs in the claim's own "
    "settings, which are the published ones, or any that meet the assumptions of a theorem. It is a toy if "
    "the settings are far below its own. Otherwise it is inconclusive: a number that differs in settings "
    "that had to be chosen, because they are not published, falsifies nothing. A claim whose statement was "
    "read in an abstract alone is at most inconclusive. Numbers beyond the claim do not count; a claim with "
    "no other numbers is only measured.",
    "Random choices: settings that are not published were drawn at random, and the row states in how many "
    "draws the number meets the same criterion.",
)
SEARCH_RULES = (
    "A search tries many small integer instances. The claim is falsified if one of them violates it in exact "
    "arithmetic. If a flow is integrated, the verdict is at most a numerical counterexample. In a boundary "
    "case, only degenerate instances violate the claim, which its wording does not exclude. A search "
    "without a counterexample verifies nothing.",
)
SETTINGS = {
    "own": "the claim's own",
    "chosen": "some are not published and were chosen here",
    "reduced": "far below those of the claim",
}
READ = {
    "transcription": "read in a transcription by others. The verdict is on the quoted wording.",
    "abstract": "read in an abstract only, so the claim is at most inconclusive.",
}


@dataclass(frozen=True)
class Page:
    """Pages written by `write_pages`.

    Attributes:
        book: the book.
        records: the records of the items that were run.
        paths: all files, starting with the first page.
        failed: reasons for failed runs, keyed by item.
    """

    book: Book
    records: Mapping[str, Record]
    paths: tuple[Path, ...]
    failed: Mapping[str, str]

    @property
    def status(self) -> int:
        """Return the exit status: 1 if a run failed, or if a consequence of the theory differs, else 0."""
        return int(
            bool(self.failed) or any(_is_broken(self.book.item(x), r) for x, r in self.records.items())
        )

    @property
    def scorecard(self) -> pd.DataFrame:
        """Return a table with one row per item: its claim verdict and the verdicts on its numbers."""
        return pd.DataFrame(scorecard(item, self.records) for item in self.book.items)


def _is_broken(item: Item, record: Record) -> bool:
    claims = record.claims(item).values()
    return any(
        verdict == FALSIFIED and any(finding.basis == "theory" for finding in own) for verdict, own in claims
    )


def write_pages(
    book: Book, scale: RunScale, out: Path, *, failed: Mapping[str, str] = MappingProxyType({})
) -> Page:
    """Write index.html, a page for each item, and a table of all findings from the records in a folder.

    A page can therefore combine results from several machines, and results of deleted runs.

    Raises:
        InputError: a record is damaged.
        RunError: a file cannot be written.
    """
    found, reasons = read_records(book, scale, out)
    shown = [item for item in book.items if item.name in found]
    parts = [[(item, scorecard(item, found)) for item in map(book.item, x.items)] for x in book.parts]
    first = {"parts": parts, "failed": failed, "reasons": reasons, "scale": scale, "table": TABLE}
    contents = {"index.html": fill(_TEMPLATE, **first, **first_page(book, found))}
    for before, item, after in zip([None, *shown], shown, [*shown[1:], None], strict=False):
        steps = {"before": before, "after": after, "texts": texts}
        contents[f"{item.name}.html"] = fill(_TEMPLATE, **steps, **item_page(item, found))
    written = {name: text.encode() for name, text in contents.items()}
    written[TABLE] = findings_table(found).to_csv(index=False, lineterminator="\n").encode()
    with writing(out, "choose another folder with --out"):
        for name, content in written.items():
            inside((out / name).parent, out).mkdir(parents=True, exist_ok=True)
            write_file(out / name, content, out)
    return Page(book, found, tuple(out / name for name in written), dict(failed))


def first_page(book: Book, found: Mapping[str, Record]) -> dict[str, Any]:
    """Return what the first page of a book shows, for its template."""
    return {
        "item": None,
        "title": book.words.title,
        "book": book,
        "summary": summary(found, book),
        "rules": rules(book),
        "cost": cost(list(found.values())),
        "sentence": sentence,
    }


def item_page(item: Item, found: Mapping[str, Record]) -> dict[str, Any]:
    """Return what the page of an item shows, for its template."""
    record = found[item.name]
    return {
        "item": item,
        "title": item.title,
        "book": item.book,
        "record": record,
        "about": about(item, record),
        "claims": claims(item, record),
        "draws": random_choices(item, found),
        "drawn_with": _drawn_with(item, found),
        "rules": rules(item.book),
        "heading_of_reason": heading_of_reason,
        "sentence": sentence,
    }


def rules(book: Book) -> tuple[str, ...]:
    """Return the rules of the verdicts in a book, as paragraphs."""
    searched = [bool(item.claim) for item in book.items]
    return (() if all(searched) else RULES) + SEARCH_RULES * any(searched)


def read_records(book: Book, scale: RunScale, out: Path) -> tuple[dict[str, Record], dict[str, str]]:
    """Return the records in a folder by item, and the reasons why other items have to be run again."""
    found, reasons = {}, {}
    for item in book.items:
        record, reasons[item.name] = records.find_record(item, scale, out)
        if record is not None:
            found[item.name] = record
    return {
        name: _with_sensitivity(record, book.item(name), found) for name, record in found.items()
    }, reasons


def _with_sensitivity(record: Record, item: Item, found: Mapping[str, Record]) -> Record:
    """Return the record with the shares of random choices, which have the same ids in another item."""
    other = found.get(item.words.sensitivity)
    if other is None:
        return record
    draws = {finding.id: finding.counts for finding in other.findings}
    replace = msgspec.structs.replace
    own = [replace(x, sensitivity=x.sensitivity or draws.get(x.id)) for x in record.findings]
    return replace(record, findings=own)


def about(item: Item, record: Record) -> dict[str, str]:
    """Return the paragraphs above the claims of an item by heading: its settings, or its hypothesis."""
    chosen, read = item.words.chosen.strip(), READ.get(item.words.read, "")
    if not item.claim:
        settings = SETTINGS["reduced" if record.reduced else item.words.settings]
        return {"Settings": f"{settings}. {chosen}".strip()} | ({"Statement": read} if read else {})
    # The statement is quoted with them, so they come before the numbers.
    shown = ("hypothesis", "source", "repaired statement")
    found = {key.capitalize(): record.facts[key] for key in shown if key in record.facts}
    return found | ({"Setting": chosen} if chosen else {})


def heading_of_reason(record: Record) -> str:
    """Return the heading of an item's explanation."""
    differs = any(x.verdict == DIFFERS and not x.search for x in record.findings)
    return "Why numbers differ" if differs else "Explanation"


def scorecard(item: Item, found: Mapping[str, Record]) -> dict[str, str]:
    """Return the row of an item in the scorecard of its book, whose records are `found`."""
    row, record = {"item": item.name, "title": item.title}, found.get(item.name)
    if record is None:
        return row | {"claim": "see there" if item.words.elsewhere else NOT_RUN}
    claim, numbers = record.summary(item)
    draws = random_choices(item, found)
    return row | {
        "claim": claim,
        "numbers": numbers,
        "seeds": seeds(record.findings),
        "agree in random choices": draws,
    }


def random_choices(item: Item, found: Mapping[str, Record]) -> str:
    """Return the number of random choices of settings for which all numbers agree: "9 of 32", or ""."""
    other = found.get(item.words.sensitivity)
    joint = [finding.counts for finding in other.findings if finding.id == ALL_NUMBERS] if other else []
    return "{} of {}".format(*joint[0]) if joint and joint[0] else ""


def _drawn_with(item: Item, found: Mapping[str, Record]) -> str:
    """Return the model of the random choices, which may be smaller than that of the item."""
    other = found.get(item.words.sensitivity)
    return other.facts.get("model", "") if other else ""


def seeds(findings: Sequence[Finding]) -> str:
    """Return the range of the numbers of seeds, such as "6 seeds", "3 to 64 seeds" or "90 runs"."""
    counts = [(finding.seeds, finding.unit) for finding in findings if finding.seeds]
    if not counts:
        return ""
    (low, _), (high, unit) = min(counts), max(counts)
    return counted(high, unit) if low == high else f"{low} to {counted(high, unit)}"


def claims(item: Item, record: Record) -> list[dict[str, Any]]:
    """Return the claims of an item for its page: statement, verdict and reason, tally, numbers."""
    return [
        {
            "statement": claim or item.words.reports,
            "verdict": verdict or "only measured",
            "why": _why(verdict, own, item.words.read),
            "tally": records.tally(own),
            "seeds": seeds(own),
            "table": numbers(own),
            "missed": [x for x in own if _is_missed(x)],
        }
        for claim, (verdict, own) in record.claims(item).items()
    ]


def _why(verdict: str, own: Sequence[Finding], read: Read) -> str:
    """Return why a claim is a toy or inconclusive; "" for other verdicts."""
    if verdict == TOY:
        return "the settings are far below those of the claim"
    if verdict != INCONCLUSIVE:
        return ""
    if read == "abstract":
        return "the statement was read in an abstract only"
    if any(_is_missed(x) and x.verdict == DIFFERS for x in own):
        return "a number that differs falsifies nothing here, because settings were chosen"
    return "not all intervals are inside their criteria"


def _is_missed(finding: Finding) -> bool:
    """Return whether a number that counts for its claim was compared and not reproduced."""
    missed = finding.verdict in (DIFFERS, INCONCLUSIVE)
    return missed and not finding.search and finding.basis != "beyond"


# How a summary counts verdicts of searches.
_OUTCOMES = {
    NONE: "without a counterexample",
    "numerical counterexample": "with a numerical counterexample",
    "numerical counterexample, exact target": "with a numerical counterexample and an exact target",
}
_BASES = {"published": "publication", "theory": "theory", "beyond": "beyond the claim"}


def numbers(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return the table of numbers as shown on pages, without empty columns."""
    mixed = len({finding.basis for finding in findings if finding.expected}) > 1
    rows = [
        {
            "quantity": x.text,
            "setting": x.setting,
            "predicted": x.published,
            "criterion": x.expected.text if x.expected else "",
            "measured": x.measured,
            "over": x.counted,
            "verdict": x.search or x.verdict,
            "random choices that agree": "{} of {}".format(*x.sensitivity) if x.sensitivity else "",
            "basis": _BASES[x.basis] if mixed and x.expected else "",
            "source": x.source,
            "certificate": x.certificate,
        }
        for x in findings
    ]
    table = pd.DataFrame(rows)
    return table.loc[:, [name for name in table if not table[name].eq("").all()]].replace("", "-")


def findings_table(found: Mapping[str, Record]) -> pd.DataFrame:
    """Return all findings of a book as a table, one row per finding."""
    rows = [
        {
            "item": name,
            "id": x.id,
            "claim": x.claim,
            "setting": x.setting,
            "text": x.text,
            "value": x.value,
            "low": x.interval[0] if x.interval else None,
            "high": x.interval[1] if x.interval else None,
            "resolution": x.resolution or None,
            "seeds": x.seeds,
            "missing": x.missing,
            "hits": str(x.counts[0]) if x.counts else "",
            "over": x.counted,
            "published": x.published,
            "criterion": x.expected.text if x.expected else "",
            "basis": x.basis,
            "verdict": x.search or x.verdict,
            "agreeing_draws": str(x.sensitivity[0]) if x.sensitivity else "",
            "draws": str(x.sensitivity[1]) if x.sensitivity else "",
            "certificate": x.certificate,
            "source": x.source,
        }
        for name, record in found.items()
        for x in record.findings
    ]
    columns = ["item", "id", "claim", "setting", "text", "value", "low", "high", "verdict"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def summary(found: Mapping[str, Record], book: Book) -> str:
    """Count the verdicts on all claims and numbers of a book, in one or two sentences."""
    words = [
        verdict for name, x in found.items() for verdict, _ in x.claims(book.item(name)).values() if verdict
    ]
    every = [finding for record in found.values() for finding in record.findings]
    counts = ", ".join(
        f"{words.count(word)} {_OUTCOMES.get(word, word)}" for word in dict.fromkeys(sorted(words))
    )
    judged = [finding for finding in every if finding.expected and not finding.search]
    missed = f"up to {(1 - LEVEL) * len(judged):.1f} of {len(judged)} intervals"
    chance = f"At a coverage of {100 * LEVEL:.0f} % {missed} are expected to miss the true number by chance."
    claim = f"{counted(len(words), 'claim')}: {counts}. " if words else ""
    if not judged:
        return claim.strip() or "No number has a criterion yet."
    return f"{claim}{records.tally([x for x in every if not x.search])}. {chance}"


def cost(found: Sequence[Record]) -> str:
    """Return the total run time of the records and their machines, as a sentence."""
    ran = [record for record in found if record.seconds]
    machines = " and ".join(sorted({record.machine for record in ran if record.machine}))
    seconds = sum(record.seconds for record in ran)
    time = f"{seconds / 60:,.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"
    return f"The runs took {time} in total{f' on {machines}' * bool(machines)}." if ran else ""


def sentence(text: str) -> str:
    """Capitalise the first word of a text unless it is a symbol or a name, and end it with a full stop."""
    text = text.strip()
    if re.match(r"(a|[a-z]{2,})[ ,.:]", text):
        text = text[:1].upper() + text[1:]
    return f"{text.removesuffix('.')}."
