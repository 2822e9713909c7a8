"""Running the items of a book: their studies, resumable, and then the page."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from jaxattn.core.errors import InputError, RunError, at
from jaxattn.lab.api import Study
from jaxattn.lab.books import page, record
from jaxattn.lab.books.book import Book, Item, Scale
from jaxattn.lab.books.findings import load
from jaxattn.lab.books.names import check, fits_name, names
from jaxattn.lab.books.page import Page
from jaxattn.lab.books.section import Section
from jaxattn.lab.engine import run as engine
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage.files import inside


def reproduce(
    book: Book,
    *,
    out: Path,
    command: str,
    reporter: Reporter,
    only: Sequence[str] = (),
    scale: Scale = "laptop",
    data_dir: Path | None = None,
    max_memory: int | None = None,
    overrides: Sequence[str] = (),
) -> Page:
    """Run items and write the page of all items; what is finished is not run again.

    Args:
        book: the items.
        out: the results folder; runs go to out/runs/SCALE/NAME.
        command: the command line, for the manifests.
        reporter: where progress goes.
        only: names of the items to run, in this order; by default all whose data are there. The page shows
            the others as far as their runs, or the records those have left, are there.
        scale: "full" runs the studies as they are, "laptop" with the items' overrides.
        data_dir: the folder with the data sets of the book; None leaves their items out.
        max_memory: bytes that may be used on a device; chosen for the device by default.
        overrides: further overrides `key=value`, for every item.

    Returns:
        What was written.

    Raises:
        InputError: an unknown item, one whose data are missing, a measure or an override that does not fit, a
            folder whose records are damaged or of another scale.
        RunError: the page cannot be written; or nothing could be run, and there is nothing else to show.
        UserCodeError: code of the book raised while it was imported.
        Interrupted: SIGINT or SIGTERM came; the same command continues.
    """
    wanted, kept = _wanted(book, out, only, scale)
    if data_dir is None:
        wanted = _without_data(book, wanted, kept if only else {}, reporter)
    for item in wanted:
        load(item)
        check(item, _expected(item, item.study(scale, data_dir, overrides), kept[item.name]))
    failed = {}
    for number, item in enumerate(wanted, 1):
        reporter.note(f"{number} of {len(wanted)}: {item.name}")
        study = item.study(scale, data_dir, overrides)
        try:
            place = inside(folder(out, scale, item), out)
            outcome = engine.run(study, place, command=command, reporter=reporter, max_memory=max_memory)
            reason = outcome.errors[0]["reason"] if outcome.errors else ""
        except (InputError, RunError) as error:
            reason = str(error)
        if reason:
            failed[item.name] = reason
            reporter.note(f"{item.name}: failed")
    if failed and len(failed) == len(wanted) and not any(section.ran for section in kept.values()):
        raise RunError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    runs = {item.name: folder(out, scale, item) for item in book.items}
    return page.write(book, out, runs, scale=scale, failed=failed, overrides=overrides)


def look(book: Book, *, out: Path, only: Sequence[str] = (), scale: Scale = "laptop") -> pd.DataFrame:
    """List the findings that items will have, and check their criteria; nothing is run.

    Args:
        book: as in `reproduce`.
        out: as in `reproduce`.
        only: as in `reproduce`.
        scale: as in `reproduce`.

    Returns:
        Item, finding and criterion; `*` in a name stands for what will be measured.

    Raises:
        InputError: as `reproduce`.
    """
    wanted, kept = _wanted(book, out, only, scale)
    rows = []
    for item in wanted:
        load(item)
        known = _expected(item, item.study(scale), kept[item.name])
        check(item, known)
        for name in known if known is not None else ["named by its code when it has run"]:
            fits = [x.criterion.text for pattern, x in item.criteria.items() if fits_name(name, pattern)]
            rows.append({"item": item.name, "finding": name, "criterion": fits[0] if fits else "-"})
    return pd.DataFrame(rows, columns=["item", "finding", "criterion"])


def _wanted(
    book: Book, out: Path, only: Sequence[str], scale: Scale
) -> tuple[list[Item], dict[str, Section]]:
    """Return the items to run, and what earlier runs of all left; a page of another scale is refused."""
    with at("--only"):
        wanted = [item for name in only if (item := book.item(name)).measure]
    kept = {item.name: record.read(item, scale, out) for item in book.items}
    return (wanted if only else [item for item in book.items if item.measure]), kept


def _expected(item: Item, study: Study, kept: Section) -> list[str] | None:
    """Return the names of the findings that a run will have: see `names`, else those of an earlier run.

    Args:
        item: the item.
        study: its study.
        kept: what an earlier run with the same settings left, if any.
    """
    known = names(item, study)
    return known if known is not None or not kept.ran else [finding.measured for finding in kept.findings]


def _without_data(book: Book, wanted: list[Item], kept: dict[str, Section], reporter: Reporter) -> list[Item]:
    """Leave out items that need data; InputError for one that was asked for and has no record."""
    lacking = [item for item in wanted if item.data]
    for item in lacking:
        if item.name in kept and not kept[item.name].ran:
            raise InputError(f"--only {item.name}: no data; {kept[item.name].remedy}")
    if lacking:
        places = "; ".join(f"DIR/{each.below}: {each.what}" for each in book.shared.data.values())
        reporter.note(f"{len(lacking)} items that need data are not run; add `--data-dir DIR`, with {places}")
    return [item for item in wanted if not item.data]


def folder(out: Path, scale: Scale, item: Item) -> Path:
    """Say where the run of an item lies."""
    return out / "runs" / scale / item.name
