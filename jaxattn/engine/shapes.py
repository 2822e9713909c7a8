"""The programs of a compile group with the shapes of their arguments: enough to compile them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxattn.base import DrawnData, SharedData, silent
from jaxattn.data.splits import Loaded
from jaxattn.engine import devices
from jaxattn.engine.groups import CompileGroup
from jaxattn.engine.program import Compiled, Made, drawing, load, make_keys, seed_keys, starting


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


def shaped(
    group: CompileGroup, lanes: int, loaded: Loaded | None = None, made: Made | None = None
) -> Iterator[Shaped]:
    """List the programs that a batch of some lanes runs, in the order of their first calls; texts are read.

    To be called, and the programs lowered, in the precision of the study.

    Args:
        group: cells that share programs.
        lanes: how many, as many as `pad_to_devices` leaves as they are.
        loaded: the text that lanes share, or shapes of the corpora, as `corpora` finds them.
        made: what a run calls; functions of their own by default.
    """
    setting, made = group.setting, made or Made()
    shared = setting.data.shared
    fresh, own = (
        partial(devices.shapes, lanes=lanes, in_axis=0, shared=shared, computed=computed)
        for computed in (False, True)
    )
    seeds, numbers = fresh(_keys(lanes)), fresh(_numbers(group, lanes))
    if isinstance(setting.data, DrawnData):
        draw = made.draw(setting)
        yield Shaped("", "draw", draw, (seeds, numbers))
        loaded = loaded or Loaded(draw.shapes(seeds, numbers), False, setting.data.tokens)
    loaded = loaded or corpora(group, lanes)
    splits = devices.shapes(loaded.splits, lanes, None if shared else 0, shared, computed=not shared)
    begins = made.start(setting, loaded)
    yield Shaped("", "start", begins, (seeds, numbers))
    params = own(begins.shapes(seeds, numbers))
    steps = devices.shapes(jax.ShapeDtypeStruct((), jnp.int32), lanes, None, shared)
    for index, phase in enumerate(setting.phases):
        program = made.phase(setting, index, loaded)
        carried = own(program.begin.shapes(params, splits, numbers, seeds))
        yield Shaped(phase.name, "begin", program.begin, (params, splits, numbers, seeds))
        yield Shaped(phase.name, "measure", program.measure, (carried, splits, numbers))
        yield Shaped(phase.name, "state_metrics", program.state_metrics, (carried,))
        for _, observe in program.observe:
            yield Shaped(phase.name, "observe", observe, (carried,))
        yield Shaped(phase.name, "advance", program.advance, (carried, splits, numbers, steps))
        yield Shaped(phase.name, "tokens", program.tokens, (carried.state.params, splits, numbers))
        params = carried.state.params


def corpora(group: CompileGroup, lanes: int) -> Loaded:
    """Find the shapes of the corpora of some lanes; texts are read."""
    setting = group.setting
    if isinstance(setting.data, SharedData):
        loaded = load(setting, seed_keys([0])[0], silent, {})
        shapes: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), loaded.splits)
        return Loaded(shapes, True, loaded.tokens)
    shapes = drawing(setting).shapes(_keys(lanes), _numbers(group, lanes))
    return Loaded(shapes, False, setting.data.tokens)


def params(group: CompileGroup, loaded: Loaded, lanes: int) -> Any:
    """Find the shapes of the parameters of some lanes."""
    return starting(group.setting, loaded).shapes(_keys(lanes), _numbers(group, lanes))


def _keys(lanes: int) -> Any:
    return jax.eval_shape(make_keys, jax.ShapeDtypeStruct((lanes,), jnp.uint32))[0]


def _numbers(group: CompileGroup, lanes: int) -> Any:
    return {path: jax.ShapeDtypeStruct((lanes,), dtype) for path, dtype in group.dtypes().items()}
