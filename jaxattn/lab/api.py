"""Studies as Python objects: create them or read sweep files, plan and run them, and load their results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from jaxattn.base.model import HasTokenScores, Params
from jaxattn.core.errors import InputError, RunError, counted
from jaxattn.core.settings import MAX_INT
from jaxattn.data.splits import Loaded, Splits
from jaxattn.lab.loaded import Results, load
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.storage.copies import naming
from jaxattn.lab.study import concepts, toml
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.effective import settings_table
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.randomness import Part
from jaxattn.lab.study.registry import Component, component_list, components_of, describe, make, probe_tables
from jaxattn.lab.study.setting import Setting

if TYPE_CHECKING:
    from jaxattn.lab.engine.executor import Executor

__all__ = ["Plan", "Results", "Study", "load"]

OnFailure = Literal["stop", "continue", "retry"]
Dashboard = Literal["tensorboard", "wandb"]
Progress = Callable[[str, float], None]


def _silent(description: str, share: float) -> None:
    """Ignore progress updates."""


class Plan(NamedTuple):
    """Plan for a study.

    Attributes:
        cells: one row per cell, with its settings, compile group and finished seeds.
        groups: one row per compile group, with the number of vmapped runs, the number of batches, and the
            estimated memory and time.
        sentence: one-sentence summary.
        metrics: one line per phase of the first cell, with the metrics of the phase, and the skipped probes
            with reasons; empty for a quick plan.
    """

    cells: pd.DataFrame
    groups: pd.DataFrame
    sentence: str
    metrics: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n".join([f"Plan({self.sentence})", *self.metrics])

    def _repr_html_(self) -> str:
        groups = self.groups.to_html(index=False, max_rows=20)
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.metrics)
        return f"<b>Plan</b> ({escape(self.sentence)}){groups}{lines}"


class Study(Definition):
    """A study: data, model, training phases and probes, run for many seeds and settings.

    Wherever a sweep file has `kind = ...`, pass an instance of a class, a function, a table or the name of
    the kind. This includes your own classes and functions.

    Args:
        name: name of the study. Results are written to results/NAME by default.
        data: a generator or reader of data.
        model: a model.
        phases: training phases in order; at least one.
        loss: per-example loss, (outputs, targets) -> (n,).
        init: initial values keyed by parameter. They replace the values sampled by the model.
        probes: a `Probes` object with all measurements, or a list of probes to add to the standard
            probes.
        figures: figures to draw: kinds, tables, or functions (results, *, settings).
        seeds: number of seeds, a range "first:end", or a list of seeds.
        hold: random numbers that all seeds take from seed 0: "data", "start" or "batches".
        dtype: floating-point type of parameters and data.
        axes: values by dotted key, such as {"model.dim": [64, 128]}. The cells of the study are the
            product of all axes.
        zip: axes that vary together.
        halton: quasi-random points over several axes, as a table with `points`, `axes` and `seed`.
        cells: further cells, as values by dotted key.
        exclude: values by dotted key; cells that match an entry are left out.
        blocks: variants of the study by name, as changed keys with axes of their own.
        description: description of the study, for its pages.
        chunk: number of runs to vmap; by default, as many as fit in memory.
        unknown: any other keyword is rejected, with the nearest known one.

    Raises:
        InputError: a setting is invalid.
    """

    def __init__(
        self,
        *,
        name: str,
        data: Component,
        model: Component,
        phases: Sequence[Component],
        loss: Component = "classification",
        init: Mapping[str, Component] | None = None,
        probes: Probes | Sequence[Component] | Mapping[str, object] | None = None,
        figures: Sequence[Component] = (),
        seeds: int | str | Sequence[int] = 1,
        hold: Sequence[Part] | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        axes: Mapping[str, Sequence[object]] | None = None,
        zip: Mapping[str, Sequence[object]] | None = None,
        halton: Mapping[str, object] | None = None,
        cells: Sequence[Mapping[str, object]] | None = None,
        exclude: Sequence[Mapping[str, object]] | None = None,
        blocks: Mapping[str, Mapping[str, object]] | None = None,
        description: str | None = None,
        chunk: int | None = None,
        **unknown: object,
    ) -> None:
        """Create a study and check its settings."""
        names = ImportPaths()
        given: dict[str, object] = {"axes": axes, "zip": zip, "halton": halton, "cells": cells}
        given |= {"exclude": exclude, "blocks": blocks, "seeds": seeds, "hold": hold, "dtype": dtype}
        given |= {"description": description, "chunk": chunk} | unknown
        tables = {
            "name": name,
            "data": components_of(data, names),
            "model": components_of(model, names),
            "loss": components_of(loss, names),
            "phases": component_list(phases, "phases", names),
            "probes": probe_tables(probes, names),
            "figures": describe(component_list(figures, "figures", names), names),
            **components_of({key: x for key, x in given.items() if x is not None}, names),
        }
        if init:
            own = {parameter: components_of(x, names) for parameter, x in init.items()}
            model = tables["model"]
            tables["model"] = (model if isinstance(model, dict) else {"kind": model}) | {"init": own}
        toml.flatten_grid(tables)
        super().__init__(tables, names)
        self._check_figures()

    @classmethod
    def from_tables(cls, tables: Mapping[str, object], names: ImportPaths | None = None) -> "Study":
        """Create a study from sweep-file tables."""
        study = cls.__new__(cls)
        Definition.__init__(study, tables, names)
        study._check_figures()
        return study

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = (), axes: Sequence[str] = ()) -> "Study":
        """Read a study from a sweep file; see `toml.read_sweep`."""
        return toml.read_sweep(path, overrides, axes, made=cls.from_tables)

    def write(self, path: str | Path) -> Path:
        """Write the study as a sweep file.

        Raises:
            InputError: an object has no import path, such as a class defined in a notebook.
            RunError: the file cannot be written.
        """
        self._check_names("a sweep file")
        return toml.write_sweep(self.written, path)

    def plan(
        self,
        directory: str | Path | None = None,
        *,
        max_memory: int | None = None,
        quick: bool = False,
        progress: Progress = _silent,
    ) -> Plan:
        """Plan the study: list its cells, the groups that are compiled together, and the finished seeds.

        Args:
            directory: the results folder, or its bucket URL; defaults to results/NAME.
            max_memory: memory limit in bytes per device; defaults to the device memory.
            quick: True to skip the memory and time estimates, which require compiling and running every
                group.
            progress: callback that receives a description of the compile group and the fraction completed.

        Raises:
            InputError: a cell does not fit in memory, or the folder contains other files.
        """
        from jaxattn.lab.engine.plan import check_figure_metrics, plan_study, recorded_lines

        folder = self.folder(directory)
        if not quick:
            check_figure_metrics(self)
        with naming():
            (cells, groups), sentence = plan_study(self, folder, max_memory, quick=quick, progress=progress)
        return Plan(cells, groups, sentence, () if quick else tuple(recorded_lines(self)))

    def run(
        self,
        directory: str | Path | None = None,
        *,
        quiet: bool = False,
        shard: tuple[int, int] = (1, 1),
        max_memory: int | None = None,
        on_failure: OnFailure = "continue",
        reuse_code: bool = False,
        profile: bool = False,
        log: Sequence[Dashboard] = (),
        report: bool = True,
        executor: "Executor | None" = None,
        workers: int | None = None,
    ) -> Results:
        """Run or resume the study, write its report, and return the results.

        Args:
            directory: the results folder, or a bucket URL, s3://BUCKET/NAME or gs://BUCKET/NAME; defaults to
                results/NAME.
            quiet: True to hide the progress display.
            shard: (I, N) to run only every N-th batch, starting from batch I.
            max_memory: memory limit in bytes per device; defaults to the device memory.
            on_failure: what to do if a batch produces NaN or raises an error: "stop" the run, "continue" with
                the next batch, or "retry" the batch from its start, at most twice, and then continue.
            reuse_code: True to use finished runs with the same settings and data, but older code. By default,
                they are computed again.
            profile: True to write a JAX trace of the run to the folder, for TensorBoard or Perfetto.
            log: dashboards that also receive every measurement: "tensorboard" or "wandb" (offline).
            report: False to write only the results, without tables of statistics and figures.
            executor: compute the batches in the workers of an executor, which must be processes: a
                `concurrent.futures.ProcessPoolExecutor` that spawns them, a submitit executor,
                `dask.distributed.Client.get_executor()`, or another object with a method `submit`.
            workers: number of workers of the executor, if it does not state it. Each gets a batch of each
                compile group if there are enough runs.

        Returns:
            The results; failed seeds are listed in `.failures`.

        Raises:
            InputError: the data cannot be used, a cell does not fit in memory, or the folder contains other
                files.
            RunError: no batch finished, or the folder cannot be written.
            KeyboardInterrupt, SystemExit: SIGINT or SIGTERM was received, and a checkpoint has been saved.
                The same call resumes the run. After SIGTERM, Python ends with status 143.
        """
        from jaxattn.lab.engine.monitor import ending_as_asked
        from jaxattn.lab.engine.progress import Reporter
        from jaxattn.lab.engine.reported_run import run_with_report

        with ending_as_asked(), Reporter(quiet) as reporter:
            finished = run_with_report(
                self,
                self.folder(directory),
                reporter=reporter,
                shard=shard,
                max_memory=max_memory,
                on_failure=on_failure,
                reuse_code=reuse_code,
                profile=profile,
                log=log,
                write_report=report,
                executor=executor,
                workers=workers,
            )
        errors = finished.outcome.errors
        if errors and len(errors) == finished.outcome.batches:
            raise RunError(errors[0]["reason"])
        return replace(load(finished.outcome.directory), study=self)

    def dataset(self, seed: int = 0, cell: int = 0) -> Splits:
        """Return the data for one seed of one cell, exactly as used in a run.

        Args:
            seed: the seed; ignored if all seeds share the data, or if `hold` contains "data".
            cell: index of the cell.

        Returns:
            Training, test and validation data (each may be None), and statistics of the training tokens. If a
            sweep pads vocabularies to a common size, the padding tokens are not included.

        Raises:
            InputError: the cell or seed does not exist, or the data cannot be read.
        """
        return self._loaded(seed, cell).splits

    def effective_settings(self) -> pd.DataFrame:
        """Return all settings of each cell, as a table with one row per cell.

        Columns are dotted keys of data, model, loss, phases and probes, after blocks, axes and defaults, such
        as `model.dim` or `phases.query.step_size`. A key that a cell does not have is None there.
        """
        return settings_table({cell.number: cell.tables for cell in self.cells})

    def minibatches(self, seed: int = 0, cell: int = 0, *, phase: str | None = None) -> np.ndarray:
        """Return the examples in the minibatch of every step of a phase, exactly as used in a run.

        Args:
            seed: the seed; ignored if `hold` contains "batches".
            cell: index of the cell.
            phase: name of the phase; the only phase with minibatches by default.

        Returns:
            (steps, B) int; indices of training examples, ascending in each row.

        Raises:
            InputError: the cell, seed or phase does not exist, or the phase does not use minibatches.
        """
        from jaxattn.lab.study.seed import minibatches

        setting = self._setting(seed, cell)
        names = [each.name for each in setting.phases]
        sampled = [each.name for each in setting.phases if each.batch_size]
        if phase is None and len(sampled) != 1:
            raise InputError(
                f"phase: {len(sampled)} phases use minibatches; choose one of {', '.join(names)}"
            )
        if (chosen := phase or sampled[0]) not in names:
            raise InputError(f"phase {chosen}: no such phase; choose one of {', '.join(names)}")
        examples = self.dataset(seed, cell).train.num_examples
        return minibatches(setting, names.index(chosen), seed, examples)

    def trajectory(self, seed: int = 0, cell: int = 0) -> Iterator[tuple[str, int, Params]]:
        """Train one seed of one cell again, and yield its parameters at every step at which a run measures.

        Nothing is read from or written to a results folder. Numbers agree with those of a run up to rounding,
        because a run computes many seeds together.

        Args:
            seed: the seed.
            cell: index of the cell.

        Yields:
            The name of the phase, the step, and the parameters of the model.

        Raises:
            InputError: the cell or seed does not exist, or the data cannot be read.
        """
        from jaxattn.lab.study.seed import parameters_at_steps

        setting, loaded = self._setting(seed, cell), self._loaded(seed, cell)
        return parameters_at_steps(setting, seed, loaded)

    def _setting(self, seed: int, cell: int) -> Setting:
        if not 0 <= cell < len(self.cells):
            raise InputError(f"cell {cell}: the study has cells 0 to {len(self.cells) - 1}")
        if not 0 <= seed <= MAX_INT:
            raise InputError(f"seed {seed}: seeds must be integers from 0 to {MAX_INT:,}")
        return self.cells[cell].setting

    def _loaded(self, seed: int, cell: int) -> Loaded:
        from jaxattn.lab.study.seed import seed_dataset

        setting = self._setting(seed, cell)
        return seed_dataset(setting.data, seed, self.dtype, hold=setting.hold)

    def folder(self, directory: str | Path | None = None) -> Path:
        """Return `directory` as a path, or the default results folder if it is None."""
        return Path(directory) if directory is not None else Path("results") / self.name

    def _repr_html_(self) -> str:
        plan = f"{counted(len(self.cells), 'cell')} × {counted(len(self.seeds), 'seed')}"
        cells = pd.DataFrame([{"cell": cell.number, **cell.settings} for cell in self.cells])
        return f"<p><b>{self.name}</b>: {plan}</p>{cells.head(20).to_html(index=False, escape=True)}"

    def _check_names(self, reader: str) -> None:
        for name in self.custom_kinds:
            if name.startswith("__main__:") or "<locals>" in name:
                raise InputError(
                    f"{name}: cannot be imported by {reader}; move it to a file, such as mine.py"
                )

    def _check_figures(self) -> None:
        if not self.figures:
            return
        from jaxattn.lab.figures import draw as figures  # imports matplotlib

        for number, figure in enumerate(self.figures):
            if not isinstance(kind := figure.get("kind", ""), str):
                raise InputError(f"figures[{number}].kind: expected a name, got {kind!r:.60}")
        phases = dict.fromkeys(phase.name for cell in self.cells for phase in cell.setting.phases)
        axes = dict.fromkeys(key for cell in self.cells for key in cell.settings)
        built_in = {k: figure for k, figure in enumerate(self.figures) if ":" not in str(figure.get("kind"))}
        without_tokens = {
            cell.number for cell in self.cells if not isinstance(cell.setting.model, HasTokenScores)
        }
        figures.check_figures(built_in, phases=list(phases), axes=list(axes), without_tokens=without_tokens)
        for number, figure in enumerate(self.figures):
            if number not in built_in:
                make(concepts.FIGURE, figure, f"figures[{number}]", self.names)
