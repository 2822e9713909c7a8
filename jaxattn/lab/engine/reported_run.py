"""Run a study in a folder, and write its report."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxattn.lab.engine import devices
from jaxattn.lab.engine.plan import check_figure_metrics
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run_study import Outcome, run_study
from jaxattn.lab.pages import report
from jaxattn.lab.pages.report import Report
from jaxattn.lab.storage.copies import naming
from jaxattn.lab.storage.folder import results_folder
from jaxattn.lab.study.definition import Definition


class Finished(NamedTuple):
    """Outcome and report of a run.

    Attributes:
        outcome: result of the run; see `run_study.Outcome`.
        report: files of the report; None if no batch could be run, nothing has changed, or no report was
            requested.
    """

    outcome: Outcome
    report: Report | None


def run_with_report(
    study: Definition,
    directory: Path,
    *,
    reporter: Reporter,
    command: str | None = None,
    write_report: bool = True,
    **options: Any,
) -> Finished:
    """Run a study in a folder and write its report.

    Args:
        study: the study.
        directory: the results folder.
        reporter: displays the progress.
        command: the command line, which is stored with the results; defaults to that of this process.
        write_report: False to write only the results.
        options: options of `run_study`.

    Raises:
        InputError, RunError, Interrupted: as in `run_study`.
    """
    devices.use_all_cores()
    words = command or shlex.join(["python", *sys.argv]) if sys.argv[0] else "python"
    with naming():
        outcome = run_study(
            study,
            directory,
            command=words,
            reporter=reporter,
            check=partial(check_figure_metrics, study),
            **options,
        )
        page = outcome.directory / "report.html"
        nothing_new = outcome.already_finished and not outcome.renewed and page.exists()
        nothing = outcome.batches > 0 and len(outcome.errors) == outcome.batches
        if not write_report or nothing_new or nothing:
            return Finished(outcome, None)
        written = report.write_report(outcome.directory, study.custom_figures, reporter.update)
        results_folder(directory).send_report(written.paths, outcome.directory)
    return Finished(outcome, written)
