"""Continue finished runs whose last phase is shorter, instead of starting again.

The result equals that of a single longer run, because a run is continued only if its measured steps are the
first ones of the longer run, and its code does not depend on the number of steps.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pandas as pd

from jaxattn.base import Phase
from jaxattn.lab.engine.batches import Batch, Source
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.programs import Programs
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.storage.batch_record import BatchRecord
from jaxattn.lab.storage.tables import renumbered
from jaxattn.lab.study.groups import CompileGroup, compile_groups
from jaxattn.lab.study.identity import Identity
from jaxattn.lab.study.setting import Cell, Setting

_Run = tuple[Cell, int]


class ShorterRuns:
    """Finished runs that longer runs may continue."""

    def __init__(
        self,
        records: Mapping[str, BatchRecord],
        identity: Mapping[int, Identity],
        is_intact: Callable[[str, BatchRecord], bool],
        cache: ProgramCache,
        has_custom_code: bool,
    ) -> None:
        """Index the finished runs.

        Args:
            records: records of finished batches, by name.
            identity: identity of each cell of the study, by its index.
            is_intact: function that returns whether the files of a batch have not changed.
            cache: cache of compiled programs.
            has_custom_code: True to check that the programs do not depend on the number of steps.
        """
        self._records, self._identity, self._is_intact = records, identity, is_intact
        self._cache, self._has_custom_code = cache, has_custom_code
        self._same: dict[tuple[int, int], bool] = {}
        self._known: dict[tuple[str, int], list[tuple[int, str, int]]] = {}
        for name, record in records.items():
            cells = {cell.cell: cell for cell in record.cells}
            for lane, (number, seed) in enumerate(record.runs):
                cell = cells[number]
                if cell.shorter and record.resumable:
                    self._known.setdefault((cell.shorter, seed), []).append((cell.steps, name, lane))

    def split(self, group: CompileGroup, runs: Sequence[_Run]) -> tuple[list[Batch], list[_Run]]:
        """Return the batches that continue finished ones, and the runs that start from the beginning."""
        chosen: dict[str, list[tuple[_Run, int]]] = {}
        rest = []
        for run in runs:
            if found := self._longest(group, run):
                chosen.setdefault(found[0], []).append((run, found[1]))
            else:
                rest.append(run)
        batches = []
        for name, own in chosen.items():
            if self._is_intact(name, self._records[name]):
                source = Source(name, self._records[name], tuple(lane for _, lane in own))
                batches.append(Batch(group, tuple(run for run, _ in own), source))
            else:
                rest += [run for run, _ in own]
        return batches, rest

    def _longest(self, group: CompileGroup, run: _Run) -> tuple[str, int] | None:
        cell, seed = run
        wanted = self._identity[cell.number]
        for steps, name, lane in sorted(self._known.get((wanted.shorter, seed), ()), reverse=True):
            if 0 < steps < wanted.steps and self._can_continue(group, cell, steps):
                return name, lane
        return None

    def _can_continue(self, group: CompileGroup, cell: Cell, steps: int) -> bool:
        last = cell.setting.phases[-1]
        shorter = with_steps(cell.setting, steps)
        probes = cell.setting.probes
        old, new = probes.steps_of(shorter.phases[-1]), probes.steps_of(last)
        if old != new[: len(old)]:
            return False
        if not self._has_custom_code:
            return True
        known = group.number, steps
        if known not in self._same:
            self._same[known] = _are_same_programs(group, steps, self._cache)
        return self._same[known]


def with_steps(setting: Setting, steps: int) -> Setting:
    """Return a setting with another number of steps of the last phase."""
    *earlier, last = setting.phases
    changed: Phase = msgspec.structs.replace(last, steps=steps)
    return setting._replace(phases=(*earlier, changed))


def _are_same_programs(group: CompileGroup, steps: int, cache: ProgramCache) -> bool:
    """Return whether the programs of the last phase are the same for another number of steps."""
    alone = compile_groups(group.cells[:1])[0]
    made = cache.of(group)
    other = Programs(with_steps(group.setting, steps), made.shared_data)
    last = len(group.setting.phases) - 1
    texts = [
        [
            each.function.lower(*each.arguments).as_text()
            for each in programs.phase_programs(alone, 1)
            if each.phase == last
        ]
        for programs in (Programs(group.setting, made.shared_data), other)
    ]
    return texts[0] == texts[1]


def reopen(batch: Batch, tables: Mapping[str, pd.DataFrame]) -> tuple[BatchRecord, dict[str, pd.DataFrame]]:
    """Return the record and the tables of a batch that continues a finished one, at the end of the latter.

    Args:
        batch: the batch, which has a source.
        tables: the tables of the source.
    """
    assert batch.source is not None
    record = batch.source.record
    phases, probes = batch.group.setting.phases, batch.group.setting.probes
    name = phases[-1].name
    numbers = {
        record.runs[lane]: (cell.number, seed)
        for lane, (cell, seed) in zip(batch.source.lanes, batch.runs, strict=True)
    }
    records, tokens = (renumbered(tables[table], numbers) for table in ("records", "tokens"))
    concluded = {metric for probe in probes.of_phases for metric in probe.metrics}
    is_last = records["phase"] == name
    again = records["metric"].isin(list(BEST)) | (is_last & records["metric"].isin(list(concluded)))
    failures = [
        msgspec.structs.replace(failure, cell=numbers[failure.cell, failure.seed][0])
        for failure in record.failures
        if (failure.cell, failure.seed) in numbers
    ]
    state = msgspec.structs.replace(
        record,
        phase=len(phases) - 1,
        step=int(records.loc[is_last, "step"].max()),
        failures=tuple(failures),
    )
    if len(tokens):
        tokens = tokens[tokens["phase"] != name]
    return state, {"records": records[~again], "tokens": tokens}
