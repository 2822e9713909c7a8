"""Records: what a section shows, kept as a file, so that the page can be written where the run is not."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.claims.rows import Tolerance
from jaxattn.errors import InputError
from jaxattn.paper import compare
from jaxattn.paper.compare import Estimate, Finding
from jaxattn.paper.item import Item, Scale
from jaxattn.paper.section import Picture, Section, command, missing


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
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found, settings = content["scale"], content["settings"]
        section = _section(item, scale, content, folder)
    except FileNotFoundError as error:
        if error.filename == str(path):
            return missing(item, scale)
        raise InputError(
            f"{error.filename}: not there, but {path} names it; {_remedy(item, scale)}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged: {error}; remove it and {_remedy(item, scale)}") from None
    if found != scale:
        raise InputError(
            f"{folder}: holds results at {found} scale; add `--scale {found}`, or "
            "name another folder with --out"
        )
    if settings != item.digest(scale):
        return missing(item, scale, "its settings have changed since it was run")
    return section


def _section(item: Item, scale: Scale, content: dict[str, Any], folder: Path) -> Section:
    findings = tuple(map(_read, content["findings"]))
    return Section(
        item,
        compare.verdict(findings),
        command(item, scale),
        facts=content["facts"],
        findings=findings,
        tables={title: pd.DataFrame(**table) for title, table in content["tables"].items()},
        pictures=tuple(
            Picture(each["file"], each["caption"], (folder / each["file"]).read_bytes())
            for each in content["pictures"]
        ),
        seconds=content["seconds"],
        machine=content["machine"],
    )


def _remedy(item: Item, scale: Scale) -> str:
    return f"run `{command(item, scale)}`"


def _written(finding: Finding) -> dict[str, Any]:
    criterion = finding.criterion
    return {
        "measured": finding.measured,
        "estimate": [_finite(x) for x in finding.estimate],
        "over": finding.over,
        "published": finding.published,
        "criterion": criterion
        and {"low": criterion.low, "high": _finite(criterion.high), "text": criterion.text},
    }


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _read(written: dict[str, Any]) -> Finding:
    criterion = written["criterion"]
    if criterion:
        high = math.inf if criterion["high"] is None else criterion["high"]
        criterion = Tolerance(criterion["low"], high, criterion["text"])
    estimate = Estimate(*(math.nan if x is None else x for x in written["estimate"]))
    return Finding(written["measured"], estimate, written["over"], criterion, written["published"])
