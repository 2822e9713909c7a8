"""Commands that look at sweep files and run them, here or as jobs of a cluster queue."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from jaxattn.core.errors import InputError, RunError, at, counted
from jaxattn.lab.cli.console import (
    print_closing,
    print_failures,
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
    Axis,
    FailureOptions,
    Folders,
    Json,
    MachineOptions,
    MaxMemory,
    Out,
    OutputOptions,
    Quiet,
    Seeds,
    Set,
    StudyOptions,
    Sweep,
    keep_compiled,
    load_sweep,
    read_folders,
    read_pair,
    read_shard,
    read_size,
)
from jaxattn.lab.storage import bucket
from jaxattn.lab.storage.objects import is_address, shown

Executor = Literal["slurm", "local"]


def run(
    sweep: Sweep,
    /,
    study_options: Annotated[StudyOptions, arg(name="study")],
    machine: MachineOptions,
    failure: FailureOptions,
    output: OutputOptions,
) -> int:
    """Run a sweep file, or continue it where it was stopped; then draw the report and say what was learned.

    Example: jaxattn run sweeps/quickstart.toml --seeds 4 --set model.dim=512 --out /tmp/quick
    """
    from jaxattn.lab.api import run as run_study
    from jaxattn.lab.engine.distributed import read_process, shard_folder, wait
    from jaxattn.lab.engine.progress import Reporter

    study = load_sweep(sweep, study_options.overrides, study_options.axes, study_options.seeds)
    keep_compiled()
    which, memory = read_shard(machine.shard), read_size(machine.max_memory)
    if machine.distributed is not None:
        which = read_process(machine.distributed)
    whole = study.folder(machine.out)
    directory = shard_folder(whole, which)
    command = shlex.join(["jaxattn", *sys.argv[1:]])
    with Reporter(output.quiet) as reporter, stoppable(command):
        outcome, report = run_study(
            study,
            directory,
            reporter=reporter,
            command=command,
            shard=which,
            max_memory=memory,
            on_failure=failure.on_failure,
            accept_code=failure.accept_code,
            profile=output.profile,
            log=output.log,
        )
        if outcome.already_finished:
            reporter.note(f"{shown(directory)}: already finished, nothing to run{_further(outcome, study)}")
        folders = [outcome.directory]
        if machine.distributed is not None:
            shards = wait(study, whole, which[1], machine.distributed_timeout, reporter.note)
            folders = shards if which[0] == 1 else folders
    return _show(outcome, report, folders, output.every)


def _further(outcome: Any, study: Any) -> str:
    """Say which seeds a folder holds if there are more than those that were asked for."""
    from jaxattn.lab.results.labels import listed
    from jaxattn.lab.storage import manifest

    held = manifest.read(outcome.directory)["seeds"]
    if set(held) <= set(study.seeds):
        return ""
    return f"; the folder holds {counted(len(held), 'seed')}, {listed(held):.60}, and all are shown"


def _show(outcome: Any, report: Any, folders: list[Path], every: bool) -> int:
    """Print what a run left, over some folders, and return the exit status."""
    for error in outcome.errors:
        say(f"jaxattn: failed: {error['batch']}: {error['reason']}", err=True)
    if len(outcome.errors) == outcome.batches:
        return 1
    together = _together(folders)
    print_summary(together, every=every)
    if address := bucket.address_of(outcome.directory):
        say(f"{address}: all of it; copies of the page and its figures are here:")
    if report is None:
        say(outcome.directory / "report.html")
    else:
        print_written(report)
    print_closing(together)
    print_failures(outcome.failures, address or str(outcome.directory))
    return 1 if outcome.failures or outcome.errors else 0


def _together(folders: list[Path]) -> Any:
    from jaxattn.lab.results import combine, load

    return combine.combine([load(folder) for folder in folders])


def plan(
    sweep: Sweep,
    /,
    overrides: Set = (),
    axes: Axis = (),
    out: Out = None,
    seeds: Seeds = None,
    max_memory: MaxMemory = None,
    quick: bool = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show what a sweep file would run: cells, groups that share programs, memory, what is done already.

    Example: jaxattn plan sweeps/margin_convergence.toml --seeds 1000

    Args:
        quick: Leave out memory and time, for which every group is compiled and tried.
    """
    study = load_sweep(sweep, overrides, axes, seeds)
    from jaxattn.lab.engine.devices import use_all_cores
    from jaxattn.lab.engine.memory import check_address_space
    from jaxattn.lab.engine.plan import recorded
    from jaxattn.lab.engine.progress import Reporter

    keep_compiled()
    use_all_cores()
    with Reporter(quiet) as reporter:
        check_address_space(reporter.note)
        found = study.plan(out, max_memory=read_size(max_memory), quick=quick, progress=reporter.update)
    recording = found.metrics or recorded(study)
    if as_json:
        tables = {"cells": rows_of(found.cells), "groups": rows_of(found.groups)}
        print_json({**tables, "metrics": list(recording), "summary": found.sentence})
        return 0
    print_table("Cells", found.cells)
    print_table("Compile groups: each is one compiled program for each phase", found.groups)
    for line in recording:
        say(line)
    say(found.sentence)
    return 0


def launch(
    sweep: Sweep,
    /,
    shards: int,
    executor: Executor = "slurm",
    minutes: int = 720,
    options: Annotated[UseAppendAction[tuple[str, ...]], arg(name="option", metavar="KEY=VALUE")] = (),
    overrides: Set = (),
    axes: Axis = (),
    out: Out = None,
    seeds: Seeds = None,
    wait: bool = False,
) -> int:
    """Run a sweep as N jobs of a cluster queue, or of this machine, side by side.

    Example: jaxattn launch sweeps/one_step_law.toml --shards 8 --option gpus_per_node=1

    Args:
        shards: Number of jobs.
        executor: The queue; local runs all jobs on this machine.
        minutes: Time limit of a job; one that is stopped by it continues where it was.
        options: Option of the queue by submitit's name; may be given several times.
        wait: Wait until all jobs have ended, then print their common table.
    """
    from jaxattn.lab.engine.batches import check_shards
    from jaxattn.lab.engine.distributed import shard_folder
    from jaxattn.lab.study.tree import parse

    study = load_sweep(sweep, overrides, axes, seeds)
    directory = study.folder(out)
    if shards < 1:
        raise InputError(f"--shards {shards}: give at least 1")
    with at("--shards"):
        check_shards(study, shards)
    target, scripts = str(directory.resolve()), directory / "jobs"
    if is_address(directory):
        target, scripts = shown(directory), Path("results") / study.name / "jobs"
    words = ["run", str(sweep.resolve()), "--out", target, "--quiet"]
    words += [word for text in overrides for word in ("--set", text)]
    words += [word for text in axes for word in ("--axis", text)]
    words += ["--seeds", seeds] if seeds else []
    commands = [[*words, "--shard", f"{number}/{shards}"] for number in range(1, shards + 1)]
    pairs = [read_pair("--option", text, "gpus_per_node=1") for text in options]
    given = {key: parse(value) for key, value in pairs}
    submitted = submit(commands, scripts, executor, minutes, given)
    folders = [shard_folder(directory, (number, shards)) for number in range(1, shards + 1)]
    for job, folder in zip(submitted, folders, strict=True):
        say(f"job {job.job_id}: {shown(folder)}")
    if not wait:
        say(f"watch with: jaxattn status {shown(directory)}; then: jaxattn aggregate {shown(directory)}")
        return 0
    failed = [job.job_id for job in submitted if job.result() != 0]
    if failed:
        raise RunError(f"launch: jobs {', '.join(failed)} failed; their logs are in {scripts}")
    together = _together(folders)
    print_summary(together, rest=f"jaxattn aggregate {shown(directory)} --all")
    print_closing(together)
    return 0


class Shard:
    """One job: a command that continues where it was stopped, so a job that is preempted is sent again."""

    def __init__(self, command: list[str]) -> None:
        """Run `jaxattn` with these words."""
        self.command = command

    def __call__(self) -> int:
        """Run the command; return its status."""
        import subprocess

        return subprocess.run([sys.executable, "-m", "jaxattn", *self.command], check=False).returncode

    def checkpoint(self) -> Any:
        """Say how to go on after a preemption, as submitit asks."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    commands: list[list[str]], folder: Path, executor: Executor, minutes: int, options: dict[str, Any]
) -> list[Any]:
    """Submit commands as an array of jobs.

    Args:
        commands: the words after `jaxattn` of every job.
        folder: where scripts and logs of the jobs go.
        executor: the queue.
        minutes: time limit of a job.
        options: options of the queue, by submitit's names, for example slurm_partition.

    Returns:
        Submitit's jobs.

    Raises:
        InputError: submitit is not installed, no such queue here, or an option it does not know.
    """
    if "timeout_min" in options:
        raise InputError(f"--option timeout_min={options['timeout_min']}: give the time limit as --minutes")
    try:
        import submitit
    except ImportError:
        raise InputError(
            "launch: submitit is missing; install it with pip install 'jaxattn[cluster]'"
        ) from None
    try:
        queue = submitit.AutoExecutor(folder=str(folder), cluster=executor)
        queue.update_parameters(**{"name": "jaxattn", "timeout_min": minutes} | options)
        with queue.batch():
            jobs = [queue.submit(Shard(command)) for command in commands]
    except (RuntimeError, NameError, ValueError, TypeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        here = "; --executor local runs them on this machine" if executor != "local" else ""
        raise InputError(f"launch: {executor} does not take the jobs: {reason}{here}") from None
    return jobs


def status(directories: Folders, /, verify: bool = False, as_json: Json = False) -> int:
    """Show how far a run is, cell by cell, also while it is running in another terminal.

    Example: jaxattn status results/quickstart

    Args:
        verify: Compare every file with its checksum first; exit with 1 and name what is damaged.
    """
    from jaxattn.lab.cli.status import status as look
    from jaxattn.lab.engine.progress import Reporter, patient
    from jaxattn.lab.storage import manifest, provenance

    folders, missing = read_folders(directories)
    if verify and _damage(folders):
        return 1
    told: list[dict[str, Any]] = []
    for folder in folders:
        with Reporter() as reporter:
            table, whole = look(folder, patient(reporter.update))
        told.append({"folder": shown(folder), "summary": whole, "cells": rows_of(table)})
        if not as_json:
            print_table(f"{shown(folder)}: {whole}" if len(folders) > 1 else whole, table)
        print_made_by(provenance.differs(provenance.makers(manifest.read(bucket.here(folder)))))
    if as_json:
        print_json(told + [{"folder": shown(folder), "summary": "not begun"} for folder in missing])
        return 0
    for folder in missing:
        say(f"{shown(folder)}: not begun")
    if verify:
        say("whatever has a checksum is what was written")
    return 0


def _damage(folders: list[Path]) -> bool:
    """Name every damaged file of some results folders, and tell whether there is one."""
    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.results import read

    with Reporter() as reporter:
        damaged = []
        for folder in folders:
            if is_address(folder):
                reporter.update(f"fetching {shown(folder)}")
            damaged += read.verify(bucket.fetched(folder, all_of_it=True), reporter.update)
    for line in damaged:
        say(f"jaxattn: {bucket.renamed(line)}", err=True)
    return bool(damaged)


def data(sweep: Sweep, /, overrides: Set = (), number: int = 15, quiet: Quiet = False) -> int:
    """Show the corpus of a sweep file: sizes, label balance, lengths, the most important tokens.

    The file needs a name and data; model and phases may be left out.

    Example: jaxattn data sweeps/imdb_one_layer.toml --set data.data_dir=~/tensorflow_datasets

    Args:
        number: How many tokens to list on each side.
    """
    from jaxattn.lab.cli import corpus
    from jaxattn.lab.engine.progress import Reporter

    checked = corpus.read(sweep, overrides)
    with Reporter(quiet) as reporter:
        shown = corpus.describe(checked, number, reporter.loading)
    for title, table in shown:
        print_table(title, table)
    return 0


def schema() -> int:
    """Print the JSON schema of sweep files, for editors.

    Example: jaxattn schema > sweep.schema.json
    """
    from jaxattn.lab.study.schema import schema

    print_json(schema(), indent=2)
    return 0
