"""From one seed to many: the functions of `study.seed`, compiled for lanes on all devices."""

import gc
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.base import Progress, SharedData, silent
from jaxattn.core import backend
from jaxattn.core.settings import Spec
from jaxattn.data.splits import Loaded, Splits
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.devices import EVERY, Lifted
from jaxattn.lab.engine.groups import CompileGroup
from jaxattn.lab.study import seed
from jaxattn.lab.study.dry_run import check_data
from jaxattn.lab.study.seed import Carried
from jaxattn.lab.study.setting import Hyperparameters, Setting, with_hyperparameters

# Each holds the memory of a compiler.
THREADS = 4


class Program(NamedTuple):
    """The compiled functions of a phase; all arrays have a leading lane axis, but for shared corpora.

    Attributes:
        phase: the phase.
        probe_steps: steps to measure at, 0 and the last among them.
        begin: (params, splits, numbers, keys) -> carried; the keys are for what is drawn on the way.
        advance: (carried, splits, numbers, k) -> carried after k more steps; the given one is consumed.
        measure: (carried, splits, numbers) -> metrics by probe.
        state_metrics: carried -> metrics that the state itself knows.
        observe: probes of the whole phase, with carried -> what each observes.
        tokens: (params, splits, numbers) -> columns of the token table.
    """

    phase: Any
    probe_steps: list[int]
    begin: Lifted
    advance: Lifted
    measure: Lifted
    state_metrics: Lifted
    observe: list[tuple[Any, Lifted]]
    tokens: Lifted

    def histories(self, carried: Any) -> dict[str, np.ndarray]:
        """Make room for what the probes of the phase observe, (L, probe steps, ...) each."""
        found = {}
        for number, (_, observe) in enumerate(self.observe):
            with jax.enable_x64(True):
                like = observe.shapes(carried)
            found[str(number)] = np.zeros((like.shape[0], len(self.probe_steps), *like.shape[1:]))
        return found


class Shaped(NamedTuple):
    """A program and the shapes that it is called with: enough to compile it.

    Attributes:
        phase: the phase's number; None for what comes before the first.
        place: the phase's name and its own, "query.advance"; or "draw", or "start".
        lifted: the function.
        arguments: shapes.
    """

    phase: int | None
    place: str
    lifted: Lifted
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Its name within the phase."""
        return self.place.rpartition(".")[2]


class Programs:
    """The compiled functions of a setting; each is made when it is first asked for.

    Attributes:
        setting: what the cells of a group have in common.
        text: corpora that all lanes share, or their shapes; None if each lane draws its own.
    """

    def __init__(self, setting: Setting, text: Loaded | None = None) -> None:
        """Compile nothing yet."""
        self.setting, self.text = setting, text
        self._kept: dict[Hashable, Any] = {}
        self._compiled_for: set[int] = set()

    @cached_property
    def drawing(self) -> Lifted:
        """The drawing of corpora: (keys, numbers) -> those of every lane."""

        def draw(key: Array, numbers: Hyperparameters) -> Splits:
            return seed.draw(with_hyperparameters(self.setting, numbers), key)

        # On a CPU one after the other: batched sorts take twice as long to compile, and run no faster.
        return Lifted(draw, (0, 0), per_core=1)

    def draw(self, keys: Array, numbers: Hyperparameters) -> Loaded:
        """Draw the corpora of every lane, or return the text that lanes share.

        Raises:
            InputError: corpora that no study can use.
        """
        if self.text is not None:
            return self.text
        loaded = Loaded(self.drawing(keys, numbers), False, seed.drawn(self.setting).tokens)
        check_data(loaded)
        return loaded

    def starting(self, loaded: Loaded) -> Lifted:
        """The drawing of parameters: (keys, numbers) -> those of every lane."""

        def draw(key: Array, numbers: Hyperparameters, splits: Splits) -> Any:
            return seed.start(with_hyperparameters(self.setting, numbers), splits, key, loaded.tokens)

        def make() -> Lifted:
            # Shapes of the corpora are all that parameters depend on.
            first = partial(jax.tree.map, lambda x: x[0])
            one = loaded.splits if loaded.shared else jax.eval_shape(first, loaded.splits)
            # One after the other: batches of LAPACK's routines wait for each other for ever on several CPU
            # devices.
            return Lifted(partial(draw, splits=one), (0, 0), loaded.shared, per_core=1)

        return self._keep("start", make)

    def start(self, loaded: Loaded, keys: Array, numbers: Hyperparameters) -> Any:
        """Draw the parameters of every lane."""
        return self.starting(loaded)(keys, numbers)

    def phase(self, index: int, loaded: Loaded) -> Program:
        """Make the functions of a phase."""
        return self._keep(index, lambda: _program(self.setting, index, loaded))

    def shaped(self, group: CompileGroup, lanes: int) -> Iterator[Shaped]:
        """List the programs that a batch of some lanes runs, in the order of their first calls.

        To be called, and the programs lowered, in the precision of the study.

        Args:
            group: cells that share the programs.
            lanes: how many, as many as `pad_to_devices` leaves as they are.
        """
        shared = self.text is not None
        fresh, own = (
            partial(devices.shapes, lanes=lanes, in_axis=0, shared=shared, computed=computed)
            for computed in (False, True)
        )
        seeds, numbers = fresh(_keys(lanes)), fresh(_numbers(group, lanes))
        if not shared:
            yield Shaped(None, "draw", self.drawing, (seeds, numbers))
        loaded = self.corpora(group, lanes)
        splits = devices.shapes(loaded.splits, lanes, None if shared else 0, shared, computed=not shared)
        starting = self.starting(loaded)
        yield Shaped(None, "start", starting, (seeds, numbers))
        params = own(starting.shapes(seeds, numbers))
        steps = devices.shapes(jax.ShapeDtypeStruct((), jnp.int32), lanes, None, shared)
        for index, phase in enumerate(self.setting.phases):
            made = self.phase(index, loaded)
            carried = own(made.begin.shapes(params, splits, numbers, seeds))
            functions: list[tuple[str, Lifted, tuple[Any, ...]]] = [
                ("begin", made.begin, (params, splits, numbers, seeds)),
                ("measure", made.measure, (carried, splits, numbers)),
                ("state_metrics", made.state_metrics, (carried,)),
                *(("observe", observe, (carried,)) for _, observe in made.observe),
                ("advance", made.advance, (carried, splits, numbers, steps)),
                ("tokens", made.tokens, (carried.state.params, splits, numbers)),
            ]
            for name, lifted, arguments in functions:
                yield Shaped(index, f"{phase.name}.{name}", lifted, arguments)
            params = carried.state.params

    def corpora(self, group: CompileGroup, lanes: int) -> Loaded:
        """Find the shapes of the corpora of some lanes."""
        if self.text is not None:
            return self.text
        shapes = self.drawing.shapes(_keys(lanes), _numbers(group, lanes))
        return Loaded(shapes, False, seed.drawn(self.setting).tokens)

    def params(self, group: CompileGroup, lanes: int) -> Any:
        """Find the shapes of the parameters of some lanes."""
        return self.starting(self.corpora(group, lanes)).shapes(_keys(lanes), _numbers(group, lanes))

    def compile(self, group: CompileGroup, lanes: int, phase: int = 0, begun: bool = False) -> None:
        """Compile all programs side by side, for calls to come: XLA compiles without Python's lock.

        Args:
            group: cells that share the programs.
            lanes: how many there are.
            phase: the first phase that is run.
            begun: whether that one has begun already.
        """
        if lanes in self._compiled_for:
            return
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "compile") as pool:
            compiling = []
            for each in self.shaped(group, lanes):
                is_done = each.phase is not None and (
                    each.phase < phase or (begun and each.phase == phase and each.name == "begin")
                )
                if not is_done:
                    lowered = each.lifted.lower(*each.arguments)
                    compiling.append(pool.submit(_compile, lowered, each.lifted, self.setting.dtype))
        for each_done in compiling:
            each_done.result()
        if not begun:
            self._compiled_for.add(lanes)

    def _keep(self, name: Hashable, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


class ProgramCache:
    """What batches share: the corpora of a text, and programs, which compile once for a setting."""

    def __init__(self, loading: Progress = silent) -> None:
        """Begin with nothing; `loading` is told how far the reading of texts is."""
        self._loading = loading
        self._text: tuple[Any, Loaded] | None = None
        self._last: tuple[CompileGroup, Programs] | None = None

    def of(self, group: CompileGroup) -> Programs:
        """Return the programs of a group; texts are read.

        Raises:
            InputError: a text that cannot be read.
        """
        if self._last is None or self._last[0] is not group:
            if self._last is not None:
                self._last = None
                gc.collect()  # as in `programs`
            self._last = group, self._make(group.setting)
        return self._last[1]

    def _make(self, setting: Setting) -> Programs:
        data = setting.data
        if not isinstance(data, SharedData):
            return programs(setting)
        if self._text is None or self._text[0] != data:
            self._text = data, data.load(self._loading)
            check_data(self._text[1])
        # Compiled functions hold the corpora, and do not outlive a run.
        return Programs(setting, self._text[1])


def programs(setting: Setting) -> Programs:
    """Return the programs of a setting whose lanes draw their corpora: those of runs before in this process.

    They are new ones for code of the user's, whose globals may have changed since.
    """
    try:
        key = _identity(setting)
    except _UserCode:
        return Programs(setting)
    if key not in _KNOWN:
        if len(_KNOWN) == MOST_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
            # They are in circles, and hold pieces of memory, of which a process may have 65,530.
            gc.collect()
        _KNOWN[key] = Programs(setting)
    return _KNOWN[key]


_KNOWN: dict[Hashable, Programs] = {}
MOST_KNOWN = 8


class _UserCode(Exception):
    """A setting holds something that is not the package's."""


def _identity(x: Any) -> Hashable:
    """Make a key of settings that are equal to the letter: 1 is another number than 1.0."""
    match x:
        case None | bool() | int() | float() | str():
            return type(x), x
        case Spec() if type(x).__module__.startswith("jaxattn."):
            return type(x), tuple(_identity(getattr(x, name)) for name in x.__struct_fields__)
        case Mapping():
            return Mapping, tuple((name, _identity(value)) for name, value in x.items())
        case tuple() | list():
            return type(x), tuple(map(_identity, x))
    raise _UserCode


def seed_keys(seeds: Sequence[int]) -> tuple[Array, Array]:
    """Make the PRNG keys of every seed: (S,) for its data and (S,) for its parameters.

    The keys depend on the seed alone, neither on the grid nor on the other seeds: cells share their random
    numbers, so that differences between settings can be paired, and seeds can be added later.
    """
    return _make_keys(np.asarray(seeds, np.uint32))


@jax.jit
def _make_keys(seeds: Array) -> tuple[Array, Array]:
    return jax.vmap(seed.keys)(seeds)


def _keys(lanes: int) -> Any:
    return jax.eval_shape(_make_keys, jax.ShapeDtypeStruct((lanes,), jnp.uint32))[0]


def _numbers(group: CompileGroup, lanes: int) -> Any:
    return {path: jax.ShapeDtypeStruct((lanes,), dtype) for path, dtype in group.dtypes().items()}


def _compile(lowered: Any, lifted: Lifted, dtype: str) -> None:
    # Settings of JAX are a thread's own.
    with backend.precision(dtype), lifted.precision():
        lowered.compile()


class _Parameters(NamedTuple):
    """What probes of single steps see of a state: a path in float64 stays out of float32 programs."""

    params: Any


def _program(setting: Setting, index: int, loaded: Loaded) -> Program:
    phase = setting.phases[index]
    axis = None if loaded.shared else 0
    lifted = partial(Lifted, shared=loaded.shared)
    moving = partial(lifted, per_core=phase.seeds_per_core, dtype=phase.dtype)
    of_state = partial(lifted, in_axes=(0,), per_core=EVERY, dtype=phase.dtype)

    def begin(params: Any, splits: Splits, numbers: Hyperparameters, key: Array) -> Carried:
        return seed.begin(with_hyperparameters(setting, numbers), index, params, splits, key)

    def advance(carried: Carried, splits: Splits, numbers: Hyperparameters, steps: Array) -> Carried:
        return seed.advance(with_hyperparameters(setting, numbers), index, carried, splits, steps)

    def measure(carried: Carried, splits: Splits, numbers: Hyperparameters) -> seed.Measured:
        return seed.measure(with_hyperparameters(setting, numbers), index, carried, splits)

    def tokens(params: Any, splits: Splits, numbers: Hyperparameters) -> dict[str, Array]:
        return seed.columns(with_hyperparameters(setting, numbers), index, params, splits)

    def view(carried: Carried) -> Carried:
        return carried._replace(state=_Parameters(carried.state.params))

    def observed(probe: Any) -> Lifted:
        return of_state(lambda carried: probe.observe(phase, carried.state))

    probes = seed.phase_probes(setting, index, loaded.splits)
    return Program(
        phase=phase,
        probe_steps=setting.probes.steps_of(phase),
        begin=moving(begin, (0, axis, 0, 0)),
        advance=moving(advance, (0, axis, 0, None), donate_argnums=0),
        measure=lifted(measure, (0, axis, 0), view=view),
        state_metrics=of_state(lambda carried: phase.metrics(carried.state)),
        observe=[(probe, observed(probe)) for probe in probes],
        tokens=lifted(tokens, (0, axis, 0)),
    )
