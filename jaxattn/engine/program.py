"""One phase of a study as compiled functions over many lanes: `study.seed` lifted, nothing else."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jaxattn import backend
from jaxattn.base import Progress, SharedData
from jaxattn.data.splits import Loaded, Splits
from jaxattn.engine import devices
from jaxattn.engine.devices import shard, vmap_over_devices
from jaxattn.spec import Spec
from jaxattn.study import seed
from jaxattn.study.hyperparameters import Hyperparameters, used_tokens, with_hyperparameters
from jaxattn.study.seed import Carried
from jaxattn.study.setting import Setting


class Compiled:
    """A function of many lanes that is compiled for what it is called with.

    Where float64 needs the host, what it is called with is moved to where it runs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        in_axes: Sequence[int | None],
        shared: bool = False,
        dtype: str | None = None,
        look: Callable[[Any], Any] = lambda first: first,
        **options: Any,
    ):
        """Wrap a function.

        Args:
            function: pure function of pytrees of arrays.
            in_axes: for every argument 0 if each lane has its own, None if all lanes share it.
            shared: whether lanes share a corpus.
            dtype: with "float64" it is compiled in float64 whatever the session's setting.
            look: what it sees of its first argument.
            options: those of `jax.jit`.
        """
        self._compiled = jax.jit(function, **options)
        self._in_axes, self._shared, self._look = tuple(in_axes), shared, look
        self._double = dtype == "float64"
        self._ahead: Future[None] | None = None

    def __call__(self, first: Any, *others: Any) -> Any:
        """Call it, once what compiles it ahead is done."""
        if self._ahead is not None:
            # What failed there fails here again, where it is told.
            ahead, self._ahead = self._ahead, None
            wait([ahead])
        return self._call(first, *others)

    def shapes(self, first: Any, *others: Any) -> Any:
        """Tell the shapes of what it returns, given those of its arguments; waits for nothing."""
        return jax.eval_shape(self._call, first, *others)

    def _call(self, first: Any, *others: Any) -> Any:
        with self.precision():
            arguments = self._look(first), *others
            if backend.has_host():
                arguments = devices.moved(arguments, self._in_axes, self._shared)
            return self._compiled(*arguments)

    def lower(self, first: Any, *others: Any) -> Any:
        """Lower it for arguments or their shapes, as `jax.jit` does."""
        with self.precision():
            return self._compiled.lower(self._look(first), *others)

    def compile_ahead(self, submit: Callable[..., Future[None]], *arguments: Any) -> None:
        """Lower it for shapes of arguments and let `submit` compile it: JAX keeps it for the call to come."""
        lowered = self.lower(*arguments)

        def compile() -> None:
            with self.precision():
                lowered.compile()

        self._ahead = submit(compile)

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host, as the devices lack float64."""
        return self._double and backend.platform() in backend.WITHOUT_FLOAT64

    def precision(self) -> Any:
        """Make the precision, and choose the devices, that it is compiled for."""
        return backend.float64() if self._double else nullcontext()


class Program(NamedTuple):
    """The compiled functions of a phase; all arrays have a leading lane axis, but for shared corpora.

    Attributes:
        phase: the phase.
        probe_steps: steps to measure at, 0 and the last among them.
        begin: (params, splits, numbers, keys) -> carried; the keys are for what is drawn on the way.
        advance: (carried, splits, numbers, k) -> carried after k more steps; the given one is consumed.
        measure: (carried, splits, numbers) -> metrics by probe.
        state_metrics: carried -> metrics that the state itself knows.
        observe: probes of the whole phase, with (carried, numbers) -> what each looks at.
        tokens: (params, splits, numbers) -> columns of the token table.
    """

    phase: Any
    probe_steps: list[int]
    begin: Compiled
    advance: Compiled
    measure: Compiled
    state_metrics: Compiled
    observe: list[tuple[Any, Compiled]]
    tokens: Compiled


def seed_keys(seeds: Sequence[int]) -> tuple[Array, Array]:
    """Make the PRNG keys of every seed: (S,) for its data and (S,) for its parameters.

    The keys depend on the seed alone, neither on the grid nor on the other seeds: cells share their random
    numbers, so that differences between settings can be paired, and seeds can be added later.
    """
    return make_keys(np.asarray(seeds, np.uint32))


@jax.jit
def make_keys(seeds: Array) -> tuple[Array, Array]:
    """Make the PRNG keys of seeds (S,) uint32; see `seed_keys`."""
    return jax.vmap(seed.keys)(seeds)


def load(setting: Setting, keys: Array, progress: Progress, numbers: Hyperparameters) -> Loaded:
    """Load the corpora that all lanes share, or draw those of every lane.

    Args:
        setting: what the cells of a group have in common.
        keys: (L,) PRNG keys of the lanes' data.
        progress: called with (description, done, total) while texts are read.
        numbers: what lanes have of their own, (L,) each.

    Raises:
        InputError: data that cannot be read, sizes that do not fit.
    """
    if isinstance(setting.data, SharedData):
        return setting.data.load(progress)
    return Loaded(drawing(setting)(keys, numbers), False, setting.data.tokens)


def drawing(setting: Setting) -> Compiled:
    """Compile the drawing of corpora: (keys, numbers) -> those of every lane."""

    def draw(key: Array, numbers: Hyperparameters) -> Splits:
        return seed.draw(with_hyperparameters(setting, numbers), key, used_tokens(numbers))

    # On a CPU one after the other: batched sorts take twice as long to compile, and run no faster.
    return Compiled(vmap_over_devices(draw, (0, 0), per_core=1), (0, 0))


def start(setting: Setting, loaded: Loaded, keys: Array, numbers: Hyperparameters) -> Any:
    """Draw the parameters of every lane."""
    return starting(setting, loaded)(keys, numbers)


def starting(setting: Setting, loaded: Loaded) -> Compiled:
    """Compile the drawing of parameters: (keys, numbers) -> those of every lane."""

    def draw(key: Array, numbers: Hyperparameters, splits: Splits) -> Any:
        own = with_hyperparameters(setting, numbers)
        return seed.start(own, splits, key, loaded.tokens, used_tokens(numbers))

    # Shapes of the corpora are all that parameters depend on.
    one = (
        loaded.splits
        if loaded.shared
        else jax.eval_shape(partial(jax.tree.map, lambda x: x[0]), loaded.splits)
    )
    # One after the other: batches of LAPACK's routines wait for each other for ever on several CPU devices.
    lifted = vmap_over_devices(partial(draw, splits=one), (0, 0), loaded.shared, per_core=1)
    return Compiled(lifted, (0, 0), loaded.shared)


def program(setting: Setting, index: int, loaded: Loaded) -> Program:
    """Make the compiled functions of a phase.

    Args:
        setting: what the cells of a group have in common.
        index: which of its phases.
        loaded: corpora, shared by the lanes or one for each.

    Returns:
        The program; nothing is compiled before its first call.
    """
    phase = setting.phases[index]
    axis = None if loaded.shared else 0

    def compiled(
        function: Callable[..., Any], in_axes: tuple[int | None, ...], few: int | None = None, **options: Any
    ) -> Compiled:
        lifted = vmap_over_devices(function, in_axes, loaded.shared, per_core=few)
        return Compiled(lifted, in_axes, loaded.shared, **options)

    def of_state(function: Callable[[Carried], Any]) -> Compiled:
        lifted = shard(jax.vmap(function), (0,), loaded.shared)
        return Compiled(lifted, (0,), loaded.shared, dtype=phase.dtype)

    def begin(params: Any, splits: Splits, numbers: Hyperparameters, key: Array) -> Carried:
        own = with_hyperparameters(setting, numbers)
        return seed.begin(own, index, params, splits, key, used_tokens(numbers))

    def advance(carried: Carried, splits: Splits, numbers: Hyperparameters, steps: Array) -> Carried:
        own = with_hyperparameters(setting, numbers)
        return seed.advance(own, index, carried, splits, steps, used_tokens(numbers))

    def measure(carried: Carried, splits: Splits, numbers: Hyperparameters) -> seed.Measured:
        return seed.measure(with_hyperparameters(setting, numbers), index, carried, splits)

    def tokens(params: Any, splits: Splits, numbers: Hyperparameters) -> dict[str, Array]:
        return seed.columns(with_hyperparameters(setting, numbers), index, params, splits)

    few = phase.seeds_per_core
    own = seed.phase_probes(setting, index, loaded.splits)

    def look(carried: Carried) -> Carried:
        return carried._replace(state=_Parameters(carried.state.params))

    return Program(
        phase=phase,
        probe_steps=setting.probes.steps_of(phase),
        begin=compiled(begin, (0, axis, 0, 0), few, dtype=phase.dtype),
        advance=compiled(advance, (0, axis, 0, None), few, dtype=phase.dtype, donate_argnums=0),
        measure=compiled(measure, (0, axis, 0), look=look),
        state_metrics=of_state(lambda carried: phase.metrics(carried.state)),
        observe=[(probe, of_state(partial(_observe, probe, phase))) for probe in own],
        tokens=compiled(tokens, (0, axis, 0)),
    )


def _observe(probe: Any, phase: Any, carried: Carried) -> Array:
    return probe.observe(phase, carried.state)


class Made:
    """What is compiled for a setting; each function is made when it is first asked for.

    Attributes:
        ahead: numbers of lanes that all of them were compiled for.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.ahead: set[int] = set()
        self._kept: dict[Hashable, Any] = {}

    def draw(self, setting: Setting) -> Compiled:
        """Draw the corpora of every lane; see `drawing`."""
        return self._keep("draw", lambda: drawing(setting))

    def start(self, setting: Setting, loaded: Loaded) -> Compiled:
        """Draw the parameters of every lane; see `starting`."""
        return self._keep("start", lambda: starting(setting, loaded))

    def phase(self, setting: Setting, index: int, loaded: Loaded) -> Program:
        """Run a phase; see `program`."""
        return self._keep(index, lambda: program(setting, index, loaded))

    def _keep(self, name: Hashable, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


def made_before(setting: Setting) -> Made:
    """Find what runs of this process have made of a setting, for the next one to use and to add to.

    It is empty at first, and always for code of the user's, whose globals may have changed since, and for
    corpora of a text, which compiled functions hold.
    """
    try:
        return Made() if setting.data.shared else _made(_identity(setting))
    except _OwnCode:
        return Made()


@lru_cache(maxsize=8)
def _made(_: Hashable) -> Made:
    return Made()


class _OwnCode(Exception):
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
    raise _OwnCode


class _Parameters(NamedTuple):
    """What probes of single steps see of a state: a path in float64 stays out of float32 programs."""

    params: Any
