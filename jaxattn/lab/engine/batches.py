"""Split a study into batches of seeds and cells that fit in memory, and assign the batches to shards."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxattn.core.errors import InputError, counted
from jaxattn.lab.engine import memory
from jaxattn.lab.engine.programs import ProgramCache
from jaxattn.lab.storage.batch_state import spans
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import CompileGroup, compile_groups
from jaxattn.lab.study.setting import Cell

# Maximum number of batches; each batch is stored in separate files.
MAX_BATCHES = 100_000


class Batch(NamedTuple):
    """Seeds and cells of one compile group that run together."""

    group: CompileGroup
    cells: tuple[Cell, ...]
    seeds: range

    @property
    def name(self) -> str:
        """Return the batch's name, which is built from its cell and seed ranges and unique in the study."""
        first, last = self.cells[0].number, self.cells[-1].number
        return f"cells-{first:05d}-{last:05d}-seeds-{self.seeds.start:05d}-{self.seeds.stop - 1:05d}"

    @property
    def configs(self) -> dict[str, str]:
        """Return the config hash of each cell, keyed by cell number."""
        return {str(cell.number): cell.config_hash for cell in self.cells}

    @property
    def width(self) -> int:
        """Return the number of vmapped runs: one for each (cell, seed) pair."""
        return len(self.cells) * len(self.seeds)

    @property
    def runs(self) -> list[tuple[Cell, int]]:
        """Return the cell and seed of each vmapped run, ordered by cell."""
        return [(cell, seed) for cell in self.cells for seed in self.seeds]


def describe_batch(batch: Batch) -> str:
    """Describe a batch by its cell's settings, or by the number of cells if it has several.

    The result ends with a space, or is "" if the study has no axes.
    """
    if len(batch.cells) > 1:
        return f"{len(batch.cells)} cells "
    settings = batch.cells[0].settings.items()
    return "".join(f"{key}={x:g} " if isinstance(x, float) else f"{key}={x} " for key, x in settings)


def halved(batch: Batch) -> list[Batch]:
    """Split a batch into two halves by seed, or by cell if it has only one seed."""
    seeds, cells = batch.seeds, batch.cells
    if len(seeds) > 1:
        middle = len(seeds) // 2
        return [Batch(batch.group, cells, seeds[:middle]), Batch(batch.group, cells, seeds[middle:])]
    middle = len(cells) // 2
    return [Batch(batch.group, cells[:middle], seeds), Batch(batch.group, cells[middle:], seeds)]


def cut_batches(
    study: Definition,
    groups: Sequence[CompileGroup],
    existing: Sequence[str],
    known: Mapping[str, Any],
    cache: ProgramCache,
    max_memory: int | None,
    shards: int = 1,
    raising: frozenset[int] = frozenset(),
    progress: Callable[[str, float], None] = lambda description, fraction: None,
) -> tuple[list[int], list[Batch]]:
    """Split a study into batches; return the maximum batch size of each group, in runs, and the batches.

    The batches in the results folder, named in `existing`, are preserved, so that results do not change.
    `known` is the manifest of this folder. If `max_memory` (bytes per device) is given, the remaining runs
    are split again to stay within this limit. Each shard gets at least one batch. `raising` contains the
    indices of groups whose custom code always raises an exception.

    Raises:
        InputError: a cell does not fit in memory, or the folder contains results of a different config.
    """
    planned = {batch["name"] for batch in known["batches"]} | set(known["elsewhere"])
    kept = known["widths"] if existing and max_memory is None else []
    if existing and not planned:
        # The manifest was lost, so infer each group's batch size from its largest batch.
        old = cut(groups, (), existing, [1] * len(groups))
        kept = [max((len(b.runs) for b in old if b.group is group), default=0) for group in groups]
    if len(kept) != len(groups) or not all(kept):
        budget = max_memory or memory.default_budget()
        kept = _widths(study, groups, cache, budget, shards, raising, progress)
    asked = set(study.seeds)
    still = {name for name in planned if max_memory is None and asked.issuperset(spans(name)[1])}
    whole = cut(groups, study.seeds, [], kept)
    if {*existing, *still} <= {batch.name for batch in whole}:
        return kept, whole
    return kept, cut(groups, study.seeds, sorted({*existing, *still}), kept)


def _widths(
    study: Definition,
    groups: Sequence[CompileGroup],
    cache: ProgramCache,
    budget: int,
    shards: int,
    raising: frozenset[int],
    progress: Callable[[str, float], None],
) -> list[int]:
    def note(group: CompileGroup) -> None:
        progress(f"memory of compile group {group.number + 1} of {len(groups)}", group.number / len(groups))

    widths = []
    for group in groups:
        runs = len(group.cells) * len(study.seeds)
        if study.chunk:
            fitting = study.chunk
        elif group.number in raising:
            fitting = runs
        else:
            fitting = memory.fitting_width(group, cache.of(group), runs, budget, note)
        widths.append(min(fitting, math.ceil(runs / shards)))
    return widths


def cut(
    groups: Sequence[CompileGroup], seeds: Sequence[int], known: Sequence[str], widths: Sequence[int]
) -> list[Batch]:
    """Split the runs of each compile group into batches, ordered by group, cells and seeds.

    Args:
        groups: compile groups.
        seeds: seeds requested for each cell.
        known: names of existing batches, which are preserved regardless of the requested seeds.
        widths: maximum number of vmapped runs in a batch, for each group.

    Raises:
        InputError: there are too many batches for one folder.
    """
    batches: list[Batch] = []
    for group, width, old in zip(groups, widths, _existing_batches(groups, known), strict=True):
        new = itertools.islice(_cut_new(group, old, seeds, width), MAX_BATCHES + 1)
        batches += sorted([*old, *new], key=lambda batch: (batch.cells[0].number, batch.seeds.start))
        if len(batches) > MAX_BATCHES:
            raise InputError(
                f"chunk: {len(group.cells):,} cells × {len(seeds):,} seeds in batches of {width:,} need "
                f"more than {MAX_BATCHES:,} batches; increase chunk or --max-memory, or sweep fewer "
                "settings"
            )
    return batches


def _existing_batches(groups: Sequence[CompileGroup], known: Sequence[str]) -> list[list[Batch]]:
    positions = {
        cell.number: (k, index) for k, group in enumerate(groups) for index, cell in enumerate(group.cells)
    }
    old: list[list[Batch]] = [[] for _ in groups]
    for between, seeds in map(spans, known):
        # File names are untrusted and may contain an empty range.
        if between and seeds and between.start in positions:
            k, index = positions[between.start]
            end = bisect.bisect_left(groups[k].cells, between.stop, key=lambda cell: cell.number)
            old[k].append(Batch(groups[k], groups[k].cells[index:end], seeds))
    return old


def _cut_new(group: CompileGroup, old: Sequence[Batch], seeds: Sequence[int], width: int) -> Iterator[Batch]:
    there: dict[int, tuple[range, ...]] = {}
    for batch in old:
        for cell in batch.cells:
            there[cell.number] = (*there.get(cell.number, ()), batch.seeds)

    @functools.cache
    def missing(ranges: tuple[range, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(seeds).difference(*ranges)))

    for wanted, some in itertools.groupby(group.cells, lambda cell: missing(there.get(cell.number, ()))):
        together = tuple(some)
        for run in _runs(wanted):
            yield from (Batch(group, *part) for part in _rectangles(together, run, width))


def select_shard(batches: list[Batch], shard: tuple[int, int]) -> list[Batch]:
    """Return the batches of shard (I, N): every N-th batch, starting from batch I.

    Cells are thus distributed evenly over the shards.

    Raises:
        InputError: the shard does not exist or would be empty.
    """
    which, shards = shard
    if not 1 <= which <= shards:
        raise InputError(f"shard {which}/{shards}: the index must be between 1 and {shards}, e.g. 1/{shards}")
    if which > len(batches):
        raise _too_few(f"{which}/{shards}", len(batches))
    return batches[which - 1 :: shards]


def check_shards(study: Definition, shards: int) -> None:
    """Raise InputError if a shard would be empty even with the smallest possible batches."""
    groups = compile_groups(study.cells)
    runs = [len(group.cells) * len(study.seeds) for group in groups]
    widths = [min(study.chunk or 1, math.ceil(number / shards)) for number in runs]
    if (most := len(cut(groups, study.seeds, (), widths))) < shards:
        raise _too_few(f"{shards}/{shards}", most)


def _too_few(shard: str, number: int) -> InputError:
    return InputError(
        f"shard {shard}: too few batches ({number}); use at most {counted(number, 'shard')}, "
        "or create more batches with a smaller chunk (--set chunk=...)"
    )


def _rectangles(
    cells: tuple[Cell, ...], seeds: range, width: int
) -> Iterator[tuple[tuple[Cell, ...], range]]:
    if len(seeds) >= width:
        for cell in cells:
            yield from (((cell,), part) for part in _even(seeds, width))
    else:
        yield from ((part, seeds) for part in _even(cells, width // len(seeds)))


def _even(items: Sequence[Any], width: int) -> Iterator[Any]:
    size = math.ceil(len(items) / math.ceil(len(items) / width))
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _runs(seeds: Sequence[int]) -> Iterator[range]:
    breaks = [k for k in range(1, len(seeds)) if seeds[k] != seeds[k - 1] + 1]
    for first, last in itertools.pairwise([0, *breaks, len(seeds)]):
        if first < last:
            yield range(seeds[first], seeds[last - 1] + 1)
