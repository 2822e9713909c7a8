"""Commands that read results, or judge: the theory, the paper, a model of one's own."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from jaxattn.lab.cli.console import (
    print_json,
    print_made_by,
    print_summary,
    print_table,
    print_written,
    rows_of,
    say,
    stoppable,
)
from jaxattn.lab.cli.options import (
    Every,
    Folder,
    Folders,
    Json,
    MaxMemory,
    Quiet,
    Set,
    keep_compiled,
    of_this_machine,
    read_folders,
    read_pair,
    read_size,
    read_two,
)


def aggregate(
    directories: Folders,
    /,
    where: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = (),
    metrics: Annotated[tuple[str, ...], arg(metavar="METRIC ...")] = (),
    phases: Annotated[tuple[str, ...], arg(metavar="PHASE ...")] = (),
    by: Annotated[tuple[str, ...], arg(metavar="KEY ...")] = (),
    pair: Annotated[str | None, arg(metavar="KEY=A,B")] = None,
    seed: int = 0,
    resamples: int = 2000,
    out: Annotated[Path | None, arg(metavar="FILE")] = None,
    every: Every = False,
    as_json: Json = False,
) -> int:
    """Aggregate records over seeds: mean, median, interquartile mean and 95 % intervals.

    Example: jaxattn aggregate results/shard1 results/shard2 --metrics loss --by model.dim --out loss.tex

    Args:
        where: Keep cells whose config has this value; may be given several times.
        metrics: Keep these metrics only.
        phases: Keep these phases only.
        by: Average, seed by seed, over the cells that agree in these keys of the config.
        pair: Differences B - A between two values of a swept key, seed by seed.
        seed: Seed of the bootstrap, which interquartile means have.
        resamples: Number of bootstrap resamples.
        out: Write every (cell, phase, step, metric) to this CSV or Parquet file, or the printed table to
            this LaTeX or Markdown file.
    """
    from jaxattn.lab.results import combine, layout, load, statistics

    folders, missing = read_folders(directories)
    loaded = combine.combine([load(folder) for folder in folders])
    if not loaded.finished or missing:
        say("jaxattn: not finished: these are the numbers so far", err=True)
    print_made_by(loaded.made_by)
    wanted = dict(read_pair("--where", text, "model.dim=512") for text in where)
    loaded = combine.choose(loaded, where=wanted, metrics=metrics, phases=phases)
    if pair is not None:
        loaded = combine.paired(loaded, *read_two("--pair", pair))
    if by:
        loaded = combine.group(loaded, by)
    options: dict[str, Any] = {"seed": seed, "resamples": resamples}
    if as_json:
        print_json(rows_of(statistics.aggregate(loaded, **options)))
    else:
        print_summary(loaded, every=every or bool(metrics), **options)
    if out is not None:
        lay_out = statistics.aggregate if out.suffix in (".csv", ".parquet") else statistics.summary_table
        layout.write(lay_out(loaded, **options), out)
        say(out, err=as_json)
    return 0


def report(directory: Folder, /) -> int:
    """Draw the figures (PNG and PDF) of a run and write one self-contained HTML page.

    Example: jaxattn report results/quickstart
    """
    from jaxattn.lab.engine.progress import Reporter, patient
    from jaxattn.lab.results import report as pages
    from jaxattn.lab.storage.bucket import fetched, send_report

    here = fetched(directory, report=True)
    with Reporter() as reporter:
        written = pages.write(here, progress=patient(reporter.update))
    send_report(directory, here, written.paths)
    print_written(written)
    print_made_by(written.made_by)
    return 1 if written.problems else 0


def diagnose(
    embedding: Annotated[str, arg(metavar="E.npy|FILE:KEY")],
    query: Annotated[str, arg(metavar="p.npy|FILE:KEY")],
    head: Annotated[str, arg(metavar="v.npy|FILE:KEY")],
    corpus: Annotated[Path, arg(metavar="FILE.toml")],
    vocabulary: Annotated[Path | None, arg(metavar="FILE")] = None,
    overrides: Set = (),
    out: Annotated[Path, arg(metavar="DIR")] = Path("results/diagnosis"),
    min_count: int = 50,
    important: float = 0.5,
    seed: int = 0,
    number: int = 15,
    quiet: Quiet = False,
) -> int:
    """Tell whether a trained classifier's E·v knows, and its E·p selects, the important tokens of a corpus.

    Holds its correlations against those of random models and of one gradient step on the same corpus.
    Example: jaxattn diagnose --embedding E.npy --query p.npy --head v.npy --corpus sweeps/quickstart.toml

    Args:
        embedding: E (V, d), from a .npy file or a key of a .safetensors file.
        query: p (d,), or (H, d) for H attention heads.
        head: v (d,), or (d, K) or (K, d) for K classes; (H, d, K) for one of each attention head.
        corpus: Sweep file, or a file with its [data] table alone.
        vocabulary: The tokens of E's rows, one per line; by default those of the corpus, in its order.
        out: Folder of the page, tokens.csv and the figures.
        min_count: Tokens that occur less often are in no statistic.
        important: Tokens with a posterior difference of this size are important.
        seed: Seed of a synthetic corpus and of the random models.
        number: How many tokens to list.
    """
    from jaxattn.data.arrays import read_array
    from jaxattn.lab import diagnosis
    from jaxattn.lab.engine.progress import Reporter

    of_this_machine(out)
    E, p, v = (read_array(place) for place in (embedding, query, head))
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
        say(verdict)
    for path in found.write(out, number):
        say(path)
    return 0


def claims(
    seeds: int = 64,
    only: Annotated[tuple[str, ...], arg(metavar="CLAIM ...")] = (),
    data_dir: Annotated[Path | None, arg(metavar="DIR")] = None,
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
) -> int:
    """Measure the claims of the theory, and what holds beyond it: `jaxattn reproduce claims --seeds 64`.

    Exits with 1 if a claim that should hold does not.
    Example: jaxattn claims --seeds 64 --data-dir ~/tensorflow_datasets

    Args:
        seeds: Number of seeds; with fewer than 36, yes/no statements can fail but not hold.
        only: Measure these claims only, for example T4.3 MC.
        data_dir: Folder of tensorflow-datasets that holds imdb_reviews, to measure on real reviews too.
        out: Results folder; results/claims by default.
    """
    return reproduce(
        "claims", only=only, seeds=seeds, data_dir=data_dir, out=out, max_memory=max_memory, quiet=quiet
    )


def reproduce(
    book: Annotated[Positional[str], arg(metavar="BOOK")] = "paper",
    only: Annotated[tuple[str, ...], arg(metavar="ITEM ...")] = (),
    scale: Literal["laptop", "full"] = "laptop",
    seeds: Annotated[int | None, arg(metavar="N")] = None,
    data_dir: Annotated[Path | None, arg(metavar="DIR")] = None,
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    max_memory: MaxMemory = None,
    check: bool = False,
    quiet: Quiet = False,
) -> int:
    """Run the figures, numbers or claims of a book again, and write a page that compares them.

    Books are folders of items, see docs/howto/books.md: paper and claims are part of the package, neighbours
    and findings are in sweeps/ of a checkout. Exits with 1 if something promised does not hold.
    Example: jaxattn reproduce paper --only fig2_synthetic fig3_imdb --data-dir ../data

    Args:
        book: Name of a book, or its folder; its code is imported.
        only: Run these items only; the page shows the others as far as their runs or records are there.
        scale: Sizes of the sweep files (full), or smaller ones that two cores run in a quarter of an hour.
        seeds: Number of seeds, instead of those of the sweep files; items may set a limit.
        data_dir: Folder of the book's data sets, for the paper tfds/imdb_reviews and yelp_stars.parquet;
            without it, what needs them is not run.
        out: Results folder, of one scale; runs that are finished there are not run again. By default
            results/BOOK.
        check: Print the names of the findings and their criteria, and run nothing.
    """
    from jaxattn.lab import books
    from jaxattn.lab.books import reading
    from jaxattn.lab.books.run import Asked
    from jaxattn.lab.engine import devices
    from jaxattn.lab.engine.progress import Reporter

    memory, items = read_size(max_memory), books.read(book)
    folder = out or Path("results") / items.name
    of_this_machine(folder)
    keep_compiled()
    devices.use_all_cores()
    asked = Asked(tuple(only), scale, seeds, data_dir)
    if check:
        print_table(items.shared.title, books.look(items, asked, out=folder))
        return 0
    if seeds and seeds > 1 and items.promises and (few := reading.too_few(seeds)):
        say(f"jaxattn: {few}", err=True)
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(quiet) as reporter, stoppable(command):
        written = books.reproduce(
            items, asked, out=folder, command=command, reporter=reporter, max_memory=memory
        )
    print_table(items.shared.title, written.summary[["item", "verdict", "run time"]])
    for path in written.paths:
        say(path)
    for name, reason in sorted(written.failed.items()):
        say(f"jaxattn: failed: {name}: {reason}", err=True)
    return written.status
