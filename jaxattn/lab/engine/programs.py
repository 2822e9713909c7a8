"""Vectorise the single-seed functions of `study.seed` over many runs on all devices, and compile them."""

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.core import backend
from jaxattn.data.splits import Loaded, Splits
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.devices import EVERY, BatchedFunction
from jaxattn.lab.study import seed
from jaxattn.lab.study.groups import CompileGroup
from jaxattn.lab.study.randomness import Keys, keys
from jaxattn.lab.study.seed import Carried
from jaxattn.lab.study.setting import (
    Hyperparameters,
    Setting,
    with_hyperparameters,
)

# Number of threads that compile in parallel. Each thread needs memory.
_THREADS = 4


class Program(NamedTuple):
    """Compiled functions for one phase. All arrays except shared corpora have a leading axis of vmapped runs.

    `carried` is the state of the phase; `hyperparameters` are the numeric settings that differ between runs.

    Attributes:
        phase: the phase.
        probe_steps: steps at which to measure, including 0 and the last step.
        begin: (params, splits, hyperparameters, keys) -> carried, with PRNG keys for the phase.
        advance: (carried, splits, hyperparameters, k) -> carried after k more steps; `carried` is donated.
        measure: (carried, splits, hyperparameters) -> metrics by probe.
        state_metrics: (carried, hyperparameters) -> metrics computed from the state alone.
        observe: for each whole-phase probe, (carried, hyperparameters) -> observation.
        tokens: (params, splits, hyperparameters) -> columns of the token table.
    """

    phase: Any
    probe_steps: list[int]
    begin: BatchedFunction
    advance: BatchedFunction
    measure: BatchedFunction
    state_metrics: BatchedFunction
    observe: list[BatchedFunction]
    tokens: BatchedFunction

    def histories(self, carried: Any, hyperparameters: Any) -> dict[str, np.ndarray]:
        """Return arrays of zeros for the whole-phase observations, keyed by the index in `observe`.

        The shapes are (L, k, ...) for L runs and k probe steps.
        """
        found = {}
        for number, observe in enumerate(self.observe):
            with jax.enable_x64(True):
                like = observe.shapes(carried, hyperparameters)
            found[str(number)] = np.zeros((like.shape[0], len(self.probe_steps), *like.shape[1:]))
        return found


class PhaseProgram(NamedTuple):
    """Program of a phase, or one that runs before the first phase, with the shapes of its arguments.

    Attributes:
        phase: index of the phase; None for programs that run before the first phase.
        location: names of the phase and the program, such as "query.advance"; "draw" or "start" before
            the first phase.
        function: the function, vmapped over runs and devices.
        arguments: shapes of its arguments.
    """

    phase: int | None
    location: str
    function: BatchedFunction
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Return the name of the program within the phase."""
        return self.location.rpartition(".")[2]


class Programs:
    """Compiled functions for one setting, each built on first use.

    Attributes:
        setting: the setting, which all cells of a compile group share.
        shared_data: data that all vmapped runs share, or their shapes; None if data are sampled for each run.
        compiled: True if some of the functions may have been compiled, rather than only traced.
    """

    def __init__(self, setting: Setting, shared_data: Loaded | None = None) -> None:
        """Store the setting and the data without compiling anything."""
        self.setting, self.shared_data = setting, shared_data
        self.compiled = False
        self._kept: dict[Hashable, Any] = {}
        self._compiled_for: set[int] = set()

    @cached_property
    def drawing(self) -> BatchedFunction:
        """Return the function (keys, hyperparameters) -> data, which samples the data of all vmapped runs."""

        def draw(key: Array, hyperparameters: Hyperparameters) -> Splits:
            return seed.draw_data(with_hyperparameters(self.setting, hyperparameters), key)

        # Sample one run at a time on a CPU: batched sorts take twice as long to compile and are not faster.
        return BatchedFunction(draw, (0, 0), per_core=1)

    def draw(self, keys: Array, hyperparameters: Hyperparameters) -> Loaded:
        """Sample data for each run, or return the data shared by all runs.

        Raises:
            InputError: the data are unusable.
        """
        self.compiled = True
        if self.shared_data is not None:
            return self.shared_data
        loaded = Loaded(self.drawing(keys, hyperparameters), False, seed.sampled_data(self.setting).tokens)
        seed.check_data(loaded)
        return loaded

    def starting(self, loaded: Loaded) -> BatchedFunction:
        """Return the function (keys, hyperparameters) -> params, which initialises all vmapped runs."""

        def draw(key: Array, hyperparameters: Hyperparameters, splits: Splits) -> Any:
            return seed.initial_params(
                with_hyperparameters(self.setting, hyperparameters), splits, key, loaded.tokens
            )

        def make() -> BatchedFunction:
            # The initial parameters depend only on the shapes of the data, not on their values.
            first = partial(jax.tree.map, lambda x: x[0])
            one = loaded.splits if loaded.shared else jax.eval_shape(first, loaded.splits)
            # Initialise one run at a time, because batched LAPACK routines deadlock if there are several CPU
            # devices.
            return BatchedFunction(partial(draw, splits=one), (0, 0), loaded.shared, per_core=1)

        return self._keep("start", make)

    def start(self, loaded: Loaded, keys: Array, hyperparameters: Hyperparameters) -> Any:
        """Compute the initial parameters of each run."""
        return self.starting(loaded)(keys, hyperparameters)

    def phase(self, index: int, loaded: Loaded) -> Program:
        """Return the compiled functions for a phase."""
        return self._keep(index, lambda: _program(self.setting, index, loaded))

    def phase_programs(self, group: CompileGroup, runs: int) -> Iterator[PhaseProgram]:
        """Yield the programs for a batch in the order in which they are first called.

        Call this function, and lower the programs, in the study's precision. `runs` includes padding.
        """
        shared = self.shared_data is not None
        fresh, own = (
            partial(devices.shape_structs, runs=runs, in_axis=0, shared=shared, computed=computed)
            for computed in (False, True)
        )
        seeds, hyperparameters = fresh(_keys(runs)), fresh(_hyperparameters(group, runs))
        if not shared:
            yield PhaseProgram(None, "draw", self.drawing, (seeds, hyperparameters))
        loaded = self.corpora(group, runs)
        splits = devices.shape_structs(
            loaded.splits, runs, None if shared else 0, shared, computed=not shared
        )
        starting = self.starting(loaded)
        yield PhaseProgram(None, "start", starting, (seeds, hyperparameters))
        params = own(starting.shapes(seeds, hyperparameters))
        steps = devices.shape_structs(jax.ShapeDtypeStruct((), jnp.int32), runs, None, shared)
        for index, phase in enumerate(self.setting.phases):
            made = self.phase(index, loaded)
            carried = own(made.begin.shapes(params, splits, hyperparameters, seeds))
            functions: list[tuple[str, BatchedFunction, tuple[Any, ...]]] = [
                ("begin", made.begin, (params, splits, hyperparameters, seeds)),
                ("measure", made.measure, (carried, splits, hyperparameters)),
                ("state_metrics", made.state_metrics, (carried, hyperparameters)),
                *(("observe", observe, (carried, hyperparameters)) for observe in made.observe),
                ("advance", made.advance, (carried, splits, hyperparameters, steps)),
                ("tokens", made.tokens, (carried.state.params, splits, hyperparameters)),
            ]
            for name, function, arguments in functions:
                yield PhaseProgram(index, f"{phase.name}.{name}", function, arguments)
            params = carried.state.params

    def corpora(self, group: CompileGroup, runs: int) -> Loaded:
        """Return the data if all runs share them; otherwise, return their shapes for `runs` vmapped runs."""
        if self.shared_data is not None:
            return self.shared_data
        shapes = self.drawing.shapes(_keys(runs), _hyperparameters(group, runs))
        return Loaded(shapes, False, seed.sampled_data(self.setting).tokens)

    def params(self, group: CompileGroup, runs: int) -> Any:
        """Return the shapes of the parameters for `runs` vmapped runs."""
        return self.starting(self.corpora(group, runs)).shapes(_keys(runs), _hyperparameters(group, runs))

    def compile(self, group: CompileGroup, runs: int, phase: int = 0, resumed: bool = False) -> None:
        """Compile all remaining programs in parallel threads, before they are called.

        `phase` is the index of the first phase to run, and `resumed` is True if it resumes from a checkpoint.
        """
        if runs in self._compiled_for:
            return
        self.compiled = True
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "compile") as pool:
            compiling = []
            for each in self.phase_programs(group, runs):
                is_done = each.phase is not None and (
                    each.phase < phase or (resumed and each.phase == phase and each.name == "begin")
                )
                if not is_done:
                    lowered = each.function.lower(*each.arguments)
                    compiling.append(pool.submit(_compile, lowered, each.function, self.setting.dtype))
        for each_done in compiling:
            each_done.result()
        if not resumed:
            self._compiled_for.add(runs)

    def _keep(self, name: Hashable, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


def seed_keys(seeds: Sequence[int], hold: tuple[str, ...] = ()) -> Keys:
    """Return the PRNG keys for all seeds; each array has shape (S,).

    The keys depend only on the seed and on `hold`. All cells therefore use the same random numbers, so
    settings can be compared pairwise for each seed, and seeds can be added later.
    """
    return _make_keys(np.asarray(seeds, np.uint32), hold)


@partial(jax.jit, static_argnames="hold")
def _make_keys(seeds: Array, hold: tuple[str, ...] = ()) -> Keys:
    return jax.vmap(partial(keys, hold=hold), axis_size=len(seeds))(seeds)


def _keys(runs: int) -> Any:
    return jax.eval_shape(_make_keys, jax.ShapeDtypeStruct((runs,), jnp.uint32)).data


def _hyperparameters(group: CompileGroup, runs: int) -> Any:
    return {path: jax.ShapeDtypeStruct((runs,), dtype) for path, dtype in group.dtypes().items()}


def _compile(lowered: Any, function: BatchedFunction, dtype: str) -> None:
    # JAX's settings are thread-local, so they must be set in each thread.
    with backend.precision(dtype), function.precision():
        lowered.compile()


class _Parameters(NamedTuple):
    """Phase state for step probes. It has no float64 fields, because float32 programs do not accept them."""

    params: Any


def _program(setting: Setting, index: int, loaded: Loaded) -> Program:
    phase = setting.phases[index]
    axis = None if loaded.shared else 0
    batched = partial(BatchedFunction, shared=loaded.shared)
    moving = partial(batched, per_core=phase.seeds_per_core, dtype=phase.dtype)
    of_state = partial(batched, in_axes=(0, 0), per_core=EVERY, dtype=phase.dtype)

    def begin(params: Any, splits: Splits, hyperparameters: Hyperparameters, key: Array) -> Carried:
        return seed.begin_phase(with_hyperparameters(setting, hyperparameters), index, params, splits, key)

    def advance(carried: Carried, splits: Splits, hyperparameters: Hyperparameters, steps: Array) -> Carried:
        return seed.advance(with_hyperparameters(setting, hyperparameters), index, carried, splits, steps)

    def measure(carried: Carried, splits: Splits, hyperparameters: Hyperparameters) -> seed.ProbeMetrics:
        return seed.measure_probes(with_hyperparameters(setting, hyperparameters), index, carried, splits)

    def tokens(params: Any, splits: Splits, hyperparameters: Hyperparameters) -> dict[str, Array]:
        return seed.columns(with_hyperparameters(setting, hyperparameters), index, params, splits)

    def view(carried: Carried) -> Carried:
        return carried._replace(state=_Parameters(carried.state.params))

    def state_metrics(carried: Carried, hyperparameters: Hyperparameters) -> dict[str, Array]:
        return with_hyperparameters(setting, hyperparameters).phases[index].metrics(carried.state)

    def observed(number: int) -> BatchedFunction:
        def observe(carried: Carried, hyperparameters: Hyperparameters) -> Array:
            own = with_hyperparameters(setting, hyperparameters)
            probe = seed.phase_probes(own, index, loaded.splits)[number]
            return probe.observe(own.phases[index], carried.state)

        return of_state(observe)

    probes = seed.phase_probes(setting, index, loaded.splits)
    return Program(
        phase=phase,
        probe_steps=setting.probes.steps_of(phase),
        begin=moving(begin, (0, axis, 0, 0)),
        advance=moving(advance, (0, axis, 0, None), donate_argnums=0),
        measure=batched(measure, (0, axis, 0), view=view),
        state_metrics=of_state(state_metrics),
        observe=[observed(number) for number in range(len(probes))],
        tokens=batched(tokens, (0, axis, 0)),
    )
