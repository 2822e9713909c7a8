"""What a results folder lacks of a study: the missing runs, cut into batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxattn.core.errors import counted
from jaxattn.lab.engine import batches, description
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.continuation import ShorterRuns
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage import memo, study_file
from jaxattn.lab.storage.batch_record import BatchRecord
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.groups import CompileGroup, compile_groups, rehearse_groups
from jaxattn.lab.study.identity import Identity, identities, package_hash
from jaxattn.lab.study.inputs import TEXTS
from jaxattn.lab.study.setting import Cell

# From the runs of each compile group, the hashes of code and files, and the groups whose code always raises,
# to the number of runs of each group to compute together.
Widths = Callable[[Mapping[int, Sequence[Any]], Mapping[str, str | None], frozenset[int]], dict[int, int]]


class Plan(NamedTuple):
    """What a run of a study has to compute.

    Attributes:
        groups: the compile groups.
        batches: batches of the missing runs of this shard.
        content: the content of study.json.
        present: records of finished batches with wanted runs, by name.
        missing: number of missing runs, of all shards.
    """

    groups: list[CompileGroup]
    batches: list[Batch]
    identity: dict[int, Identity]
    code: dict[str, str | None]
    content: dict[str, Any]
    present: dict[str, BatchRecord]
    missing: int


def plan_run(
    study: Definition,
    folder: Memo,
    cache: ProgramCache,
    reporter: Reporter,
    *,
    command: str,
    shard: tuple[int, int] = (1, 1),
    max_memory: int | None = None,
    keep_going: bool = True,
    reuse_code: bool = False,
    check: Callable[[], None] = lambda: None,
    widths: Widths | None = None,
) -> Plan:
    """Find the missing runs of a study and cut them into batches, without writing anything.

    The arguments and exceptions are those of `run_study`, except for `widths`, which returns how many runs of
    each group fit in memory, if they are not computed in this process. If no run is missing, nothing is
    traced.
    """
    folder.check()
    identity, code = identities(study, cache.inputs)
    description.note_unhashed(study, code, reporter.note)
    every = folder.finished()
    older = _older(study, identity, folder, every) if reuse_code else {}
    content = description.study_content(study, command, identity, code, older)
    wanted = study_file.wanted_runs(content)
    present = {
        name: record
        for name, record in every.items()
        if any(run in wanted for run in record.identities) and folder.is_intact(name, record)
    }
    done = {run for record in present.values() for run in record.identities}
    missing = _missing(study, wanted, done)
    groups = compile_groups(study.cells)
    cut: list[Batch] = []
    if missing:
        note_changes(missing, identity, code, every, reporter.note)
        lacking = {cell.number for cell, _ in missing}
        own = [group for group in groups if any(cell.number in lacking for cell in group.cells)]
        raising = rehearse_groups(study, own, reporter.loading, keep_going=keep_going)
        check()
        cutter = _Cutter(study, folder, cache, reporter, identity, every, groups, raising)

        def here(runs: Mapping[int, Sequence[Any]]) -> dict[int, int]:
            if widths is not None:
                return widths(runs, code, raising)
            return batches.widths(study, runs, groups, cache, max_memory, shard[1], raising, reporter.update)

        cut = cutter.cut(_missing(study, wanted, set()), missing, here, max_memory is not None, shard)
    return Plan(groups, cut, identity, code, content, present, len(missing))


def _missing(
    study: Definition, wanted: Mapping[tuple[str, int], Sequence[int]], done: set[tuple[str, int]]
) -> list[tuple[Cell, int]]:
    """Return the missing runs. A run that belongs to several cells is listed for the first of them."""
    cells = {cell.number: cell for cell in study.cells}
    found = [(own[0], seed) for (key, seed), own in wanted.items() if (key, seed) not in done]
    return [(cells[number], seed) for number, seed in sorted(found)]


def note_changes(
    missing: Sequence[tuple[Cell, int]],
    identity: Mapping[int, Identity],
    code: Mapping[str, str | None],
    records: Mapping[str, BatchRecord],
    note: Callable[[str], None],
) -> None:
    """Report runs that are computed again because their code or files have changed, and what has changed."""
    wanted = {(identity[cell.number].config, seed) for cell, seed in missing}
    again: set[tuple[str, int]] = set()
    changed: dict[str, None] = {}
    now = {**code, "this package": package_hash()}
    for record in records.values():
        configs = {cell.cell: cell.config for cell in record.cells}
        found = {(configs[number], seed) for number, seed in record.runs} & wanted
        before = record.origin.code | {"this package": record.origin.computing}
        if names := [name for name, x in before.items() if name in now and now[name] != x and found]:
            changed |= dict.fromkeys(names)
            again |= found
    if again:
        is_one = len(changed) == 1 and not next(iter(changed)).startswith(TEXTS)
        words = f"{', '.join(changed)} {'has' if is_one else 'have'} changed"
        note(f"{counted(len(again), 'run')} computed again, because {words}; earlier results are kept")


def _older(
    study: Definition, identity: Mapping[int, Identity], folder: Memo, every: Mapping[str, BatchRecord]
) -> dict[int, dict[str, list[int]]]:
    """Return, for each cell, the keys of runs of older code to use, each with its seeds."""
    settings = {one.setting for one in identity.values()}
    records = {
        name: record
        for name, record in every.items()
        if any(cell.setting in settings for cell in record.cells) and folder.is_intact(name, record)
    }
    known: dict[tuple[str, int], tuple[str, str]] = {}
    have = {run for record in records.values() for run in record.identities}
    for record in records.values():
        cells = {cell.cell: cell for cell in record.cells}
        for number, seed in record.runs:
            found = record.origin.started, cells[number].key
            place = cells[number].setting, seed
            known[place] = max(known.get(place, found), found)
    older: dict[int, dict[str, list[int]]] = {}
    for cell in study.cells:
        own = identity[cell.number]
        for seed in study.seeds:
            if (own.key, seed) not in have and (own.setting, seed) in known:
                key = known[own.setting, seed][1]
                older.setdefault(cell.number, {}).setdefault(key, []).append(seed)
    return older


class _Cutter(NamedTuple):
    study: Definition
    folder: Memo
    cache: ProgramCache
    reporter: Reporter
    identity: dict[int, Identity]
    every: dict[str, BatchRecord]
    groups: list[CompileGroup]
    raising: frozenset[int]

    def cut(
        self,
        wanted: Sequence[tuple[Cell, int]],
        missing: Sequence[tuple[Cell, int]],
        widths_of: Callable[[Mapping[int, Sequence[Any]]], dict[int, int]],
        is_limited: bool,
        shard: tuple[int, int],
    ) -> list[Batch]:
        """Cut the missing ones of the wanted runs into batches.

        Batches that were started come first, and then those that continue finished ones. For a shard, all
        runs of the study are cut, so that the shards agree on the batches, whenever they start.
        """
        lacking = {(cell.number, seed) for cell, seed in missing}
        every_run = self.by_group(wanted)
        of_groups = self.by_group(missing) if shard == (1, 1) else every_run
        widths = widths_of(of_groups)
        partials = memo.partials(self.folder.directory)
        partial = [one.record for one in partials if one.record.tables or one.is_running]
        custom = bool(self.study.custom_kinds)
        shorter = ShorterRuns(self.every, self.identity, self.folder.is_intact, self.cache, custom)
        found: list[Batch] = []
        for number, runs in of_groups.items():
            group, width = self.groups[number], widths[number]
            own = batches.partial_runs(partial, runs, self.identity) if shard == (1, 1) else []
            own = [each for each in own if not is_limited or len(each) <= width]
            taken = {(cell.number, seed) for each in own for cell, seed in each}
            left = [run for run in runs if (run[0].number, run[1]) not in taken]
            found += [Batch(group, each) for each in own]
            continuing, left = shorter.split(group, left)
            found += continuing
            found += [Batch(group, part) for part in batches.cut_rest(every_run[number], left, width)]
        shares = batches.select_shard(found, shard) if shard != (1, 1) else found
        kept = [batches.choose_runs(batch, lacking) for batch in shares]
        return [batch for batch in kept if batch.runs]

    def by_group(self, runs: Iterable[tuple[Cell, int]]) -> dict[int, list[tuple[Cell, int]]]:
        number_of = {cell.number: group.number for group in self.groups for cell in group.cells}
        found: dict[int, list[tuple[Cell, int]]] = {}
        for cell, seed in runs:
            found.setdefault(number_of[cell.number], []).append((cell, seed))
        return dict(sorted(found.items()))
