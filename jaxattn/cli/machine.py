"""Commands that look at this machine: what is wrong with it, and how fast it is."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from jaxattn.cli.console import print_table
from jaxattn.cli.options import Quiet, of_this_machine
from jaxattn.core.errors import InputError, RunError


def doctor() -> int:
    """Check this machine: devices, versions, float64, folders, disk, known troubles; exit with 1 if broken.

    Example: jaxattn doctor
    """
    import pandas as pd

    from jaxattn.cli.doctor import examine
    from jaxattn.cli.options import compiled_folder

    findings = examine(compiled_folder())
    print_table("Doctor", pd.DataFrame(findings))
    return int(any(finding.state == "broken" for finding in findings))


def bench(
    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="[FILE ...]")] = (),
    /,
    only: Annotated[tuple[str, ...], arg(metavar="WORD ...")] = (),
    seeds: Annotated[int | None, arg(metavar="N")] = None,
    repeats: int = 3,
    out: Annotated[Path | None, arg(metavar="FILE")] = None,
    quiet: Quiet = False,
) -> int:
    """Measure this machine: time of a step of each kind, whether bits repeat, memory against the plan.

    With files of it, measures nothing and shows them side by side.
    Example: jaxattn bench --out bench.json

    Args:
        files: Files that were written with --out.
        only: Measure the cases with one of these words in their names only.
        seeds: Measure up to so many seeds side by side.
        repeats: Passes after the first, of which the median counts.
        out: Write what was measured to this file.
    """
    from jaxattn import bench as benchmark
    from jaxattn.engine.devices import use_all_cores
    from jaxattn.engine.progress import Reporter

    if files:
        if only or out or seeds is not None:
            raise InputError("bench: files are shown as they are; leave --only, --seeds and --out out")
        print_table("µs a step and seed", benchmark.beside([benchmark.read(path) for path in files]))
        return 0
    of_this_machine(out or "")
    if repeats < 1:
        raise InputError(f"--repeats {repeats}: give at least 1")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: give at least 1")
    cases = [case for case in benchmark.CASES if not only or any(word in case.name for word in only)]
    if not cases:
        known = "; ".join(case.name for case in benchmark.CASES)
        raise InputError(f"--only {' '.join(only)}: in no name; there are {known}")
    use_all_cores()
    report = benchmark.Report(benchmark.machine(), [])
    wanted = [(case, n) for case in cases for n in case.seeds if seeds is None or n <= seeds]
    with Reporter(quiet) as reporter:
        for number, (case, together) in enumerate(wanted):
            reporter.update(f"{case.name}, {together} seeds", number / len(wanted))
            try:
                report.measured.append(benchmark.measure(case, together, repeats))
            except RunError as error:
                reporter.warn(f"left out: {error}")
            if out is not None:
                benchmark.write(report, out)
    print_table(report.title, benchmark.table(report))
    if out is not None:
        print(out)
    return 0
