"""Record files, which store the sections of a page so that it can be rebuilt without the runs."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.core.settings import Count, NotNegative
from jaxattn.lab.books import tally
from jaxattn.lab.books.book import Item, RunScale
from jaxattn.lab.books.findings import Finding
from jaxattn.lab.books.section import LEFT_OUT, CriteriaDate, Section, SectionPicture, item_command, missing
from jaxattn.lab.results.judge import Basis, Criterion, Estimate
from jaxattn.lab.storage import files as storage

# Facts that earlier versions recorded under other names, with their current names.
_RENAMED = {"most memory": "peak memory"}
# JSON has neither NaN nor infinity, so both are stored as null.
Number: TypeAlias = float | None


class _Criterion(msgspec.Struct):
    low: Number
    high: Number
    text: str


# Fields of a finding that are stored unchanged.
_WORDS = ("basis", "cell", "statement", "setting", "certificate", "why")


class _Finding(msgspec.Struct, omit_defaults=True):
    measured: str
    estimate: tuple[Number, Number, Number]
    over: str
    published: str
    criterion: _Criterion | None
    # None in records written before this field was added. The intervals in those records were computed
    # differently.
    seeds: Count | None = None
    missing: Count = 0
    hits: Count | None = None
    basis: Basis = "published"
    cell: str = ""
    statement: str = ""
    setting: str = ""
    certificate: str = "-"
    why: str = ""

    def read(self) -> Finding:
        value, low, high = (math.nan if x is None else x for x in self.estimate)
        within = None
        if known := self.criterion:
            low_end = -math.inf if known.low is None else known.low
            within = Criterion(low_end, math.inf if known.high is None else known.high, known.text)
        return Finding(
            self.measured,
            Estimate(value, low, high, self.seeds or 0, self.missing, self.hits),
            self.over,
            within,
            self.published,
            old=self.seeds is None,
            **{name: getattr(self, name) for name in _WORDS},
        )

    @classmethod
    def of(cls, finding: Finding) -> "_Finding":
        estimate = finding.estimate
        return cls(
            finding.measured,
            estimate[:3],
            finding.over,
            finding.published,
            finding.criterion and _Criterion(*finding.criterion),
            None if finding.old else estimate.seeds,
            estimate.missing,
            estimate.hits,
            **{name: getattr(finding, name) for name in _WORDS if getattr(finding, name) is not None},
        )


class _Picture(msgspec.Struct):
    file: str
    caption: str


class _Table(msgspec.Struct):
    columns: list[str]
    data: list[list[str]]


class Record(msgspec.Struct, omit_defaults=True):
    """Contents of an item's record file."""

    scale: RunScale
    settings: str
    seconds: NotNegative
    machine: str
    facts: dict[str, str]
    findings: list[_Finding]
    pictures: list[_Picture]
    tables: dict[str, _Table]
    # None in records written before this field was added.
    criteria: CriteriaDate | None = None


def location(item: Item) -> str:
    """Return the path of an item's record, relative to the results folder."""
    return f"items/{item.folder.name}.json"


def files(section: Section, scale: RunScale) -> dict[str, bytes]:
    """Return the record and figures for a section at a given scale, keyed by path in the results folder."""
    record = Record(
        scale,
        section.item.digest(scale),
        section.seconds,
        section.machine,
        dict(section.facts),
        [_Finding.of(finding) for finding in section.findings],
        [_Picture(each.file, each.caption) for each in section.pictures],
        {
            title: _Table(list(table.columns), table.to_numpy().tolist())
            for title, table in section.tables.items()
        },
        section.criteria,
    )
    text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    return {location(section.item): text} | {each.file: each.data for each in section.pictures}


def read_record(item: Item, scale: RunScale, folder: Path) -> Section:
    """Read an item's record from a results folder, for a page at a given scale.

    Returns:
        The section. If there is no record, or if the item's settings have changed since the record was
        written, the section contains the command to run instead of results.

    Raises:
        InputError: the record has a different scale, or the record or one of its figures is damaged.
    """
    path, remedy = folder / location(item), f"run `{item_command(item, scale)}`"
    if not path.exists() or item.absent:
        return missing(item, scale, item.absent)
    try:
        record = _read(path, folder)
        if strange := [x.file for x in record.pictures if not storage.is_below(x.file)]:
            raise ValueError(f"invalid figure path {strange[0]!r:.60}")
        pictures = [
            storage.read_file(folder / x.file, folder, maximum=storage.MAX_JSON) for x in record.pictures
        ]
        section = _section(item, scale, record, pictures)
    except storage.Damaged as error:
        named = "; remove it and" if str(error).startswith(f"{path}: ") else f", but {path} refers to it;"
        raise InputError(f"{error}{named} {remedy}") from None
    except ValueError as error:
        raise InputError(f"{path}: damaged: {error}; remove it and {remedy}") from None
    if record.scale != scale:
        raise InputError(
            f"{folder}: contains results at {record.scale} scale; add `--scale {record.scale}`, or "
            "choose another folder with --out"
        )
    if record.settings != item.digest(scale):
        return missing(item, scale, "its settings have changed since it was run")
    return section


def _read(path: Path, folder: Path) -> Record:
    try:
        return msgspec.convert(storage.read_json(path, folder), Record)
    except msgspec.ValidationError as error:  # before msgspec 0.20, not a ValueError
        raise ValueError(str(error)) from None


def criteria_date(item: Item, folder: Path) -> CriteriaDate | None:
    """Return the date on which an item's criteria were fixed, or None if it was not recorded."""
    path = folder / location(item)
    try:
        return _read(path, folder).criteria if path.exists() else None
    except (storage.Damaged, ValueError):  # `read_record` reports the damage.
        return None


def _dated(section: Section, folder: Path) -> Section:
    """Return the section with the date of its criteria: as recorded earlier if unchanged, else today."""
    digest, before = section.item.criteria_digest, criteria_date(section.item, folder)
    if not digest or (before and before.digest == digest):
        return replace(section, criteria=before if digest else None)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return replace(section, criteria=CriteriaDate(digest, today, before is not None))


def _section(item: Item, scale: RunScale, record: Record, pictures: list[bytes]) -> Section:
    found = tuple(each.read() for each in record.findings)
    return Section(
        item,
        tally.item_verdict(found),
        item_command(item, scale),
        facts={_RENAMED.get(name, name): fact for name, fact in record.facts.items()},
        findings=found,
        tables={
            title: pd.DataFrame(table.data, columns=table.columns) for title, table in record.tables.items()
        },
        pictures=tuple(
            SectionPicture(each.file, each.caption, data)
            for each, data in zip(record.pictures, pictures, strict=True)
        ),
        seconds=record.seconds,
        machine=record.machine,
        criteria=record.criteria,
    )


def with_recorded(section: Section, scale: RunScale, folder: Path) -> Section:
    """Return the section with the date of its criteria.

    If runs are missing, the findings and tables of an earlier record are also added.
    """
    section = _dated(section, folder)
    if LEFT_OUT not in section.facts or not (old := read_record(section.item, scale, folder)).ran:
        return section
    known = {(each.name, each.setting) for each in section.findings}
    found = [*section.findings, *(x for x in old.findings if (x.name, x.setting) not in known)]
    return replace(
        section,
        verdict=tally.item_verdict(found),
        findings=tuple(found),
        tables=dict(old.tables) | dict(section.tables),
    )
