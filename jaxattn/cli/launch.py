"""Shards of a sweep as jobs of a cluster queue, or of this machine."""

import sys
from pathlib import Path
from typing import Any, Literal

from jaxattn.core.errors import InputError

Executor = Literal["slurm", "local"]


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
