"""Commands that check and run sweep files, on this machine or as jobs on a cluster."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction

from jaxattn.core.errors import InputError, counted, first_line
from jaxattn.lab.cli.console import (
    print_aligned,
    print_failures,
    print_json,
    print_line,
    print_summary,
    print_table,
    print_title,
    print_wrapped,
    print_written,
    rows_of,
    stoppable,
)
from jaxattn.lab.cli.options import (
    FailureOptions,
    Folders,
    Json,
    MachineOptions,
    MaxMemory,
    Out,
    OutputOptions,
    Quiet,
    ResultsDir,
    Set,
    StudyOptions,
    Sweep,
    keep_compiled,
    load_sweep,
    option,
    read_folders,
    read_pair,
    read_shard,
    read_size,
)
from jaxattn.lab.storage import copies
from jaxattn.lab.storage.folder import results_folder

Cluster = Literal["slurm", "local"]


def run(
    sweep: Sweep,
    /,
    study_options: Annotated[StudyOptions, option(name="study")],
    machine: MachineOptions,
    failure: FailureOptions,
    output: OutputOptions,
) -> int:
    """Run or resume a sweep file, and write its report.

    The same command resumes a stopped run from its last checkpoint; a finished run is not repeated. The
    output is a summary, a table of metrics at the end of each phase, and the path of the report.

    Example: jaxattn run sweeps/quickstart.toml --seeds 4 --set model.dim=512
    """
    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.engine.reported_run import run_with_report

    study = load_sweep(sweep, study_options)
    keep_compiled()
    which, memory = read_shard(machine.shard), read_size(machine.max_memory)
    directory = study.folder(machine.out)
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(output.quiet) as reporter, stoppable(command):
        outcome, report = run_with_report(
            study,
            directory,
            reporter=reporter,
            command=command,
            shard=which,
            max_memory=memory,
            on_failure=failure.on_failure,
            reuse_code=failure.reuse_code,
            profile=output.profile,
            log=output.log,
        )
        if outcome.already_finished:
            reporter.note(f"{results_folder(directory).name}: already finished, nothing to run")
    return _show(outcome, report, output.every)


def _show(outcome: Any, report: Any, every: bool) -> int:
    from jaxattn.lab.loaded import load

    for error in outcome.errors:
        print_line(f"jaxattn: failed: {error['batch']}: {error['reason']}", err=True)
    if outcome.errors and len(outcome.errors) == outcome.batches:
        return 1
    print_summary(load(outcome.directory), every=every)
    if address := copies.address_of(outcome.directory):
        print_line(f"{address}: all results; the report and its figures are also on this machine:")
    if report is None:
        print_line(outcome.directory / "report.html")
    else:
        print_written(report, every=every)
    print_failures(outcome.failures, address or str(outcome.directory))
    return 1 if outcome.failures or outcome.errors else 0


# Descriptions of the columns in a plan's tables. The column `runs` is printed as "vmapped runs".
LEGEND = {
    "group": "cells that share one compiled program for each phase",
    "done": "finished seeds of the cell",
    "cells": "number of cells in the group",
    "coordinates": "length of the stored embedding vectors, less than d if they span a smaller space",
    "vmapped": "what differs between the runs of a group, which jax.vmap batches",
    "vmapped runs": "missing runs of the group, one for each seed of each cell",
    "together": "vmapped runs computed at the same time, in one batch",
    "batches": "parts into which the vmapped runs are divided",
    "memory": "peak memory of a device",
    "time": "estimated time for the batches that are left",
}


def plan(
    sweep: Sweep,
    /,
    study_options: Annotated[StudyOptions, option(name="study")],
    out: Out = None,
    max_memory: MaxMemory = None,
    quick: bool = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show what a sweep file would run, and how long it would take.

    The output lists the cells, the groups of cells that share compiled programs, their memory and time, the
    metrics that each phase records, and how much of the study is finished.

    Example: jaxattn plan sweeps/margin_convergence.toml --seeds 1000

    Args:
        quick: Skip the estimates of memory and time, which require compiling and briefly running each group.
    """
    study = load_sweep(sweep, study_options)
    from jaxattn.lab.engine.devices import use_all_cores
    from jaxattn.lab.engine.memory import check_address_space
    from jaxattn.lab.engine.plan import recorded_lines
    from jaxattn.lab.engine.progress import Reporter

    keep_compiled()
    use_all_cores()
    with Reporter(quiet) as reporter:
        check_address_space(reporter.note)
        found = study.plan(out, max_memory=read_size(max_memory), quick=quick, progress=reporter.update)
    recording = found.metrics or recorded_lines(study)
    if as_json:
        tables = {"cells": rows_of(found.cells), "groups": rows_of(found.groups)}
        print_json({**tables, "metrics": list(recording), "summary": found.sentence})
        return 0
    groups = found.groups.rename(columns={"runs": "vmapped runs"})
    print_table("Cells", found.cells)
    print_table("Groups", groups)
    print_aligned((name, words) for name, words in LEGEND.items() if name in {*found.cells, *groups})
    print_line()
    print_title("Metrics")
    for line in recording:
        print_wrapped(line, indent=2)
    print_line()
    print_wrapped(found.sentence)
    return 0


def launch(
    sweep: Sweep,
    /,
    study_options: Annotated[StudyOptions, option(name="study")],
    jobs: int,
    cluster: Cluster = "slurm",
    minutes: int = 720,
    options: Annotated[UseAppendAction[tuple[str, ...]], option(name="option", metavar="KEY=VALUE")] = (),
    out: Out = None,
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
) -> int:
    """Run a sweep file in jobs on a cluster, and write its report.

    The command shows the progress and ends when all batches are finished. If it is stopped, it cancels its
    jobs, and the same command resumes the study. Each batch is a job.

    Example: jaxattn launch sweeps/one_step_law.toml --jobs 8

    Args:
        jobs: Number of batches into which the missing runs of each compile group are divided, or more if
            they do not fit in memory.
        cluster: Queue to submit to; local runs all jobs on this machine.
        minutes: Time limit per job; a job that reaches it is submitted again and resumes.
        options: Option for the queue, by its submitit name, for example gpus_per_node=1; repeatable.
    """
    import jax

    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.engine.reported_run import run_with_report
    from jaxattn.lab.study.tree import parse

    # Jobs on this machine need its GPUs.
    jax.config.update("jax_platforms", "cpu")
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: must be at least 1")
    study = load_sweep(sweep, study_options)
    directory, memory = study.folder(out), read_size(max_memory)
    scripts = Path("results") / study.name if results_folder(directory).is_remote else directory
    pairs = [read_pair("--option", text, "gpus_per_node=1") for text in options]
    given = {key: parse(value) for key, value in pairs}
    queue = _queue(scripts.with_name(f"{scripts.name}-jobs"), cluster, minutes, given)
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(quiet) as reporter, stoppable(command):
        outcome, report = run_with_report(
            study,
            directory,
            reporter=reporter,
            command=command,
            max_memory=memory,
            executor=queue,
            workers=jobs,
        )
    return _show(outcome, report, every=False)


def _queue(folder: Path, cluster: Cluster, minutes: int, options: dict[str, Any]) -> Any:
    """Return a submitit executor. Scripts and logs are written to `folder`.

    Raises:
        InputError: submitit is not installed, the queue does not exist, or an option is unknown.
    """
    if "timeout_min" in options:
        raise InputError(f"--option timeout_min={options['timeout_min']}: not supported; use --minutes")
    try:
        import submitit
    except ImportError:
        raise InputError("launch: submitit is not installed; run pip install 'jaxattn[cluster]'") from None
    try:
        queue = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        queue.update_parameters(**{"name": "jaxattn", "timeout_min": minutes} | options)
    except (RuntimeError, NameError, ValueError, TypeError, OSError) as error:
        here = "; use --cluster local to run them on this machine" if cluster != "local" else ""
        reason = first_line(error)
        raise InputError(f"launch: the jobs cannot be submitted to {cluster}: {reason}{here}") from None
    return queue


def status(directories: Folders, /, verify: bool = False, as_json: Json = False) -> int:
    """Show the progress of a run, cell by cell.

    The run may be finished, stopped, or still running in another terminal or on another machine.

    Example: jaxattn status results/quickstart

    Args:
        verify: First compare all files with their checksums. If any are damaged, print their names and exit
            with status 1.
    """
    from jaxattn.lab.cli.status import run_status as look

    folders = read_folders(directories)
    if verify and _damage(folders):
        return 1
    printed: list[dict[str, Any]] = []
    for directory in folders:
        folder = results_folder(directory)
        table, complete = look(directory)
        printed.append({"folder": folder.name, "summary": complete, "cells": rows_of(table)})
        if not as_json:
            print_table(f"{folder.name}: {complete}" if len(folders) > 1 else complete, table)
    if as_json:
        print_json(printed)
        return 0
    if verify:
        print_line("all files match their checksums")
    return 0


def _damage(folders: list[Path]) -> bool:
    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.results import read

    with Reporter() as reporter:
        damaged = []
        for folder in map(results_folder, folders):
            if folder.is_remote:
                reporter.update(f"fetching {folder.name}")
            damaged += read.verify(folder.fetch("tables", "log", "report", "checkpoints"), reporter.update)
    for line in damaged:
        print_line(f"jaxattn: {copies.renamed(line)}", err=True)
    return bool(damaged)


def prune(directory: ResultsDir, /, delete: bool = False) -> int:
    """Show or delete batches of runs that the study does not ask for.

    These are runs of earlier versions of the study, and of earlier code. They are kept until they are
    deleted.

    Example: jaxattn prune results/quickstart --delete

    Args:
        delete: Delete these batches.
    """
    from jaxattn.lab.storage import memo

    found = list(memo.unwanted(directory))
    for name, record in found:
        runs = f"{counted(len(record.runs), 'run')} of {record.origin.started}" if record else "damaged"
        print_line(f"{directory / memo.RUNS / name}: {runs}")
        if delete:
            memo.delete_batch(directory, name)
    words = counted(len(found), "batch")
    hint = "" if delete or not found else "; delete them with --delete"
    print_line(f"{words} {'deleted' if delete else 'not wanted'}{hint}")
    return 0


def data(sweep: Sweep, /, overrides: Set = (), number: int = 15, quiet: Quiet = False) -> int:
    """Show the data of a sweep file: sizes, labels and important tokens.

    The output lists the numbers of sequences and tokens, the label balance, sequence lengths, a recommended
    step size for one step on E, and the tokens of highest and lowest importance. The sweep file needs only a
    name and a [data] table; the model and phases may be omitted.

    Example: jaxattn data sweeps/quickstart.toml

    Args:
        number: Number of tokens of each kind to list.
    """
    from jaxattn.lab.cli import corpus
    from jaxattn.lab.engine.progress import Reporter

    checked = corpus.read_data_sweep(sweep, overrides)
    with Reporter(quiet) as reporter:
        shown = corpus.describe_data(checked, number, reporter.loading)
    for title, table in shown:
        print_table(title, table)
    return 0


def schema() -> int:
    """Print the JSON schema of sweep files.

    Editors use it to complete and check keys in sweep files.

    Example: jaxattn schema > sweep.schema.json
    """
    from jaxattn.lab.study.schema import sweep_schema

    print_json(sweep_schema(), indent=2)
    return 0
