"""Cut the runs that a results folder lacks into batches that fit in memory."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxattn.core.errors import InputError, counted
from jaxattn.lab.engine import memory
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.storage.batch_record import BatchCell, BatchRecord
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import CompileGroup
from jaxattn.lab.study.identity import Identity
from jaxattn.lab.study.setting import Cell

# Maximum number of batches; each batch is stored in separate files.
MAX_BATCHES = 100_000
_Run = tuple[Cell, int]


class Source(NamedTuple):
    """Finished batch of a shorter last phase, from whose final states a batch continues.

    Attributes:
        name: name of the batch.
        record: its record.
        lanes: for each run of the new batch, the position of the shorter run in the arrays.
    """

    name: str
    record: BatchRecord
    lanes: tuple[int, ...]


class Batch(NamedTuple):
    """Runs of one compile group that are computed together.

    Attributes:
        group: the compile group.
        runs: the cell and seed of each run.
        source: the finished batch from which this batch continues, or None.
    """

    group: CompileGroup
    runs: tuple[_Run, ...]
    source: Source | None = None

    @property
    def cells(self) -> list[Cell]:
        """The cells of the runs."""
        return list({cell.number: cell for cell, _ in self.runs}.values())

    @property
    def width(self) -> int:
        """Number of vmapped runs: one for each (cell, seed) pair."""
        return len(self.runs)

    @property
    def name(self) -> str:
        """Description by cell and seed indices, for messages."""
        cells, seeds = ({cell.number for cell, _ in self.runs}, {seed for _, seed in self.runs})
        return f"{_span('cell', cells)}, {_span('seed', seeds)}"


def _span(name: str, numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{name} {low}" if low == high else f"{name}s {low} to {high}"


def describe_batch(batch: Batch) -> str:
    """Describe a batch by its cell's settings, or by the number of cells if it has several.

    The result ends with a space, or is "" if the study has no axes.
    """
    if len(batch.cells) > 1:
        return f"{len(batch.cells)} cells "
    settings = batch.cells[0].settings.items()
    return "".join(f"{key}={x:g} " if isinstance(x, float) else f"{key}={x} " for key, x in settings)


def batch_cells(batch: Batch, identity: Mapping[int, Identity]) -> tuple[BatchCell, ...]:
    """Return the cells of a batch with their identities, for its record."""
    return tuple(BatchCell(cell.number, *identity[cell.number]) for cell in batch.cells)


def halve(batch: Batch) -> list[Batch]:
    """Split a batch into two halves."""
    middle = batch.width // 2
    halves = []
    for part in (slice(middle), slice(middle, None)):
        source = batch.source and batch.source._replace(lanes=batch.source.lanes[part])
        halves.append(Batch(batch.group, batch.runs[part], source))
    return halves


def choose_runs(batch: Batch, runs: Collection[tuple[int, int]]) -> Batch:
    """Return a batch of only some runs, each given by the index of its cell and its seed."""
    kept = [lane for lane, (cell, seed) in enumerate(batch.runs) if (cell.number, seed) in runs]
    source = batch.source and batch.source._replace(lanes=tuple(batch.source.lanes[lane] for lane in kept))
    return Batch(batch.group, tuple(batch.runs[lane] for lane in kept), source)


def widths(
    study: Definition,
    missing: Mapping[int, Sequence[_Run]],
    groups: Sequence[CompileGroup],
    cache: ProgramCache,
    max_memory: int | None,
    shards: int = 1,
    raising: Collection[int] = (),
    progress: Callable[[str, float], None] = lambda description, fraction: None,
) -> dict[int, int]:
    """Return the maximum number of runs to compute together, for each group with missing runs.

    Args:
        study: the study.
        missing: the missing runs of each group, by its index.
        groups: the compile groups.
        cache: cache of compiled programs.
        max_memory: memory limit in bytes per device; defaults to the device memory.
        shards: number of shards, each of which gets a batch if there are enough runs.
        raising: indices of groups whose custom code always raises an exception.
        progress: callback that receives a description and the fraction completed.

    Raises:
        InputError: a single run does not fit in memory.
    """
    budget = max_memory or memory.default_budget()

    def note(group: CompileGroup) -> None:
        progress(f"memory of compile group {group.number + 1} of {len(groups)}", group.number / len(groups))

    found = {}
    for number, runs in missing.items():
        group = groups[number]
        if study.chunk:
            fitting = study.chunk
        elif number in raising:
            fitting = len(runs)
        else:
            fitting = memory.fitting_width(group, cache.of(group), len(runs), budget, note)
        found[number] = min(fitting, math.ceil(len(runs) / shards))
    return found


def cut(runs: Sequence[_Run], width: int) -> list[tuple[_Run, ...]]:
    """Split runs into as few parts of nearly equal size as possible, each of at most `width` runs.

    Raises:
        InputError: there would be too many parts for one folder.
    """
    parts = math.ceil(len(runs) / width)
    if parts > MAX_BATCHES:
        raise InputError(
            f"chunk: {len(runs):,} runs in batches of {width:,} need more than {MAX_BATCHES:,} batches; "
            "increase chunk or --max-memory, or sweep fewer settings"
        )
    size = math.ceil(len(runs) / max(parts, 1))
    return [tuple(runs[first : first + size]) for first in range(0, len(runs), size or 1)]


def cut_rest(runs: Sequence[_Run], rest: Sequence[_Run], width: int) -> list[tuple[_Run, ...]]:
    """Split the rest of some runs, like `cut`.

    If the other runs are whole parts of all runs, then so are the parts of the rest. A study that was
    interrupted therefore continues with the batches that it would have had.
    """
    left = {(cell.number, seed) for cell, seed in rest}
    parts = []
    for part in cut(runs, width) if rest else ():
        own = {(cell.number, seed) for cell, seed in part}
        if own <= left:
            parts.append(part)
        elif own & left:
            return cut(rest, width)
    return parts


def partial_runs(
    partials: Iterable[BatchRecord], missing: Collection[_Run], identity: Mapping[int, Identity]
) -> list[tuple[_Run, ...]]:
    """Return the runs of the partial batches whose runs are all missing, each run at most once.

    Args:
        partials: records of partial batches that have saved something, or are being computed.
        missing: the missing runs, all of one compile group.
        identity: identity of each cell, by its index.
    """
    left = {(identity[cell.number].key, seed): (cell, seed) for cell, seed in missing}
    found = []
    for record in partials:
        if all(run in left for run in record.identities):
            found.append(tuple(left.pop(run) for run in record.identities))
    return found


def select_shard(items: list[Any], shard: tuple[int, int]) -> list[Any]:
    """Return the items of shard (I, N): every N-th one, starting from item I.

    Raises:
        InputError: the shard does not exist or would be empty.
    """
    which, shards = shard
    if not 1 <= which <= shards:
        raise InputError(f"shard {which}/{shards}: the index must be between 1 and {shards}, e.g. 1/{shards}")
    if which > len(items):
        raise InputError(
            f"shard {which}/{shards}: too few batches ({len(items)}); use at most "
            f"{counted(len(items), 'shard')}, or create more batches with a smaller chunk (--set chunk=...)"
        )
    return items[which - 1 :: shards]
