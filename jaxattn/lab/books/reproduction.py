"""Reproduce a book: run its items, measure their results, and write records and pages."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from jaxattn.core.errors import InputError, RunError, at, counted
from jaxattn.lab.api import Study
from jaxattn.lab.books import record as records
from jaxattn.lab.books import searches
from jaxattn.lab.books.book import Book, Item, RunScale
from jaxattn.lab.books.page import Page, write_pages
from jaxattn.lab.books.record import Picture, Record
from jaxattn.lab.engine import run_study as engine
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.figures import draw as figures
from jaxattn.lab.loaded import Results, load
from jaxattn.lab.pages.layout import texts
from jaxattn.lab.storage import study_file
from jaxattn.lab.storage.files import inside, write_file
from jaxattn.lab.study.identity import identities

# Figures with more bytes than this as SVG, such as those with a dot for every token, are stored as PNG.
_LARGEST_SVG = 300_000


@dataclass(frozen=True)
class Request:
    """Options for reproducing a book.

    Attributes:
        only: names of the items to run, in order; by default all items whose data are available.
        scale: "full" to run the studies as written, "laptop" to apply the items' overrides.
        seeds: number of seeds, at least 2 for studies; by default that of the sweep files, and 1 for the
            search of a claim. If an existing run has more seeds, all its seeds are kept and measured.
        data_dir: folder with the data sets of the book; without it, studies that need data are not run.
    """

    only: Sequence[str] = ()
    scale: RunScale = "laptop"
    seeds: int | None = None
    data_dir: Path | None = None

    def items(self, book: Book) -> list[Item]:
        """Return the requested items of a book."""
        with at("--only"):
            items = [book.item(name) for name in self.only] or list(book.items)
        return [item for item in items if not item.words.elsewhere]

    def study(self, item: Item, name: str) -> Study:
        """Read a study of an item with the requested scale and seeds."""
        return item.study(self.scale, name, data_dir=self.data_dir, seeds=self.seeds)

    def run(self, item: Item, name: str, out: Path) -> Path:
        """Return the folder for the run of an item's study, or for its searches if it has a claim."""
        return inside(out / "runs" / self.scale / (item.sources[name].run if name else item.name), out)


def reproduce(
    book: Book,
    request: Request | None = None,
    *,
    out: Path,
    command: str,
    reporter: Reporter,
    max_memory: int | None = None,
) -> Page:
    """Run items, write their records, and write the pages of the whole book. Finished runs are not repeated.

    A study that several items share is run once, in out/runs/SCALE/STUDY; a study that belongs to one item is
    run in out/runs/SCALE/ITEM. Items that are not requested are shown from their records.

    Args:
        book: the book that contains the items.
        request: the items to run, and the run options.
        out: the results folder.
        command: the command line, which is stored with the runs.
        reporter: receives progress messages.
        max_memory: memory limit in bytes per device; the default depends on the device.

    Raises:
        InputError: an item does not exist or its data are missing; fewer than two seeds are requested; or the
            folder contains damaged records, or records of a different scale.
        RunError: the pages cannot be written, or every item failed.
        Interrupted: SIGINT or SIGTERM was received; repeat the command to resume.
    """
    request = request or Request()
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise InputError(f"--data-dir {request.data_dir}: the folder does not exist; check the path")
    has_studies = any(item.sources for item in request.items(book))
    least, what = (2, "an interval over seeds") if has_studies else (1, "a search")
    if request.seeds is not None and request.seeds < least:
        raise InputError(f"seeds: {what} requires at least {least}, got {request.seeds}")
    wanted = _with_data(book, request, reporter)
    earlier = {item.name: records.find_record(item, request.scale, out)[0] for item in book.items}
    failed = _run(wanted, request, out, command=command, reporter=reporter, max_memory=max_memory)
    for item, names in wanted:
        if item.name not in failed:
            try:
                record, pictures = measure(item, names, request, out, earlier[item.name])
            except (InputError, RunError) as error:
                failed[item.name] = str(error)
                continue
            for path, content in {**pictures, records.path_of(item.name): records.encode(record)}.items():
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                write_file(out / path, content, out)
    if wanted and len(failed) == len(wanted) and not any(earlier.values()):
        raise RunError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    return write_pages(book, request.scale, out, failed=failed)


def _with_data(book: Book, request: Request, reporter: Reporter) -> list[tuple[Item, list[str]]]:
    """Return the requested items, each with the studies whose data are available.

    Raises:
        InputError: an item that was requested by name lacks its data.
    """
    found, lacking = [], []
    for item in request.items(book):
        names = [name for name in item.sources if request.data_dir is not None or name not in item.data]
        if (names or item.claim) and set(item.required) <= set(names):
            found.append((item, names))
        elif item.name in request.only:
            needs = "; ".join(f"DIR/{x.below}: {x.what}" for x in dict.fromkeys(item.data.values()))
            raise InputError(f"--only {item.name}: data are missing; add `--data-dir DIR`, with {needs}")
        if len(names) < len(item.sources):
            lacking.append(item.name)
    if lacking:
        places = "; ".join(f"DIR/{each.below}: {each.what}" for each in book.words.data.values())
        reporter.note(
            f"{counted(len(lacking), 'item')}: studies that need data are not run; add `--data-dir DIR`, "
            f"with {places}"
        )
    return found


def _run(
    wanted: Sequence[tuple[Item, list[str]]],
    request: Request,
    out: Path,
    *,
    command: str,
    reporter: Reporter,
    max_memory: int | None,
) -> dict[str, str]:
    """Run all studies and searches; return the reasons of failures by item."""
    jobs: dict[Path, list[tuple[Item, str]]] = {}
    for item, names in wanted:
        for name in names or [""]:
            jobs.setdefault(request.run(item, name, out), []).append((item, name))
    failed: dict[str, str] = {}
    for number, (folder, users) in enumerate(jobs.items(), 1):
        reporter.note(f"{number} of {len(jobs)}: {folder.name}")
        reason = ""
        try:
            if (item := users[0][0]).claim:
                searches.run(item, request.scale, request.seeds or 1, folder, reporter)
            else:
                studies = [request.study(item, name) for item, name in users]
                study = _with_earlier_seeds(max(studies, key=lambda study: len(study.seeds)), folder)
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
    return Study.from_tables(study.tree | {"seeds": sorted({*study.seeds, *known["seeds"]})}, study.names)


def measure(
    item: Item, names: Sequence[str], request: Request, out: Path, earlier: Record | None = None
) -> tuple[Record, dict[str, bytes]]:
    """Apply the check of an item to its finished runs, or measure the searches of its claim.

    Args:
        item: the item.
        names: the studies whose results are available.
        request: scale of the runs.
        out: the results folder.
        earlier: the item's earlier record with the same settings. Its findings are kept if they need a study
            that is not available.

    Returns:
        The record, and the contents of the figures by path.

    Raises:
        InputError: the check is malformed.
        RunError: the check raised an exception.
    """
    if item.claim:
        return searches.measure(item, request.scale, request.run(item, "", out), out)
    results = {name: load(request.run(item, name, out)) for name in names}
    try:
        findings, tables = item.measure(results)
    except (InputError, RunError):
        raise
    except Exception as error:  # Checks are custom code.
        frames = [x for x in extract_tb(error.__traceback__) if x.filename.startswith(str(item.book.folder))]
        place = f"{Path(frames[-1].filename).name}: line {frames[-1].lineno}: " if frames else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(f"{place}{reason}; change it, and repeat the command") from None
    pictures, images = _pictures(results[names[0]], item)
    record = Record(
        item.name,
        request.scale,
        item.digest(request.scale),
        records.criteria_of(item, out),
        item.command(request.scale),
        findings,
        reduced=item.is_reduced(request.scale),
        made_by=", ".join(dict.fromkeys(records.made_by(x.manifest) for x in results.values())),
        seconds=sum(x.manifest["wall_time_s"] for x in results.values()),
        machine=_machine(results[names[0]]),
        facts=_facts(results, item, request),
        pictures=pictures,
        tables={title: records.table_of(texts(table)) for title, table in tables.items()},
    )
    if earlier and len(names) < len(item.sources):
        ids = {finding.id for finding in findings}
        record.findings += [finding for finding in earlier.findings if finding.id not in ids]
        record.tables = earlier.tables | record.tables
    return record, images


def _machine(results: Results) -> str:
    device = results.manifest["device"]
    kind = "CPU cores" if device.get("platform") == "cpu" else device.get("kind", "devices")
    return f"{device.get('count', 1)} {kind}"


def _facts(results: Mapping[str, Results], item: Item, request: Request) -> dict[str, str]:
    manifests = [x.manifest for x in results.values()]
    memory = [known for each in manifests if (known := each.get("peak_memory_mib")) is not None]
    changes = item.words.laptop if request.scale == "laptop" else ()
    left_out = [name for name in item.sources if name not in results]
    return {
        "sweep files": ", ".join(item.location(item.sources[name].path) for name in results),
        "overrides": ", ".join(changes) or "none",
        "model": models(request.study(item, next(iter(results)))),
        "cells × seeds": ", ".join(f"{len(each['cells'])} × {len(each['seeds'])}" for each in manifests),
        "run time": f"{sum(each['wall_time_s'] for each in manifests):.0f} s",
        **({"peak memory": f"{max(memory) / 1024:.1f} GiB"} if memory else {}),
        **({"not run": ", ".join(left_out)} if left_out else {}),
    }


def models(study: Study) -> str:
    """Return the kinds and widths of the models in a study."""
    tables = [cell.tables["model"] for cell in study.cells]
    kinds, dims = (dict.fromkeys(str(x[key]) for x in tables if key in x) for key in ("kind", "dim"))
    return ", d = ".join(", ".join(names) for names in (kinds, dims) if names)


def _pictures(results: Results, item: Item) -> tuple[list[Picture], dict[str, bytes]]:
    pictures, images = [], {}
    for number, spec in enumerate(item.words.figures, 1):
        drawn = figures.draw_figure(results, spec)
        image, kind = drawn.svg(), "svg"
        if len(image) > _LARGEST_SVG:
            image, kind = drawn.png(), "png"
        name = f"figures/{item.name}{f'-{number}' if number > 1 else ''}.{kind}"
        pictures.append(Picture(name, drawn.caption))
        images[name] = image
    return pictures, images
