"""Compile the programs of a study for a chip that is not installed, and compute memory and minimum time.

This module runs in the process that `process.py` starts for the chip.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from chips.targets import Compiled, Target, compile_lowered, seconds_at_least
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.lab.engine import devices, memory
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.programs import PhaseProgram, Programs
from jaxattn.lab.study import toml
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import CompileGroup, compile_groups
from jaxattn.lab.study.import_paths import ImportPaths

# Fraction of device memory available to a run: 80 % of the memory that JAX reserves. On a GPU, JAX reserves
# 75 % of the device memory.
_SHARE = {"gpu": 0.8 * 0.75, "tpu": 0.8}
# Settings that a user can reduce, and the maximum number of times that each of them is halved.
_SIZES = ("model.dim", "data.sequences", "data.vocab_size", "data.length")
_HALVINGS = 12
# Memory needed by a phase for gradients and results, as a multiple of the memory for parameters and corpora.
_WORKING = 4
_NO_MEMORY = "RESOURCE_EXHAUSTED"
Progress = Callable[[str, float], None]


Found = list[tuple[PhaseProgram, Compiled | None]]


class _Fitted(NamedTuple):
    """Batch size and memory use of a compile group on a chip, with the compiled programs.

    Attributes:
        together: number of runs in one batch.
        fitting: number of runs that would fit in memory.
        per_lane: device memory per run, in bytes.
        programs: the compiled programs.
    """

    together: int
    fitting: int
    per_lane: float
    programs: Found


class _Compiler(NamedTuple):
    """Compiler for the programs of a compile group.

    If `only` is not empty, only the programs that it names are compiled. `known` stores the result for each
    program text, and is shared between groups.
    """

    target: Target
    group: CompileGroup
    programs: Programs
    tell: Callable[[str], None]
    only: Collection[str]
    keep: str | None
    known: dict[str, Compiled]

    def compile(self, runs: int, only: Collection[str] = ()) -> Found:
        """Compile the programs for `runs` vmapped runs, and return pairs of a program and its result.

        The result is None for a program that runs on the host.
        """
        found: Found = []
        wanted = only or self.only
        for made in self.programs.phase_programs(self.group, runs):
            if wanted and made.location not in wanted:
                continue
            if made.function.on_host or backend.platform() == "cpu":
                found.append((made, None))
                continue
            self.tell(f"{made.location}, {runs} runs")
            found.append((made, self._compiled(made, runs)))
        return found

    def _compiled(self, made: PhaseProgram, runs: int) -> Compiled:
        """Compile a program, or return its stored result."""
        lowered = made.function.lower(*made.arguments)
        text = lowered.as_text()
        if text in self.known and self.keep is None:
            return self.known[text]._replace(seconds=0.0)
        name = f"{self.target.name}-{made.location}-{runs}.hlo".replace(":", "-")
        path = Path(self.keep) / name if self.keep else None
        self.known[text] = compile_lowered(lowered, self.target, path)
        return self.known[text]


def plan_on(
    target: Target,
    progress: Progress,
    *,
    tables: Mapping[str, Any],
    folder: str,
    max_memory: int | None = None,
    only: Collection[str] = (),
    keep: str | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Compile the programs of a study for a chip, and return memory use, memory traffic and minimum time.

    Args:
        target: the chip.
        progress: function that receives a message and the fraction done.
        tables: tables of the study.
        folder: base folder for relative paths in the tables.
        max_memory: limit on device memory in bytes; defaults to the limit of a run.
        only: names of programs to compile, such as "query.advance" or "draw"; all if empty. With a selection,
            the number of runs that fit is not determined.
        keep: folder to which the texts of the compiled programs are written.

    Returns:
        Lists of rows: "groups", with one row per compile group, and "programs", with one row per program.

    Raises:
        InputError: the tables do not define a study, or a single seed does not fit on a device.
    """

    def read(*further: str) -> Definition:
        changed = deepcopy(dict(tables))
        toml.change(changed, further)
        return Definition(changed, ImportPaths(folder))

    study, budget = read(), max_memory or int(_SHARE[target.platform] * target.memory)
    groups: list[dict[str, Any]] = []
    programs: list[dict[str, Any]] = []
    known: dict[str, Compiled] = {}
    every, cache = compile_groups(study.cells), ProgramCache()
    for group in every:

        def tell(text: str, group: CompileGroup = group) -> None:
            progress(f"compile group {group.number + 1} of {len(every)}: {text}", group.number / len(every))

        runs = len(group.cells) * len(study.seeds)
        with backend.precision(group.setting.dtype):
            compiler = _Compiler(target, group, cache.of(group), tell, only, keep, known)
            fitted = _fit(compiler, min(runs, study.chunk or runs), budget)
        if fitted.together == 0:
            raise InputError(_too_large(target, read, group, fitted.per_lane, budget))
        own = [_row(target, group, made, found) for made, found in fitted.programs]
        groups.append(_group_row(target, group, runs, fitted, own))
        programs += own
    return {"groups": groups, "programs": programs}


def _fit(compiler: _Compiler, wanted: int, budget: int) -> _Fitted:
    """Find how many of the wanted runs fit on the devices, and compile the programs for that number."""
    group = compiler.group
    shared = group.setting.data.shared
    used = devices.device_count(shared)
    compiled: dict[int, Found] = {}

    def peak(each: int) -> float:
        runs = devices.pad_to_devices(range(min(each * used, wanted)), shared)
        found = compiled[each] = compiler.compile(len(runs))
        lacking = any(made and _NO_MEMORY in made.error for _, made in found)
        return math.inf if lacking else _peak(found)[0]

    held, own = memory.program_sizes(group, compiler.programs, used)
    # Rule out sizes whose parameters and corpora alone exceed the budget, because the compiler is slow to
    # reject them.
    most = min(math.ceil(wanted / used), int((budget - held) // max(own, 1)))
    if most < 1:
        return _Fitted(0, 0, held + own, [])
    each, needed = (most, peak(most)) if compiler.only else memory.fit(peak, most, budget)
    if each < 1:
        # If compilation fails, only a lower bound on the required memory is known: the budget.
        return _Fitted(0, 0, needed if math.isfinite(needed) else budget, list(compiled.values())[-1])
    if each not in compiled:
        needed = peak(each)
    found = compiled[each]
    heaviest = _peak(found)[1]
    if not heaviest or compiler.only:
        return _Fitted(wanted, wanted, 0.0, found)
    other = max(1, each // 2) if each > 1 else 2
    wide = devices.pad_to_devices(range(other * used), shared)
    probed, _ = _peak(compiler.compile(len(wide), [heaviest]))
    per_lane = max(0.0, (needed - probed) / (each - other)) if probed else 0.0
    fitting = each + max(0, math.floor((budget - needed) / max(per_lane, 1.0)))
    return _Fitted(min(wanted, each * used), fitting * used, per_lane, found)


def _peak(found: Found) -> tuple[int, str]:
    """Return the largest device memory that any program needs, in bytes, and the name of that program."""
    return max(((own.held, made.location) for made, own in found if own), default=(0, ""))


def _row(target: Target, group: CompileGroup, made: PhaseProgram, found: Compiled | None) -> dict[str, Any]:
    """Return the row of a program in the table "programs"."""
    phase = made.location.rpartition(".")[0]
    row: dict[str, Any] = {"group": group.number, "phase": phase, "program": made.name}
    if found is None:
        return row | {"where": "host"}
    if found.error:
        return row | {"where": "does not compile", "error": found.error, "compile_s": found.seconds}
    counted = found.counted
    stepping = made.name == "advance" and counted.unknown_loops > 0
    work = counted.step if stepping else counted.once + counted.step
    return row | {
        "where": target.name,
        "per": "step" if stepping else "call",
        "bytes": work.bytes,
        "flops": work.flops,
        "launches": work.launches,
        "seconds_at_least": seconds_at_least(work, target),
        "held": found.held,
        "temporaries": found.temporaries,
        "compile_s": found.seconds,
        "scatter_adds": counted.scatter_adds,
        "compare_and_swaps": found.compare_and_swaps,
        "collectives": counted.collectives,
        "float64": counted.float64,
        "conditionals": counted.conditionals,
    }


def _group_row(
    target: Target, group: CompileGroup, runs: int, fitted: _Fitted, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the row of a group in the table "groups"."""
    batches = math.ceil(runs / fitted.together)
    steps = {phase.name: group.setting.probes.steps_of(phase) for phase in group.setting.phases}

    def often(row: dict[str, Any]) -> int:
        if not row["phase"]:
            return 1
        probed = steps[row["phase"]]
        if row["program"] == "advance":
            return int(probed[-1])
        return len(probed) if row["program"] in ("measure", "state_metrics", "observe") else 1

    seconds = math.fsum(row["seconds_at_least"] * often(row) for row in rows if "seconds_at_least" in row)
    return {
        "group": group.number,
        "runs": runs,
        "together": fitted.together,
        "fitting": fitted.fitting,
        "batches": batches,
        "per_lane": fitted.per_lane,
        "held": max((row.get("held", 0) for row in rows), default=0),
        "compile_s": math.fsum(row.get("compile_s", 0.0) for row in rows),
        "seconds_at_least": batches * seconds,
    }


def _too_large(
    target: Target, read: Callable[..., Definition], group: CompileGroup, needed: float, budget: int
) -> str:
    """Return an error message with a list of overrides, each of which alone would make one seed fit."""
    cell = group.cells[0].number
    line = (
        f"cell {cell}: one seed needs {needed / 2**30:,.1f} GiB or more, and {target.name} has "
        f"{budget / 2**30:,.1f} GiB for it"
    )
    # Assume that the memory for gradients and temporaries shrinks in proportion to the memory for parameters
    # and corpora.
    sizes = sum(memory.program_sizes(group, ProgramCache().of(group), 1))
    wanted = budget * sizes / max(needed, _WORKING * sizes)
    fitting = []
    for key in _SIZES:
        table, name = key.split(".")
        value = getattr(getattr(group.setting, table), name, None)
        for halving in range(1, _HALVINGS + 1):
            smaller = value >> halving if isinstance(value, int) else 0
            if smaller < 1:
                break
            try:
                first = compile_groups(read(f"{key}={smaller}").cells)[0]
                smaller_sizes = sum(memory.program_sizes(first, ProgramCache().of(first), 1))
            except InputError:
                break  # other settings depend on this size
            if smaller_sizes <= wanted:
                fitting.append(f"--set {key}={smaller}")
                break
    return f"{line}; {' or '.join(fitting)} would fit" if fitting else f"{line}; make the data smaller"
