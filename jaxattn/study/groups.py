"""Groups: cells that differ in numbers only, and run side by side as lanes of one compiled program."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import msgspec
from jax import Array

from jaxattn.study.check import plain
from jaxattn.study.config import ExactFlow, Sweep, Synthetic
from jaxattn.study.grid import PRESENTATION, Cell

# By place and field, for example ("phases.0", "step_size"); one number for every lane.
Numbers = dict[tuple[str, str], Array]
T = TypeVar("T", bound=msgspec.Struct)


class Group(NamedTuple):
    """Cells that one compiled program runs.

    Attributes:
        number: its place among the groups of the sweep.
        config: what the cells have in common; of what differs it has the first cell's numbers, and the
            largest vocabulary, to which the others are padded.
        cells: the cells, in the order of the sweep.
        varying: which numbers differ between the cells.
    """

    number: int
    config: Sweep
    cells: tuple[Cell, ...]
    varying: tuple[tuple[str, str], ...]

    def numbers(self, cells: Sequence[Cell]) -> Numbers:
        """Collect the numbers of some lanes, given the cell of each; arrays (L,)."""
        own = [numbers(cell.config) for cell in cells]
        dtypes = {int: jnp.int32, float: jnp.dtype(self.config.dtype)}
        return {
            key: jnp.asarray([lane[key] for lane in own], dtypes[type(own[0][key])]) for key in self.varying
        }


def groups(cells: Iterable[Cell]) -> list[Group]:
    """Collect cells into groups, in the order of their first cells."""
    members: dict[bytes, list[Cell]] = {}
    for cell in cells:
        members.setdefault(shape(cell.config), []).append(cell)
    return [_group(number, tuple(own)) for number, own in enumerate(members.values())]


def numbers(config: Sweep) -> dict[tuple[str, str], float | int]:
    """List the numbers that every lane of a program may have for itself.

    These are the floating-point numbers of the data and of all phases but the exact flow, whose ends shape
    its rows; and the size of a synthetic vocabulary, by padding.
    """
    tables: list[tuple[str, Any]] = [
        (f"phases.{index}", phase)
        for index, phase in enumerate(config.phases)
        if not isinstance(phase, ExactFlow)
    ]
    found: dict[tuple[str, str], float | int] = {}
    if isinstance(config.data, Synthetic):
        tables.append(("data", config.data))
        found["data", "vocab_size"] = config.data.vocab_size
    for place, table in tables:
        for field, value in msgspec.structs.asdict(table).items():
            if isinstance(value, float):
                found[place, field] = value
    return found


def put(table: T, place: str, numbers: Numbers) -> T:
    """Return a table of the config with the numbers of one lane in it, which may be traced."""
    return msgspec.structs.replace(table, **{field: x for (at, field), x in numbers.items() if at == place})


def shape(config: Sweep) -> bytes:
    """Write down what decides the programs of a cell: its config without numbers a lane may have."""
    kept = {key: value for key, value in plain(config).items() if key not in PRESENTATION}
    for place, field in numbers(config):
        table, _, index = place.partition(".")
        del (kept[table][int(index)] if index else kept[table])[field]
    return msgspec.json.encode(kept, order="deterministic")


def _group(number: int, cells: tuple[Cell, ...]) -> Group:
    each = [numbers(cell.config) for cell in cells]
    varying = tuple(key for key in each[0] if len({own[key] for own in each}) > 1)
    config = cells[0].config
    if isinstance(config.data, Synthetic):
        largest = max(own["data", "vocab_size"] for own in each)
        config = msgspec.structs.replace(
            config, data=msgspec.structs.replace(config.data, vocab_size=largest)
        )
    return Group(number, config, cells, varying)
