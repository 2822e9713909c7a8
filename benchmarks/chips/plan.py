"""Compile the programs of a study for a chip that this machine lacks, and print their requirements.

    python benchmarks/chips/plan.py sweeps/quickstart.toml --target h200 --seeds 1024

The tables show the memory use, memory traffic, operations and launches of every program, the number of runs
that fit, and a lower bound on the time. The compilers require a separate environment:

    pip install -e . -r benchmarks/chips/requirements.txt
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import pandas as pd

from chips import process
from chips.targets import read_target
from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.api import Study
from jaxattn.lab.cli.commands import check_once
from jaxattn.lab.cli.console import print_error, print_json, print_line, print_table, rows_of
from jaxattn.lab.cli.options import StudyOptions, load_sweep, read_size
from jaxattn.lab.engine.devices import known_bug
from jaxattn.lab.engine.progress import Reporter

# Program features that are slower than their memory traffic suggests.
_NOTES = {
    "scatter_adds": "scatter-adds",
    "compare_and_swaps": "compare-and-swap loops",
    "collectives": "collectives",
    "float64": "float64 operations",
    "conditionals": "conditionals",
}
_UNITS = ("", "k", "M", "G", "T", "P")


def quantity(x: int | float) -> str:
    """Format a number with three significant digits and an SI prefix, such as "12.3 M"."""
    power = 0
    while abs(x) >= 999.5 and power < len(_UNITS) - 1:
        x, power = x / 1000, power + 1
    return f"{x:.3g} {_UNITS[power]}"


def seconds(x: int | float) -> str:
    """Format a time given in seconds with a suitable unit, such as "1.5 ms"."""
    for size, unit in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x * 1e6:.3g} µs"


@dataclass(frozen=True)
class ChipProgram:
    """Program of a study, compiled for a chip.

    If the program runs on the host or does not compile, its counts and its lower bound are None.

    Attributes:
        group: index of the compile group.
        phase: the phase; "" for programs before the first phase.
        program: name of the program: "draw", "start", "begin", "advance", ...
        where: the chip, or "host" for programs that require float64, or "does not compile".
        error: reason why the program does not compile, or "".
        per: "step" or "call", to which the bytes, operations, launches and lower bound refer.
        bytes: memory traffic of a device.
        flops: number of arithmetic operations.
        launches: number of operations started; on a GPU, number of kernels.
        seconds_at_least: lower bound on the time from bandwidth, peak arithmetic rate and launches.
        held: peak memory of a device in bytes.
        temporaries: the part of `held` that is neither arguments nor results.
        compile_s: compile time in seconds; None if the program runs on the host.
        scatter_adds, compare_and_swaps, collectives, float64, conditionals: number of such operations.
    """

    group: int
    phase: str
    program: str
    where: str
    error: str = ""
    per: str | None = None
    bytes: int | None = None
    flops: int | None = None
    launches: int | None = None
    seconds_at_least: float | None = None
    held: int | None = None
    temporaries: int | None = None
    compile_s: float | None = None
    scatter_adds: int | None = None
    compare_and_swaps: int | None = None
    collectives: int | None = None
    float64: int | None = None
    conditionals: int | None = None

    @property
    def on_host(self) -> bool:
        """True if the program runs on the host's CPU, because the chip lacks float64."""
        return self.where == "host"


@dataclass(frozen=True)
class ChipGroup:
    """Batches, memory use and minimum time of a compile group on a chip.

    Attributes:
        group: index of the compile group.
        runs: number of runs (cells times seeds).
        together: number of runs in one batch.
        fitting: number of runs that would fit in memory.
        batches: number of consecutive batches.
        per_lane: device memory per run, in bytes.
        held: peak memory of a device in bytes; 0 if everything runs on the host.
        compile_s: seconds to compile the programs of the group.
        seconds_at_least: lower bound on the time of all runs.
    """

    group: int
    runs: int
    together: int
    fitting: int
    batches: int
    per_lane: float
    held: int
    compile_s: float
    seconds_at_least: float


@dataclass(frozen=True, repr=False)
class ChipPlan:
    """Memory use, memory traffic and operations of the programs of a study on a chip, printed as tables.

    Attributes:
        target: the chip, such as "h200" or "v5e:2x2".
        groups: the compile groups.
        programs: the programs of all groups.
    """

    target: str
    groups: tuple[ChipGroup, ...]
    programs: tuple[ChipProgram, ...]

    @classmethod
    def of(cls, target: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> "ChipPlan":
        """Build a plan from the rows that `on_chip.plan_on` returns."""
        groups = tuple(ChipGroup(**row) for row in found["groups"])
        return cls(target, groups, tuple(ChipProgram(**row) for row in found["programs"]))

    @property
    def tables(self) -> tuple[tuple[str, pd.DataFrame], ...]:
        """(title, table) pairs for display, one for the programs and one for the compile groups."""
        programs, groups = pd.DataFrame(map(_program, self.programs)), pd.DataFrame(map(_group, self.groups))
        return (
            (f"Programs on {self.target}: cost per step or call", programs),
            (f"Compile groups on {self.target}", groups),
        )

    @property
    def sentence(self) -> str:
        """Summary in one sentence."""
        here = [row for row in self.programs if row.where == self.target]
        host = [row for row in self.programs if row.on_host]
        failed = [row for row in self.programs if row.error]
        parts = [f"{len(here)} programs compile for {self.target}"]
        parts += [f"{len(host)} need float64 and run on the host's CPU"] * bool(host)
        parts += [f"{len(failed)} do not compile: {failed[0].error}"] if failed else []
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"ChipPlan({self.sentence})"

    def __str__(self) -> str:
        """Return the tables and the summary as text."""
        laid_out = [f"{title}\n{table.to_string(index=False)}" for title, table in self.tables]
        return "\n\n".join([*laid_out, self.sentence])


def _program(row: Any) -> dict[str, Any]:
    """Return the display row of a program, with the place where it runs and its counts per step or call."""
    first = {"group": row.group, "phase": row.phase, "program": row.program, "where": row.where}
    if row.bytes is None:
        empty = dict.fromkeys(("per", "bytes", "flops", "launches", "at least", "memory", "compile"), "")
        return first | empty | {"notes": row.error}
    notes = {words: getattr(row, name) for name, words in _NOTES.items()}
    return first | {
        "per": row.per,
        "bytes": f"{quantity(row.bytes)}B",
        "flops": quantity(row.flops).strip(),
        "launches": f"{row.launches:.0f}",
        "at least": seconds(row.seconds_at_least),
        "memory": f"{quantity(row.held)}B",
        "compile": f"{row.compile_s:.1f} s",
        "notes": ", ".join(f"{number} {words}" for words, number in notes.items() if number),
    }


def _group(row: ChipGroup) -> dict[str, Any]:
    """Return the display row of a group, with the number of runs that fit and the minimum time."""
    return {
        "group": row.group,
        "runs": row.runs,
        "together": row.together,
        "fitting": f"{row.fitting:,}" if row.held else "on the host",
        "batches": row.batches,
        "memory per run": f"{quantity(row.per_lane)}B",
        "per device": f"{quantity(row.held)}B",
        "compile": f"{row.compile_s:.0f} s",
        "time at least": seconds(row.seconds_at_least),
    }


def plan(
    study: Study,
    target: str,
    *,
    max_memory: int | None = None,
    progress: Callable[[str, float], None] = lambda text, share: None,
    only: Sequence[str] = (),
    keep: str | None = None,
) -> ChipPlan:
    """Compile the programs of a study for a chip, in a separate process.

    Args:
        study: the study; its custom classes and functions need import paths.
        target: the chip, such as "h200", "a100:4" or "v5e:2x2".
        max_memory: limit on device memory in bytes; defaults to the limit of a run on this chip.
        progress: function that receives the name of what is compiled and the fraction of groups done.
        only: names of programs to compile, such as "query.advance" or "draw"; all if empty. With a selection,
            the number of runs that fit is not determined.
        keep: folder to which the texts of the compiled programs are written.

    Returns:
        The plan.

    Raises:
        InputError: the chip is unknown, there is no compiler for it, or one seed of the study does not fit.
        RunError: the compiler ended without a result.
    """
    found = read_target(target)
    study._check_names("another process")
    asked = {
        "tables": study.tree,
        "folder": str(study.names.folder.resolve()),
        "max_memory": max_memory,
        "only": tuple(only),
        "keep": keep,
    }
    return ChipPlan.of(target, process.call(found, "chips.on_chip:plan_on", asked, progress))


def show(options: argparse.Namespace) -> int:
    """Print the plan for a sweep file, and return 1 if a program does not compile, else 0."""
    chosen = StudyOptions(tuple(options.overrides), tuple(options.axes), options.seeds)
    study = load_sweep(options.sweep, chosen)
    with Reporter(options.quiet) as reporter:
        if known := known_bug(read_target(options.target).platform):
            reporter.note(known)
        found = plan(
            study,
            options.target,
            max_memory=read_size(options.max_memory),
            progress=reporter.update,
            only=options.only,
            keep=options.keep,
        )
    (title, programs), (title_of_groups, groups) = found.tables
    if options.json:
        print_json({"programs": rows_of(programs), "groups": rows_of(groups), "summary": found.sentence})
    else:
        print_table(title, programs)
        print_table(title_of_groups, groups)
        print_line(found.sentence)
    return int(any(program.error for program in found.programs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep file (TOML)")
    parser.add_argument("--target", required=True, metavar="h200|a100:4|v5e:2x2", help="the chip")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="override a key"
    )
    parser.add_argument(
        "--axis", action="append", default=[], dest="axes", metavar="KEY=[...]", help="sweep another key"
    )
    parser.add_argument("--seeds", metavar="N|A:B|A,B", help="seeds, instead of the sweep file's")
    parser.add_argument("--max-memory", metavar="SIZE", help="memory that a device may use, such as 8GiB")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="PROGRAM",
        help="programs to compile, such as query.advance or draw",
    )
    parser.add_argument("--keep", metavar="DIR", help="folder for the texts of the compiled programs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="print results and errors only")
    options = parser.parse_args()
    try:
        check_once(sys.argv[1:])
        return show(options)
    except InputError as error:
        return print_error(error, 2)
    except RunError as error:
        return print_error(error, 1)


if __name__ == "__main__":
    sys.exit(main())
