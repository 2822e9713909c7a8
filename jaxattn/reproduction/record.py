"""Records: what a section shows, kept as a file, so that the page can be written where the run is not."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.claims.rows import Tolerance
from jaxattn.errors import InputError
from jaxattn.paper import compare
from jaxattn.paper.compare import Estimate, Finding
from jaxattn.paper.item import Item, Scale
from jaxattn.paper.section import Picture, Section, command, missing
from jaxattn.spec import Count, NotNegative
from jaxattn.storage import files as storage


class _Criterion(msgspec.Struct):
    low: float
    high: float | None
    text: str


class _Finding(msgspec.Struct):
    measured: str
    estimate: tuple[float | None, float | None, float | None]
    over: str
    published: str
    criterion: _Criterion | None
    # Of records before there were any, nothing tells how many.
    seeds: Count = 0


class _Picture(msgspec.Struct):
    file: str
    caption: str


class _Table(msgspec.Struct):
    columns: list[str]
    data: list[list[str]]


class Record(msgspec.Struct):
    """What the file of an item holds."""

    scale: str
    settings: str
    seconds: NotNegative
    machine: str
    facts: dict[str, str]
    findings: list[_Finding]
    pictures: list[_Picture]
    tables: dict[str, _Table]


def place(item: Item) -> str:
    """Say where the record of an item lies in a folder of results."""
    return f"items/{item.name}.json"


def files(section: Section, scale: Scale) -> dict[str, bytes]:
    """Write the record of a section, and its figures.

    Args:
        section: what was measured.
        scale: the scale of the run.

    Returns:
        The files' contents by their names in the folder of results.
    """
    content = {
        "scale": scale,
        "settings": section.item.digest(scale),
        "seconds": section.seconds,
        "machine": section.machine,
        "facts": dict(section.facts),
        "findings": [_written(finding) for finding in section.findings],
        "pictures": [{"file": each.file, "caption": each.caption} for each in section.pictures],
        "tables": {
            title: {"columns": list(table.columns), "data": table.to_numpy().tolist()}
            for title, table in section.tables.items()
        },
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {place(section.item): text.encode()} | {each.file: each.data for each in section.pictures}


def read(item: Item, scale: Scale, folder: Path) -> Section:
    """Read the record of an item.

    Args:
        item: the item.
        scale: the scale of the page.
        folder: the folder of results.

    Returns:
        The section; if there is no record, or its settings are no longer those of the item, one that says
        what to run.

    Raises:
        InputError: the record is of another scale, or it, or a figure of it, is damaged.
    """
    path = folder / place(item)
    if not path.exists():
        return missing(item, scale)
    try:
        kept = msgspec.convert(storage.read_json(path, folder), Record)
        pictures = [storage.read(folder / x.file, folder, most=storage.MOST_JSON) for x in kept.pictures]
        section = _section(item, scale, kept, pictures)
    except storage.Damaged as error:
        named = "; remove it and" if str(error).startswith(f"{path}: ") else f", but {path} names it;"
        raise InputError(f"{error}{named} {_remedy(item, scale)}") from None
    except ValueError as error:
        raise InputError(f"{path}: damaged: {error}; remove it and {_remedy(item, scale)}") from None
    found, settings = kept.scale, kept.settings
    if found != scale:
        raise InputError(
            f"{folder}: holds results at {found} scale; add `--scale {found}`, or "
            "name another folder with --out"
        )
    if settings != item.digest(scale):
        return missing(item, scale, "its settings have changed since it was run")
    return section


def _section(item: Item, scale: Scale, kept: Record, pictures: list[bytes]) -> Section:
    findings = tuple(map(_read, kept.findings))
    return Section(
        item,
        compare.verdict(findings),
        command(item, scale),
        facts=kept.facts,
        findings=findings,
        tables={
            title: pd.DataFrame(table.data, columns=table.columns) for title, table in kept.tables.items()
        },
        pictures=tuple(
            Picture(each.file, each.caption, data) for each, data in zip(kept.pictures, pictures, strict=True)
        ),
        seconds=kept.seconds,
        machine=kept.machine,
    )


def _remedy(item: Item, scale: Scale) -> str:
    return f"run `{command(item, scale)}`"


def _written(finding: Finding) -> dict[str, Any]:
    criterion = finding.criterion
    return {
        "measured": finding.measured,
        "estimate": [_finite(x) for x in finding.estimate[:3]],
        "seeds": finding.estimate.seeds,
        "over": finding.over,
        "published": finding.published,
        "criterion": criterion
        and {"low": criterion.low, "high": _finite(criterion.high), "text": criterion.text},
    }


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _read(written: _Finding) -> Finding:
    within = None
    if known := written.criterion:
        within = Tolerance(known.low, math.inf if known.high is None else known.high, known.text)
    value, low, high = (math.nan if x is None else x for x in written.estimate)
    estimate = Estimate(value, low, high, written.seeds)
    return Finding(written.measured, estimate, written.over, within, written.published)
