"""Run the items of a book, resume interrupted runs, and write the results page."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from jaxattn.core.errors import InputError, RunError, at, counted, nearest
from jaxattn.lab.api import Study
from jaxattn.lab.books import page, record
from jaxattn.lab.books.book import Book, Item, RunScale
from jaxattn.lab.books.findings import load_measure
from jaxattn.lab.books.names import check_names, fits_name, known_names
from jaxattn.lab.books.page import Page
from jaxattn.lab.books.section import RunLocation, Section
from jaxattn.lab.books.tables import Measure
from jaxattn.lab.engine import run as engine
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results.judge import Criterion
from jaxattn.lab.storage import study_file
from jaxattn.lab.storage.files import inside
from jaxattn.lab.study.identity import identities

# Items to run, each with the measures whose data are available.
Wanted = list[tuple[Item, tuple[Measure, ...]]]


@dataclass(frozen=True)
class Request:
    """Options for reproducing a book.

    Attributes:
        only: names of the items to run, in order; defaults to all items whose data are available. All other
            items are shown from existing runs or record files.
        scale: "full" to run the studies as written, "laptop" to apply the items' overrides.
        seeds: number of seeds, at least 2; defaults to the number in the sweep files. A measure may set a
            maximum. If an existing run has more seeds, all its seeds are kept and measured.
        data_dir: folder with the data sets of the book; None to skip measures that need data.
        overrides: additional overrides `key=value`, keyed by study name.
    """

    only: Sequence[str] = ()
    scale: RunScale = "laptop"
    seeds: int | None = None
    data_dir: Path | None = None
    overrides: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def study(self, item: Item, name: str) -> Study:
        """Read one of an item's studies with the requested scale, seeds and overrides."""
        overrides = self.overrides.get(name, ())
        return item.study(self.scale, name, data_dir=self.data_dir, overrides=overrides, seeds=self.seeds)


def reproduce(
    book: Book,
    request: Request | None = None,
    *,
    out: Path,
    command: str,
    reporter: Reporter,
    max_memory: int | None = None,
) -> Page:
    """Run items and write the page for the whole book. Finished runs are not repeated.

    A study shared by several items is run once, in out/runs/SCALE/STUDY. A study that belongs to one item
    is run in out/runs/SCALE/ITEM.

    Args:
        book: the book that contains the items.
        request: the items to run, and the run options.
        out: the results folder.
        command: the command line, which is stored in the manifests.
        reporter: receives progress messages.
        max_memory: memory limit in bytes per device; the default depends on the device.

    Raises:
        InputError: an item does not exist or its data are missing; a measure or override does not match
            any study; fewer than two seeds are requested; or the folder contains damaged records, or records
            of a different scale.
        RunError: the page cannot be written, or every item failed and there are no records to show.
        UserCodeError: the book's code raised an exception on import.
        Interrupted: SIGINT or SIGTERM was received; repeat the command to resume.
    """
    request = request or Request()
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise InputError(f"--data-dir {request.data_dir}: the folder does not exist; check the path")
    if request.seeds is not None and request.seeds < 2:
        raise InputError(f"seeds: an interval over seeds requires at least 2, got {request.seeds}")
    wanted, kept = _wanted(book, out, request)
    _check_overrides(book, request)
    wanted = _without_other_books(wanted, request, reporter)
    if request.data_dir is None:
        wanted = _without_data(book, wanted, kept if request.only else {}, reporter)
    location = RunLocation(out, request.scale, request.overrides)
    for item, measures in wanted:
        for measure in measures:
            load_measure(measure, item)
            check_names(measure, item, _expected(item, measure, request, kept[item.name]))
    failed = _run(wanted, request, location, command=command, reporter=reporter, max_memory=max_memory)
    if len(failed) == len(wanted) and failed and not any(section.ran for section in kept.values()):
        raise RunError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    return page.write_book_page(book, location, failed=failed)


def _run(
    wanted: Wanted,
    request: Request,
    location: RunLocation,
    *,
    command: str,
    reporter: Reporter,
    max_memory: int | None,
) -> dict[str, str]:
    jobs: dict[Path, list[tuple[Item, str]]] = {}
    for item, measures in wanted:
        for name in dict.fromkeys(name for measure in measures for name in measure.studies):
            jobs.setdefault(location.run(item, name), []).append((item, name))
    failed: dict[str, str] = {}
    for number, (folder, users) in enumerate(jobs.items(), 1):
        reporter.note(f"{number} of {len(jobs)}: {folder.name}")
        try:
            study = _with_earlier_seeds(_study(users, request), inside(folder, location.out))
            outcome = engine.run_study(
                study, folder, command=command, reporter=reporter, max_memory=max_memory
            )
            reason = outcome.errors[0]["reason"] if outcome.errors else ""
        except (InputError, RunError) as error:
            reason = str(error)
        if reason:
            failed |= {item.name: reason for item, _ in users if item.name not in failed}
            reporter.note(f"{folder.name}: failed")
    return failed


def _study(users: Sequence[tuple[Item, str]], request: Request) -> Study:
    studies = [request.study(item, name) for item, name in users]
    return max(studies, key=lambda study: len(study.seeds))


def _with_earlier_seeds(study: Study, folder: Path) -> Study:
    """Add the seeds for which the same study was run before, because other items may show them."""
    known = None
    with suppress(InputError):
        known = study_file.find_study(folder)
    if known is None or set(known["seeds"]) <= set(study.seeds):
        return study
    keys = {number: found.key for number, found in identities(study)[0].items()}
    if {cell["cell"]: cell["key"] for cell in known["cells"]} != keys:
        return study
    seeds = sorted({*study.seeds, *known["seeds"]})
    return Study.of_tables(study.tree | {"seeds": seeds}, study.names)


def list_findings(book: Book, request: Request | None = None, *, out: Path) -> pd.DataFrame:
    """List the findings that `reproduce` would measure, and check their criteria, without running anything.

    Returns:
        A table with columns item, finding and criterion. Parts of a name that are known only after a run
        are replaced by `*`. For a measure whose finding names cannot be predicted, the names in its
        criteria are listed instead.

    Raises:
        InputError: see `reproduce`.
    """
    request = request or Request()
    wanted, kept = _wanted(book, out, request)
    rows = []
    for item, measures in wanted:
        if item.absent:
            rows.append({"item": item.name, "finding": f"unknown: {item.absent}", "criterion": "-"})
            continue
        for measure in measures:
            load_measure(measure, item)
            known = _expected(item, measure, request, kept[item.name])
            check_names(measure, item, known)
            for name, criterion in _criteria(measure, known):
                text = criterion.text if criterion else "-"
                rows.append({"item": item.name, "finding": name, "criterion": text})
    return pd.DataFrame(rows, columns=["item", "finding", "criterion"])


def _wanted(book: Book, out: Path, request: Request) -> tuple[Wanted, dict[str, Section]]:
    items = requested(book, request)
    kept = {item.name: record.read_record(item, request.scale, out) for item in book.items}
    return [(item, item.measured) for item in items if item.measured], kept


def requested(book: Book, request: Request) -> list[Item]:
    """Return the requested items of a book, or all items if none is requested by name."""
    with at("--only"):
        return [book.item(name) for name in request.only] or list(book.items)


def _criteria(measure: Measure, known: list[str] | None) -> list[tuple[str, Criterion | None]]:
    request = measure.criteria
    if known is None:
        return [(name, x.criterion) for name, x in request.items()] or [("known after the first run", None)]
    fits = {
        name: [x.criterion for pattern, x in request.items() if fits_name(name, pattern)] for name in known
    }
    return [(name, found[0] if found else None) for name, found in fits.items()]


def _check_overrides(book: Book, request: Request) -> None:
    measures = [measure for item in book.items for measure in item.measured]
    known = dict.fromkeys(name for measure in measures for name in measure.studies)
    for name in request.overrides:
        if name not in known:
            raise InputError(f"overrides: no item has a study {name!r}{nearest(name, known)}")


def _without_other_books(wanted: Wanted, request: Request, reporter: Reporter) -> Wanted:
    """Drop items whose studies are in a missing book; raise InputError if such an item was requested."""
    lacking = {item.name: item.absent for item, _ in wanted if item.absent}
    for name in request.only:
        if name in lacking:
            raise InputError(f"--only {name}: {lacking[name]}")
    for reason in dict.fromkeys(lacking.values()):
        names = ", ".join(name for name, text in lacking.items() if text == reason)
        reporter.note(f"{names}: not run; {reason}")
    return [(item, measures) for item, measures in wanted if item.name not in lacking]


def _expected(item: Item, measure: Measure, request: Request, kept: Section) -> list[str] | None:
    """Return the expected finding names for a measure, or None if they cannot be predicted before a run."""
    known = known_names(measure, item, request.study(item, measure.studies[0]))
    if known is not None or not kept.ran or len(item.measured) > 1:
        return known
    return [finding.name for finding in kept.findings]


def _without_data(book: Book, wanted: Wanted, kept: dict[str, Section], reporter: Reporter) -> Wanted:
    """Drop measures whose data are missing; raise InputError if a requested item has no measures left."""
    left = [(item, tuple(x for x in measures if not x.needs)) for item, measures in wanted]
    for item, measures in left:
        if not measures and item.name in kept and not kept[item.name].ran:
            raise InputError(f"--only {item.name}: data are missing; {kept[item.name].remedy}")
    if lacking := sum(len(measures) < len(item.measured) for item, measures in left):
        places = "; ".join(f"{Path('DIR', each.below)}: {each.what}" for each in book.shared.data.values())
        reporter.note(
            f"{counted(lacking, 'item')}: measures that need data are not run; add `--data-dir DIR`, "
            f"with {places}"
        )
    return [(item, measures) for item, measures in left if measures]
