"""Plan a study before it runs: cells, compile groups, batches, memory, time, and finished seeds."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from jaxattn.base import Phase, SharedData, Task, silent
from jaxattn.core import backend, pytrees
from jaxattn.core.errors import InputError, counted, nearest
from jaxattn.data.splits import Splits
from jaxattn.lab.engine import batches, devices, memory
from jaxattn.lab.engine.missing import Plan, plan_run
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.programs import Programs, seed_keys
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.results.labels import duration
from jaxattn.lab.storage.folder import results_folder
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.storage.study_file import wanted_runs
from jaxattn.lab.study import seed
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import CompileGroup, compile_groups, rehearse_groups
from jaxattn.lab.study.randomness import Keys, keys
from jaxattn.lab.study.setting import Setting

# Number of vmapped runs in a timing trial, and the number of seconds of timed steps after which the trial
# ends.
TRIAL_RUNS = 4
TRIAL_S = 0.3


def plan_study(
    study: Definition,
    directory: Path,
    max_memory: int | None = None,
    *,
    quick: bool = False,
    progress: Callable[[str, float], None] = lambda description, fraction: None,
) -> tuple[list[pd.DataFrame], str]:
    """Plan a study; return tables of its cells and groups, and a sentence with the totals.

    The table of cells lists settings, group, seeds, and finished seeds. The table of compile groups lists
    cells, number of embedding coordinates, varying numeric settings, runs, runs per batch, batches, memory
    per device, and estimated time left.

    Args:
        study: the study.
        directory: results folder of the study.
        max_memory: memory limit in bytes per device; defaults to the device memory.
        quick: skip the estimates of memory and time, which require compiling and running every group.
        progress: callback that receives a description of the current group and the fraction completed.

    Raises:
        InputError: the sizes of a cell do not match, a cell does not fit in memory, or the folder contains
            other files.
    """
    folder, cache = Memo(results_folder(directory).fetch()), ProgramCache()
    with backend.precision(study.dtype):
        found = plan_run(
            study,
            folder,
            cache,
            Reporter(quiet=True),
            command="jaxattn run SWEEP",
            max_memory=max_memory,
            keep_going=False,
        )
    rows, seconds = [], 0.0
    cut = {number: list(own) for number, own in itertools.groupby(found.batches, lambda x: x.group.number)}
    for group in found.groups:
        number, own = group.number, cut.get(group.number, [])
        row: dict[str, Any] = {
            "group": number,
            "cells": len(group.cells),
            "coordinates": _coordinates(group.setting),
            "vmapped": ", ".join(["seed", *group.varying]),
            "runs": sum(batch.width for batch in own),
            "together": max((batch.width for batch in own), default=0),
            "batches": len(own),
        }
        if own and not quick:
            progress(f"trying compile group {number + 1} of {len(found.groups)}", number / len(found.groups))
            programs = cache.of(group)
            taken = estimate_runtime(group, programs, own)
            together = devices.pad_to_devices(range(row["together"]), group.setting.data.shared)
            needed = memory.peak(group, programs, len(together))
            row |= {"memory": f"{needed / 2**20:,.0f} MiB", "time": duration(taken)}
            seconds += taken
        rows.append(row)
    cells = _cells(study, found)
    number = len(found.batches)
    sizes = counted(len(cells), "cell"), counted(len(rows), "group")
    runs = (
        f"{found.missing:,} of {len(cells) * len(study.seeds):,} runs missing, in {counted(number, 'batch')}"
    )
    left_over = "" if quick else f", about {duration(seconds)} left"
    known_bug = devices.known_bug(backend.platform())
    sentence = f"{study.name}: {' in '.join(sizes)}, {runs}{left_over}" + f"; {known_bug}" * bool(known_bug)
    return [cells, pd.DataFrame(rows)], sentence


def recorded_lines(study: Definition) -> list[str]:
    """Return one line per phase: the metrics recorded in the first cell, and the skipped probes with reasons.

    This loads the study's data, and raises the same errors as `plan_study`.
    """
    setting = study.cells[0].setting
    task, found = _measurements(setting)
    return [_line(setting, task, phase, *found[k]) for k, phase in enumerate(setting.phases)]


def check_metrics(study: Definition, asked: Mapping[str, str]) -> None:
    """Raise InputError unless each requested metric is recorded by at least one cell of the study.

    `asked` maps each location in the sweep file to the metric requested there. The error message contains the
    location and suggests a similar metric.
    """
    groups = compile_groups(study.cells) if asked else []
    raising = rehearse_groups(study, groups, silent, keep_going=True)
    known: set[str] = set()
    for group in groups:
        if group.number in raising or known.issuperset(asked.values()):
            continue
        setting = group.cells[0].setting
        task, found = _measurements(setting)
        for phase, metrics in zip(setting.phases, found, strict=True):
            for name, size in _shapes(*metrics).items():
                known |= {f"{name}_{k:02d}" for k in range(size[0])} if size else {name}
            known |= set(_named(setting, task, phase, known))
    for location, metric in asked.items():
        if metric not in known and not raising:
            near = nearest(metric, sorted(known))
            raise InputError(f"{location}: {metric!r} is not measured by the study{near}")


def check_figure_metrics(study: Definition) -> None:
    """Raise InputError unless each metric that a built-in figure shows is recorded by the study."""
    from jaxattn.lab.figures.draw import metrics_of  # imports matplotlib

    built_in = {k: figure for k, figure in enumerate(study.figures) if ":" not in str(figure.get("kind"))}
    check_metrics(study, metrics_of(built_in))


_Measured = tuple[dict[int, dict[str, Any]], dict[str, Any]]


def _measurements(setting: Setting) -> tuple[Task, list[_Measured]]:
    """Return the task, and the shapes of the metrics measured in each phase.

    The metrics of a phase are those of its probes, by probe index, and those computed from its state.
    """
    shared = setting.data.load(silent) if isinstance(setting.data, SharedData) else None

    tokens = shared.tokens if shared else seed.sampled_data(setting).tokens

    def run(of_seed: Keys) -> tuple[Splits, list[Any]]:
        data = shared.splits if shared else seed.draw_data(setting, of_seed.data)
        params = seed.initial_params(setting, data, of_seed.start, tokens)
        found = []
        for index, phase in enumerate(setting.phases):
            with jax.enable_x64("float64" in (setting.dtype, phase.dtype)):
                carried = seed.begin_phase(setting, index, params, data, of_seed.batches)
                own = phase.metrics(carried.state)
            params = carried.state.params
            found.append((seed.measure_probes(setting, index, carried, data), own))
        return data, found

    with backend.precision(setting.dtype):
        data, found = jax.eval_shape(run, jax.eval_shape(keys, 0))
    return seed.task_of(setting, data), found


def _shapes(measured: dict[int, dict[str, Any]], own: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: x.shape for metrics in (*measured.values(), own) for name, x in metrics.items()}


def _named(setting: Setting, task: Task, phase: Phase, known: Collection[str]) -> list[str]:
    best = [name for name, by in BEST.items() if {"test_accuracy", by} <= set(known)]
    of_phases = [probe for probe in setting.probes.of_phases if not probe.skip_reason(task, phase)]
    return [*best, *(name for probe in of_phases for name in probe.metrics)]


def _line(
    setting: Setting, task: Task, phase: Phase, measured: dict[int, dict[str, Any]], own: dict[str, Any]
) -> str:
    shapes = _shapes(measured, own)
    names = [f"{name}_00 .. {size[0] - 1:02d}" if size else name for name, size in shapes.items()]
    names += _named(setting, task, phase, shapes)
    probes = (*setting.probes.at_steps, *setting.probes.of_phases)
    without = []
    for probe in probes:
        # A custom probe may record a metric of a built-in probe that is skipped.
        absent = [name for name in probe.labels or (type(probe).__name__,) if name not in shapes]
        if absent and (reason := probe.skip_reason(task, phase)):
            without.append(f"{', '.join(absent)} ({reason})")
    return f"{phase.name} records {', '.join(names)}" + (f"; not {'; '.join(without)}" if without else "")


def _coordinates(setting: Setting) -> str:
    """Return the number of embedding coordinates, or "" if it is unknown before the data are read."""
    dim = setting.model.dim
    if dim is None or isinstance(setting.data, SharedData):
        return "" if dim is None else str(dim)

    def start(key: jax.Array) -> Any:
        # Shapes do not depend on the precision, so use float32, which is always enabled.
        return setting.model.init(key, seed.draw_data(setting, key).train, dtype=jnp.float32)

    params = jax.eval_shape(start, jax.random.key(0))
    coordinates = pytrees.get(params, "E").shape[1] if "E" in pytrees.names(params) else dim
    return str(dim) if coordinates == dim else f"{coordinates} for d = {dim}"


def _cells(study: Definition, plan: Plan) -> pd.DataFrame:
    done = {run for record in plan.present.values() for run in record.identities}
    counts = Counter[int]()
    for run, cells in wanted_runs(plan.content).items():
        counts.update(cells if run in done else ())
    rows = [
        {"cell": n, **cell.settings, "group": group.number, "done": f"{counts[n]} of {len(study.seeds)}"}
        for group in plan.groups
        for cell in group.cells
        for n in [cell.number]
    ]
    return pd.DataFrame(rows).sort_values("cell", ignore_index=True)


def estimate_runtime(group: CompileGroup, programs: Programs, left: Sequence[batches.Batch]) -> float:
    """Estimate a group's time left in seconds, including one compilation of each program.

    In a trial with a few runs, each phase is started, takes some steps and is measured once. The estimate
    assumes that all steps take the same time, and that the time is proportional to the number of runs. It is
    therefore too high on devices that compute many runs in parallel. Phase probes and figures are not
    included.
    """
    setting = group.setting
    compiling, running = 0.0, 0.0
    with backend.precision(setting.dtype):
        runs = left[0].runs[:TRIAL_RUNS]
        some = devices.pad_to_devices(runs, setting.data.shared)
        of_seeds = seed_keys([seed for _, seed in some], setting.hold)
        hyperparameters = group.hyperparameters([cell for cell, _ in some])
        loaded = programs.draw(of_seeds.data, hyperparameters)
        params = programs.start(loaded, of_seeds.start, hyperparameters)
        for index in range(len(setting.phases)):
            made = programs.phase(index, loaded)
            steps = made.probe_steps[-1]
            first, again, state = _twice(
                partial(made.begin, params, loaded.splits, hyperparameters, of_seeds.batches)
            )
            compiling, running = compiling + first - again, running + again
            begin = time.perf_counter()
            state = jax.block_until_ready(made.advance(state, loaded.splits, hyperparameters, jnp.int32(1)))
            compiling += time.perf_counter() - begin
            taken, spent = 0, 0.0
            while taken + 1 < steps and spent < TRIAL_S:
                block = min(max(1, taken), steps - 1 - taken)
                begin = time.perf_counter()
                state = jax.block_until_ready(
                    made.advance(state, loaded.splits, hyperparameters, jnp.int32(block))
                )
                spent, taken = spent + time.perf_counter() - begin, taken + block
            running += spent / taken * steps if taken else 0.0
            first, again, _ = _twice(partial(made.measure, state, loaded.splits, hyperparameters))
            compiling, running = compiling + first - again, running + again * len(made.probe_steps)
            params = state.state.params
    # If the last batch is smaller than the others, it is compiled separately.
    return compiling * (1 + (len(left) > 1)) + running * sum(x.width for x in left) / len(some)


def _twice(function: Callable[[], Any]) -> tuple[float, float, Any]:
    times, result = [], None
    for _ in range(2):
        begin = time.perf_counter()
        result = jax.block_until_ready(function())
        times.append(time.perf_counter() - begin)
    return times[0], times[1], result
