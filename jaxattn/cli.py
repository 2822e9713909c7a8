"""The command line: parse, call, print."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, UseAppendAction, arg

from jaxattn.errors import InputError, RunError

Sweep = Annotated[Positional[Path], arg(metavar="SWEEP", help="Sweep file (TOML).")]
Folder = Annotated[Positional[Path], arg(metavar="DIR", help="Results folder of a finished run.")]
Set = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(
        name="set", metavar="KEY=VALUE", help="Override a key of the sweep file; may be given several times."
    ),
]
Quiet = Annotated[bool, arg(help="Print results and errors only.")]
Out = Annotated[Path | None, arg(metavar="DIR", help="Results folder; results/<sweep name> by default.")]
Seeds = Annotated[
    str | None,
    arg(metavar="N|A:B|A,B", help="Seeds, instead of the sweep file's: how many, a range, or a list."),
]
MaxMemory = Annotated[
    str | None,
    arg(metavar="SIZE", help="Memory that a device may use, for example 8GiB; chosen for it by default."),
]
Axis = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(name="axis", metavar="KEY=[...]", help="Sweep another key; may be given several times."),
]


def run(
    sweep: Sweep,
    /,
    overrides: Set = (),
    axes: Axis = (),
    out: Out = None,
    seeds: Seeds = None,
    shard: Annotated[
        str, arg(metavar="I/N", help="Run the I-th of N shares, in a folder of its own.")
    ] = "1/1",
    max_memory: MaxMemory = None,
    on_failure: Literal["stop", "continue", "retry"] = "continue",
    profile: bool = False,
    log: Annotated[tuple[Literal["tensorboard", "wandb"], ...], arg(metavar="tensorboard|wandb")] = (),
    distributed: Annotated[str | None, arg(metavar="auto|HOST:PORT,N,I")] = None,
    quiet: Quiet = False,
) -> int:
    """Run a sweep file, or continue it where it was stopped; then print a table and draw the report.

    Example: jaxattn run sweeps/quickstart.toml --seeds 4 --set model.dim=512 --out /tmp/quick

    Args:
        on_failure: When a unit ends in NaN or the machine fails it: stop the sweep, continue with the next
            unit, or retry it twice from its start before that.
        profile: Write a JAX trace of the run to DIR/profile, for TensorBoard or Perfetto.
        log: Write measurements for TensorBoard or Weights & Biases (offline) too.
        distributed: This is one of N processes, on as many hosts as you like; each runs its share. The
            cluster tells with auto, else give where process 0 listens, N, and which one this is from 0.
    """
    from jaxattn.study import devices, hosts
    from jaxattn.study import run as study
    from jaxattn.study.execute import Interrupted
    from jaxattn.study.progress import Reporter

    checked = _load(sweep, overrides, axes, seeds)
    _keep_compiled()
    devices.use_all_cores()
    which, memory = _shard(shard), _bytes(max_memory)
    if distributed is not None:
        which = hosts.join(distributed)
    directory = out or Path("results") / checked.name
    if which != (1, 1):
        directory /= f"shard-{which[0]}-of-{which[1]}"
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(quiet) as reporter:
        try:
            outcome = study.run_sweep(
                checked,
                directory,
                command=command,
                reporter=reporter,
                shard=which,
                max_memory=memory,
                on_failure=on_failure,
                profile=profile,
                log=log,
            )
        except Interrupted:
            print(f"stopped; nothing is lost, continue with: {command}", file=sys.stderr)
            return 130
        if outcome.already_finished:
            reporter.note(f"{directory}: already finished, nothing to run")
    for error in outcome.errors:
        print(f"jaxattn: failed: {error['unit']}: {error['reason']}", file=sys.stderr)
    if len(outcome.errors) == outcome.units:
        return 1
    page = directory / "report.html"
    if outcome.already_finished and page.exists():
        _print_summary(directory)
        print(page)
        return 1 if outcome.failures else 0
    from jaxattn.analysis import report as pages

    written = pages.write(directory)
    if distributed is not None:
        hosts.wait()
    if which[0] == 1 and distributed is not None:
        _print_summary(*sorted(directory.parent.glob(f"shard-*-of-{which[1]}")))
    else:
        _print_summary(directory)
    _print_written(written)
    for failure in outcome.failures:
        print(
            "jaxattn: failed: {reason} in cell {cell}, seed {seed}, phase {phase}, step {step}".format(
                **failure
            ),
            file=sys.stderr,
        )
    return 1 if outcome.failures or outcome.errors else 0


def launch(
    sweep: Sweep,
    /,
    shards: int,
    executor: Literal["slurm", "local"] = "slurm",
    minutes: int = 720,
    options: Annotated[UseAppendAction[tuple[str, ...]], arg(name="option", metavar="KEY=VALUE")] = (),
    overrides: Set = (),
    axes: Axis = (),
    out: Out = None,
    seeds: Seeds = None,
    wait: bool = False,
) -> int:
    """Run a sweep as N jobs of a cluster queue, or of this machine, side by side.

    Example: jaxattn launch sweeps/one_step_law.toml --shards 8 --option slurm_partition=gpu

    Args:
        shards: Number of jobs.
        executor: The queue; local runs all jobs on this machine.
        minutes: Time limit of a job; one that is stopped by it continues where it was.
        options: Option of the queue by submitit's name; may be given several times.
        wait: Wait until all jobs have ended, then print their common table.
    """
    from jaxattn.study import launch as jobs
    from jaxattn.study.tree import parse

    directory = out or Path("results") / _load(sweep, overrides, axes, seeds).name
    if shards < 1:
        raise InputError(f"--shards {shards}: give at least 1")
    words = ["run", str(sweep.resolve()), "--out", str(directory.resolve()), "--quiet"]
    words += [word for text in overrides for word in ("--set", text)]
    words += [word for text in axes for word in ("--axis", text)]
    words += ["--seeds", seeds] if seeds else []
    commands = [[*words, "--shard", f"{number}/{shards}"] for number in range(1, shards + 1)]
    given = {key: parse(value) for key, value in map(_pair, options)}
    submitted = jobs.submit(commands, directory / "jobs", executor, minutes, given)
    folders = [directory / f"shard-{number}-of-{shards}" for number in range(1, shards + 1)]
    folders = [directory] if shards == 1 else folders
    for job, folder in zip(submitted, folders, strict=True):
        print(f"job {job.job_id}: {folder}")
    if not wait:
        print(f"watch with: jaxattn status {folders[0]}; then: jaxattn aggregate {directory}/shard-*")
        return 0
    failed = [job.job_id for job in submitted if job.result() != 0]
    if failed:
        raise RunError(f"launch: jobs {', '.join(failed)} failed; their logs are in {directory / 'jobs'}")
    _print_summary(*folders)
    return 0


def data(sweep: Sweep, /, overrides: Set = (), number: int = 15, quiet: Quiet = False) -> int:
    """Show the corpus of a sweep file: sizes, label balance, lengths, the most important tokens.

    Example: jaxattn data sweeps/imdb_one_layer.toml --set data.data_dir=~/tensorflow_datasets

    Args:
        number: How many tokens to list on each side.
    """
    from jaxattn.study import describe
    from jaxattn.study.progress import Reporter

    checked = _load(sweep, overrides)
    with Reporter(quiet) as reporter:
        shown = describe.corpus(checked, number, reporter.loading)
    for title, table in shown:
        _print_table(title, table)
    return 0


def aggregate(
    directories: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")],
    /,
    where: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = (),
    metrics: Annotated[tuple[str, ...], arg(metavar="METRIC ...")] = (),
    phases: Annotated[tuple[str, ...], arg(metavar="PHASE ...")] = (),
    by: Annotated[tuple[str, ...], arg(metavar="KEY ...")] = (),
    pair: Annotated[str | None, arg(metavar="KEY=A,B")] = None,
    seed: int = 0,
    resamples: int = 2000,
    out: Annotated[Path | None, arg(metavar="FILE")] = None,
) -> int:
    """Aggregate records over seeds: mean, median, interquartile mean and 95 % bootstrap intervals.

    Example: jaxattn aggregate results/shard1 results/shard2 --metrics loss --by model.dim --out loss.tex

    Args:
        directories: Results folders of finished runs: shards, more seeds, or different sweeps.
        where: Keep cells whose config has this value; may be given several times.
        metrics: Keep these metrics only.
        phases: Keep these phases only.
        by: Pool the cells that agree in these keys of the config.
        pair: Differences B - A between two values of a swept key, seed by seed.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.
        out: Write every (cell, phase, step, metric) to this CSV or Parquet file, or the printed table to
            this LaTeX or Markdown file.
    """
    from jaxattn.analysis import combine, results, statistics, tables

    if not directories:
        raise InputError("aggregate: give at least one results folder")
    loaded = combine.combine([results.load(directory) for directory in directories])
    loaded = combine.choose(loaded, where=dict(map(_pair, where)), metrics=metrics, phases=phases)
    if pair is not None:
        key, values = _pair(pair)
        first, comma, second = str(values).partition(",")
        if not comma:
            raise InputError(f"--pair {pair}: expected KEY=A,B, for example --pair model.dim=64,512")
        loaded = combine.paired(loaded, key, first.strip(), second.strip())
    if by:
        loaded = combine.group(loaded, by)
    summary = statistics.summary_table(loaded, seed=seed, resamples=resamples)
    _print_table("Last step of each phase", summary)
    if out is not None:
        whole = out.suffix in (".csv", ".parquet")
        tables.write(statistics.aggregate(loaded, seed=seed, resamples=resamples) if whole else summary, out)
        print(out)
    return 0


def _shard(text: str) -> tuple[int, int]:
    which, _, shards = text.partition("/")
    if not (which.isdecimal() and shards.isdecimal()):
        raise InputError(f"--shard {text}: expected I/N, for example --shard 1/4")
    return int(which), int(shards)


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B", text.strip(), re.IGNORECASE)
    if not found:
        raise InputError(f"--max-memory {text}: expected a size, for example 8GiB or 500MiB")
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2].upper()) + 1))


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InputError(f"{text}: expected KEY=VALUE, for example model.dim=512")
    return key.strip(), value.strip()


def report(directory: Folder, /) -> int:
    """Draw the figures (PNG and PDF) of a run and write one self-contained HTML page.

    Example: jaxattn report results/quickstart
    """
    from jaxattn.analysis import report as pages

    written = pages.write(directory)
    _print_written(written)
    return 1 if written.problems else 0


def main() -> None:
    """Run the command line and exit with its status: 0 done, 1 failed while running, 2 wrong input."""
    commands: dict[str, Any] = {
        "run": run,
        "plan": plan,
        "launch": launch,
        "claims": claims,
        "reproduce": reproduce,
        "data": data,
        "diagnose": diagnose,
        "aggregate": aggregate,
        "report": report,
        "status": status,
        "schema": schema,
        "doctor": doctor,
    }
    code: int
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="jaxattn",
            description="Experiments on attention with trained embeddings.",
            use_underscores=False,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        sys.stdout.flush()
    except InputError as error:
        code = _complain(error, 2)
    except RunError as error:
        code = _complain(error, 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _compiled_folder() -> Path:
    from jaxattn.data import cache

    return Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache.folder() / "compiled")


def _keep_compiled() -> None:
    """Keep compiled programs between runs; cells that differ in numbers alone share them within a run."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(_compiled_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _load(sweep: Path, overrides: tuple[str, ...], axes: tuple[str, ...] = (), seeds: str | None = None):
    from jaxattn.analysis import figures
    from jaxattn.study import sweepfile

    if seeds is not None:
        text = f'"{seeds}"' if ":" in seeds else f"[{seeds}]" if "," in seeds else seeds
        overrides = (*overrides, f"seeds={text}")
    checked = sweepfile.load(sweep, overrides, axes)
    cells = sweepfile.cells(checked)
    wanted = [dict(figure) for figure in sweepfile.plain(checked)["figures"]]
    phases = list(dict.fromkeys(phase.name for cell in cells for phase in cell.config.phases))
    swept = list(dict.fromkeys(key for cell in cells for key in cell.settings))
    try:
        figures.check(wanted, phases=phases, axes=swept)
    except InputError as error:
        raise InputError(f"{sweep}: {error}") from None
    return checked


def claims(
    seeds: int = 64,
    only: Annotated[tuple[str, ...], arg(metavar="CLAIM ...")] = (),
    data_dir: Annotated[Path | None, arg(metavar="DIR")] = None,
    out: Annotated[Path, arg(metavar="DIR")] = Path("results/claims"),
    quiet: Quiet = False,
) -> int:
    """Measure every claim of the theory, and where it promises nothing; write claims.csv and claims.md.

    Exits with 1 if a claim that should hold does not.
    Example: jaxattn claims --seeds 64 --data-dir ~/tensorflow_datasets

    Args:
        seeds: Number of seeds.
        only: Measure these claims only, for example T4.3 MC.
        data_dir: Folder of tensorflow-datasets that holds imdb_reviews, to measure on real reviews too.
        out: Results folder.
    """
    from jaxattn.claims import scoreboard
    from jaxattn.data.readers import Tfds
    from jaxattn.study.progress import Reporter

    _keep_compiled()
    source = Tfds(dataset="imdb_reviews", data_dir=str(data_dir), min_count=45) if data_dir else None
    with Reporter(quiet) as reporter:
        board = scoreboard.run(seeds=seeds, only=only, source=source, progress=reporter.loading)
    table = board.table()
    for promised, title in (
        (True, "What the theory promises"),
        (False, "Where the theory promises nothing"),
    ):
        part = table[[row.claim.promised == promised for row in board.rows]]
        if len(part):
            _print_table(title, part)
    for path in board.write(out):
        print(path)
    return board.status


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
        query: p (d,).
        head: v (d,), or (d, K) for K classes.
        corpus: Sweep file, or a file with its [data] table alone.
        vocabulary: The tokens of E's rows, one per line; by default those of the corpus, in its order.
        out: Folder of diagnosis.md, tokens.csv and the figure.
        min_count: Tokens that occur less often are in no statistic.
        important: Tokens with a posterior difference of this size are important.
        seed: Seed of a synthetic corpus and of the random models.
        number: How many tokens to list.
    """
    from jaxattn import analysis
    from jaxattn.analysis import diagnosis_files
    from jaxattn.data.arrays import read_array
    from jaxattn.study.progress import Reporter

    E, p, v = (read_array(place) for place in (embedding, query, head))
    with Reporter(quiet) as reporter:
        labelled, tokens = analysis.read_corpus(
            corpus, overrides=overrides, vocabulary=vocabulary, seed=seed, progress=reporter.loading
        )
    found = analysis.diagnose(
        E, p, v, labelled, tokens=tokens, min_count=min_count, important=important, seed=seed
    )
    for title, table in diagnosis_files.tables(found, number):
        _print_table(title, table)
    for verdict in found.verdicts:
        print(verdict)
    for path in diagnosis_files.write(found, out, number):
        print(path)
    return 0


def reproduce(
    only: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = (),
    scale: Literal["laptop", "full"] = "laptop",
    data_dir: Annotated[Path | None, arg(metavar="DIR")] = None,
    out: Annotated[Path, arg(metavar="DIR")] = Path("results/paper"),
    quiet: Quiet = False,
) -> int:
    """Run every figure, table and number of the paper again, and write a page with ours beside the published.

    Example: jaxattn reproduce --only fig2_synthetic fig3_imdb --data-dir ../data

    Args:
        only: Run these items only; the page shows the others as far as they are done.
        scale: Published sizes (full), or smaller ones that two cores run in half an hour.
        data_dir: Folder that holds tfds/imdb_reviews and yelp_stars.parquet; without it their items are not
            run.
        out: Results folder; runs that are finished there are not run again.
    """
    from jaxattn.paper.reproduce import reproduce as again
    from jaxattn.study import devices
    from jaxattn.study.execute import Interrupted
    from jaxattn.study.progress import Reporter

    _keep_compiled()
    devices.use_all_cores()
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(quiet) as reporter:
        try:
            written = again(
                out=out, command=command, reporter=reporter, only=only, scale=scale, data_dir=data_dir
            )
        except Interrupted:
            print(f"stopped; nothing is lost, continue with: {command}", file=sys.stderr)
            return 130
    _print_table("The paper, run again", written.summary[["item", "verdict", "run time"]])
    for path in written.paths:
        print(path)
    for name in sorted(written.failed):
        print(f"jaxattn: failed: {name}", file=sys.stderr)
    return int(bool(written.failed))


def plan(
    sweep: Sweep,
    /,
    overrides: Set = (),
    axes: Axis = (),
    out: Out = None,
    seeds: Seeds = None,
    max_memory: MaxMemory = None,
) -> int:
    """Show what a sweep file would run: cells, groups that share programs, memory, what is done already.

    Example: jaxattn plan sweeps/margin_convergence.toml --seeds 1000
    """
    from jaxattn.study import devices
    from jaxattn.study.overview import overview

    checked = _load(sweep, overrides, axes, seeds)
    _keep_compiled()
    devices.use_all_cores()
    directory = out or Path("results") / checked.name
    tables, whole = overview(checked, directory, _bytes(max_memory))
    _print_table("Cells", tables[0])
    _print_table("Groups: every one is one compiled program for each phase", tables[1])
    print(whole)
    return 0


def status(directory: Annotated[Positional[Path], arg(metavar="DIR")], /) -> int:
    """Show how far a run is, cell by cell, also while it is running in another terminal.

    Example: jaxattn status results/quickstart

    Args:
        directory: Results folder, finished or not.
    """
    from jaxattn.study.status import status as look

    table, whole = look(directory)
    _print_table(whole, table)
    return 0


def doctor() -> int:
    """Check this machine: devices, versions, float64, folders, disk, known troubles; exit with 1 if broken.

    Example: jaxattn doctor
    """
    from jaxattn.study.doctor import examine

    findings = examine(_compiled_folder())
    _print_table("Doctor", pd.DataFrame(findings))
    return int(any(finding.state == "broken" for finding in findings))


def schema() -> int:
    """Print the JSON schema of sweep files, for editors.

    Example: jaxattn schema > sweep.schema.json
    """
    import json

    from jaxattn.study import sweepfile

    print(json.dumps(sweepfile.schema(), indent=2, ensure_ascii=False))
    return 0


def _complain(error: Exception, status: int) -> int:
    print(f"jaxattn: {error}", file=sys.stderr)
    return status


def _print_written(written: Any) -> None:
    for path in written.paths:
        print(path)
    for problem in written.problems:
        print(f"jaxattn: {problem}", file=sys.stderr)


def _print_summary(*directories: Path) -> None:
    from jaxattn.analysis import combine, results, statistics

    loaded = combine.combine([results.load(directory) for directory in directories])
    _print_table("Last step of each phase", statistics.summary_table(loaded))


def _print_table(title: str, frame: pd.DataFrame) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in frame.columns:
        table.add_column(str(name), justify="right" if pd.api.types.is_numeric_dtype(frame[name]) else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
