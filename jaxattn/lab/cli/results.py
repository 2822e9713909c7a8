"""Commands that read results, reproduce papers, test claims, and diagnose trained models."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction

from jaxattn.core.errors import InputError
from jaxattn.lab.cli.console import (
    print_json,
    print_line,
    print_made_by,
    print_summary,
    print_table,
    print_wrapped,
    print_written,
    rows_of,
    stoppable,
)
from jaxattn.lab.cli.options import (
    Every,
    Folders,
    Json,
    MaxMemory,
    Quiet,
    ResultsDir,
    Set,
    keep_compiled,
    option,
    read_folders,
    read_pair,
    read_size,
    read_two,
    require_local_folder,
)


def aggregate(
    directories: Folders,
    /,
    where: Annotated[UseAppendAction[tuple[str, ...]], option("KEY=VALUE")] = (),
    metrics: Annotated[tuple[str, ...], option("METRIC ...")] = (),
    phases: Annotated[tuple[str, ...], option("PHASE ...")] = (),
    by: Annotated[tuple[str, ...], option("KEY ...")] = (),
    pair: Annotated[str | None, option("KEY=A,B")] = None,
    out: Annotated[Path | None, option("FILE")] = None,
    every: Every = False,
    as_json: Json = False,
) -> int:
    """Print means over seeds with 95 % confidence intervals.

    The table shows the metrics at the last step of each phase. With --json, or --out to a CSV or Parquet
    file, all steps are included, with the mean, median and interquartile mean of each metric.

    Example: jaxattn aggregate results/quickstart --metrics loss --out loss.tex

    Args:
        where: Show only cells whose config has this value for this key; repeatable.
        metrics: Show only these metrics.
        phases: Show only these phases.
        by: Average over all cells with the same values of these keys, separately for each seed.
        pair: Compute the difference B - A between two values of a swept key, separately for each seed.
        out: Write all rows (cell, phase, step, metric) to a CSV or Parquet file, or the printed table to a
            LaTeX or Markdown file.
    """
    from jaxattn.lab.loaded import load
    from jaxattn.lab.pages import layout
    from jaxattn.lab.results import combine, statistics

    loaded = load(read_folders(directories))
    if not loaded.finished:
        print_line("jaxattn: the run is not finished; the results so far are shown", err=True)
    print_made_by(loaded.made_by)
    wanted = dict(read_pair("--where", text, "model.dim=512") for text in where)
    loaded = combine.choose(loaded, where=wanted, metrics=metrics, phases=phases)
    if pair is not None:
        key, *values = read_two("--pair", pair)
        if key in by:
            raise InputError(f"--by {key}: is paired, so it cannot label rows; leave it out of --by")
        loaded = combine.paired(loaded, key, *values)
    if by:
        loaded = combine.group(loaded, by)
    if as_json:
        print_json(rows_of(statistics.aggregate(loaded)))
    else:
        print_summary(loaded, every=every or bool(metrics))
    if out is not None:
        lay_out = statistics.aggregate if out.suffix in (".csv", ".parquet") else statistics.summary_table
        layout.write_page(lay_out(loaded), out)
        print_line(out, err=as_json)
    return 0


def report(
    directory: ResultsDir,
    /,
    every: Annotated[
        bool, option(name="all", help="Print the paths of all files, not only report.html.")
    ] = False,
    formats: Annotated[tuple[Literal["png", "pdf"], ...], option("png|pdf ...")] = (),
    flow: Annotated[int | None, option("SEED")] = None,
) -> int:
    """Draw the figures of a run and write its report.

    The report, report.html, is one self-contained page; its path is printed. Figures are SVG files.

    Example: jaxattn report results/quickstart --formats pdf

    Args:
        formats: Also write the figures in these formats.
        flow: Add a slider along the exact flow of this seed in the first cell. The flow is computed again.
    """
    from jaxattn.lab.engine.progress import Reporter, delayed
    from jaxattn.lab.pages import report as pages
    from jaxattn.lab.storage.folder import results_folder

    folder = results_folder(directory)
    here = folder.fetch("tables", "report")
    elements = () if flow is None else (_flow(directory, flow),)
    with Reporter() as reporter:
        progress = delayed(reporter.update)
        written = pages.write_report(here, progress=progress, formats=formats, elements=elements)
    folder.send_report(written.paths, here)
    print_written(written, every=every)
    print_made_by(written.made_by)
    return 1 if written.problems else 0


def _flow(directory: Path | str, seed: int) -> str:
    """Return the slider along the flow of a seed as an HTML element."""
    from jaxattn.lab.explorer.explore_run import explore_run
    from jaxattn.lab.loaded import load

    return explore_run(load(directory), seed=seed).figure()


def diagnose(
    embedding: Annotated[str, option("E.npy|FILE:KEY")],
    query: Annotated[str, option("p.npy|FILE:KEY")],
    head: Annotated[str, option("v.npy|FILE:KEY")],
    corpus: Annotated[Path, option("FILE.toml")],
    vocabulary: Annotated[Path | None, option("FILE")] = None,
    overrides: Set = (),
    out: Annotated[Path, option("DIR")] = Path("results/diagnosis"),
    min_count: int = 50,
    important: float = 0.5,
    seed: int = 0,
    number: int = 15,
    quiet: Quiet = False,
) -> int:
    """Diagnose which tokens a trained classifier attends to.

    Test whether E·v follows the importance of the tokens in a corpus, and whether attention, through E·p,
    selects the important tokens. Compare the correlations with those of random models and of one
    gradient step on the same corpus.

    Example: jaxattn diagnose --embedding E.npy --query p.npy --head v.npy --corpus c.toml

    Args:
        embedding: Embedding E of shape (V, d), from a .npy file or a key of a .safetensors file.
        query: Query p of shape (d,), or (H, d) for H attention heads.
        head: Read-out vector v of shape (d,); (d, K) or (K, d) for K classes; (H, d, K) with a separate v for
            each of H attention heads.
        corpus: Sweep file; only its [data] table is required.
        vocabulary: File with the token for each row of E, one per line; defaults to the tokens of the corpus.
        out: Folder for the page, tokens.csv and the figures.
        min_count: Exclude tokens with fewer occurrences from all statistics.
        important: Minimum |posterior difference| for a token to count as important.
        seed: Seed for synthetic data and for the random models.
        number: Number of tokens to list.
    """
    from jaxattn.data.arrays import read_array
    from jaxattn.lab import diagnosis
    from jaxattn.lab.engine.progress import Reporter

    require_local_folder(out)
    E, p, v = (read_array(location) for location in (embedding, query, head))
    with Reporter(quiet) as reporter:
        labelled, tokens = diagnosis.read_corpus(
            corpus, overrides=overrides, vocabulary=vocabulary, seed=seed, progress=reporter.loading
        )
    found = diagnosis.diagnose(
        E, p, v, labelled, tokens=tokens, min_count=min_count, important=important, seed=seed
    )
    for title, table in found.tables(number):
        print_table(title, table)
    for verdict in found.verdicts:
        print_wrapped(verdict)
    for path in found.write(out, number):
        print_line(path)
    return 0


def reproduce(
    book: Annotated[Positional[str], option(metavar="FOLDER")],
    only: Annotated[tuple[str, ...], option(metavar="ITEM ...")] = (),
    scale: Literal["laptop", "full"] = "laptop",
    seeds: Annotated[int | None, option(metavar="N")] = None,
    data_dir: Annotated[Path | None, option(metavar="DIR")] = None,
    out: Annotated[Path | None, option(metavar="DIR")] = None,
    max_memory: MaxMemory = None,
    check: bool = False,
    new: Annotated[str | None, option(metavar="NAME")] = None,
    export: Annotated[Path | None, option(metavar="DIR")] = None,
    quiet: Quiet = False,
) -> int:
    """Reproduce results of papers, or test claims.

    The folder is a book: it contains items, each with studies and a check.py that compares their results with
    published values, or with a claim that is searched for counterexamples; see docs/howto/books.md. The exit
    status is 1 if a run fails, if a claim of the tested theory is falsified, or if --check reports that
    something is missing.

    Example: jaxattn reproduce sweeps/paper --only fig2_synthetic fig3_imdb --data-dir ../data

    Args:
        book: Folder of a book, or its name in sweeps/. Code in the folder is imported.
        only: Run only these items; the pages show earlier results for the other items.
        scale: Use the sizes in the sweep files (full), or smaller sizes that take about 15 minutes on two
            cores (laptop). A search takes at most 60 seconds at laptop scale.
        seeds: Number of seeds; overrides the sweep files, up to the maximum of each study. A claim is
            searched with one seed by default.
        data_dir: Folder with the book's data sets; for the paper, tfds/imdb_reviews and yelp_stars.parquet.
            Studies that require missing data are skipped.
        out: Results folder for one scale; by default results/BOOK. Finished runs in it are not repeated.
        check: List what each item is missing for publication, and validate the records in the results
            folder, without running anything.
        new: Create an item with this name in the book.
        export: Write the records in the results folder as a logbook in Markdown with CSV files to this
            folder, without running anything.
    """
    from jaxattn.lab import books

    if new is not None:
        for path in books.create(book, new):
            print_line(path)
        return 0
    memory, items = read_size(max_memory), books.read_book(book)
    folder = out or Path("results") / items.name
    require_local_folder(folder)
    if export is not None:
        require_local_folder(export)
        for path in books.export(items, scale, folder, export, only):
            print_line(path)
        return 0
    if check:
        lacking = books.problems(items, only, out=folder)
        if lacking.empty:
            print_line(f"{', '.join(only) or items.name}: nothing is missing")
        else:
            print_table("Missing before publication", lacking)
        return int(not lacking.empty)
    request = books.Request(tuple(only), scale, seeds, data_dir)
    return _reproduce(items, request, folder, memory, quiet)


def _reproduce(book: Any, request: Any, folder: Path, memory: int | None, quiet: bool) -> int:
    from jaxattn.lab import books
    from jaxattn.lab.books.page import claims
    from jaxattn.lab.engine import devices
    from jaxattn.lab.engine.progress import Reporter

    keep_compiled()
    devices.use_all_cores()
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(quiet) as reporter, stoppable(command):
        written = books.reproduce(
            book, request, out=folder, command=command, reporter=reporter, max_memory=memory
        )
    summary = written.scorecard.drop(columns="title").fillna("")
    summary = summary.loc[:, (summary != "").any()]
    print_table(book.words.title, summary[summary["item"].isin(request.only)] if request.only else summary)
    for name in request.only:
        if name in written.records:
            for claim in claims(book.item(name), written.records[name]):
                print_table(f"{claim['statement'].strip()} {claim['verdict']}", claim["table"])
    for path in written.paths:
        print_line(path)
    for name, reason in sorted(written.failed.items()):
        print_line(f"jaxattn: failed: {name}: {reason}", err=True)
    return written.status
