"""The programs of a compile group with the shapes of their arguments: enough to compile them."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxattn.data.splits import Loaded
from jaxattn.data.text import silent
from jaxattn.engine import devices
from jaxattn.engine.groups import CompileGroup
from jaxattn.engine.program import Compiled, drawing, load, program, seed_keys, starting
from jaxattn.study.seed import keys


class Shaped(NamedTuple):
    """A program and the shapes that it is called with.

    Attributes:
        phase: the phase's name; "" for what comes before the first.
        name: "draw", "start", or a function of `program.Program`.
        compiled: the function.
        arguments: shapes.
    """

    phase: str
    name: str
    compiled: Compiled
    arguments: tuple[Any, ...]

    @property
    def place(self) -> str:
        """Its phase and name, "query.advance" or "draw"."""
        return f"{self.phase}.{self.name}" if self.phase else self.name


def shaped(group: CompileGroup, lanes: int, loaded: Loaded | None = None) -> list[Shaped]:
    """List the programs that a batch of some lanes runs, in their order; texts are read.

    To be called, and the programs lowered, in the precision of the study.

    Args:
        group: cells that share programs.
        lanes: how many, as many as `pad_to_devices` leaves as they are.
        loaded: shapes of the corpora, as `corpora` finds them.
    """
    setting = group.setting
    shared = setting.data.shared
    own = partial(devices.shapes, lanes=lanes, in_axis=0, shared=shared)
    seeds, numbers = own(_keys(lanes)), own(_numbers(group, lanes))
    found = [] if shared else [Shaped("", "draw", drawing(setting), (seeds, numbers))]
    loaded = corpora(group, lanes) if loaded is None else loaded
    splits = devices.shapes(loaded.splits, lanes, None if shared else 0, shared)
    begins = starting(setting, loaded)
    found.append(Shaped("", "start", begins, (seeds, numbers)))
    params = own(jax.eval_shape(begins, seeds, numbers))
    steps = devices.shapes(jax.ShapeDtypeStruct((), jnp.int32), lanes, None, shared)
    for index, phase in enumerate(setting.phases):
        made = program(setting, index, loaded)
        carried = own(jax.eval_shape(made.begin, params, splits, numbers, seeds))
        found += [
            Shaped(phase.name, "begin", made.begin, (params, splits, numbers, seeds)),
            Shaped(phase.name, "advance", made.advance, (carried, splits, numbers, steps)),
            Shaped(phase.name, "measure", made.measure, (carried, splits, numbers)),
            Shaped(phase.name, "state_metrics", made.state_metrics, (carried,)),
            *(Shaped(phase.name, "observe", observe, (carried,)) for _, observe in made.observe),
            Shaped(phase.name, "tokens", made.tokens, (carried.state.params, splits, numbers)),
        ]
        params = carried.state.params
    return found


def corpora(group: CompileGroup, lanes: int) -> Loaded:
    """Find the shapes of the corpora of some lanes; texts are read."""
    setting = group.setting
    if setting.data.shared:
        loaded = load(setting, seed_keys([0])[0], silent, {})
        shapes: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), loaded.splits)
        return Loaded(shapes, True, loaded.tokens)
    shapes = jax.eval_shape(drawing(setting), _keys(lanes), _numbers(group, lanes))
    return Loaded(shapes, False, setting.data.tokens)


def params(group: CompileGroup, loaded: Loaded, lanes: int) -> Any:
    """Find the shapes of the parameters of some lanes."""
    return jax.eval_shape(starting(group.setting, loaded), _keys(lanes), _numbers(group, lanes))


def _keys(lanes: int) -> Any:
    return jax.eval_shape(lambda: jax.vmap(keys)(jnp.zeros(lanes, jnp.uint32)))[0]


def _numbers(group: CompileGroup, lanes: int) -> Any:
    return {path: jax.ShapeDtypeStruct((lanes,), dtype) for path, dtype in group.dtypes().items()}
