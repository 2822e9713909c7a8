"""Batches of vmapped runs: cut from the missing runs, continued, halved, and divided among shards."""

import os
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.engine import batches
from jaxattn.lab.engine.batches import Batch, Source
from jaxattn.lab.engine.plan import plan_study
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.storage import batch_record
from jaxattn.lab.storage.batch_record import BatchCell, BatchRecord, runs_key
from jaxattn.lab.study.groups import compile_groups
from jaxattn.lab.study.identity import identities


def cut(study, missing=None):
    """Cut all runs of a study, or only those of some cells and seeds."""
    found = []
    for group in compile_groups(study.cells):
        runs = [(cell, seed) for cell in group.cells for seed in study.seeds]
        runs = [run for run in runs if missing is None or (run[0].number, run[1]) in missing]
        found += [Batch(group, part) for part in batches.cut(runs, study.chunk)]
    return found


def numbered(batch):
    return [(cell.number, seed) for cell, seed in batch.runs]


def test_shards_without_batches_are_rejected():
    assert batches.select_shard([1, 2, 3], (2, 2)) == [2]
    with pytest.raises(ja.InputError, match=r"^shard 4/4: too few batches \(3\); use at most 3 shards"):
        batches.select_shard([1, 2, 3], (4, 4))
    with pytest.raises(ja.InputError, match=r"^shard 5/4: the index must be between 1 and 4"):
        batches.select_shard([1, 2, 3], (5, 4))


@pytest.mark.more
def test_chunk_size_changes_only_rounding(small_run, two_batches, read):
    (one, _), (both, _) = read(two_batches, ordered=True), read(small_run, ordered=True)
    loss = one["metric"] == "loss"
    np.testing.assert_allclose(one["value"][loss], both["value"][loss], rtol=1e-5)


@pytest.mark.parametrize(
    ("runs", "width", "sizes"),
    [(5, 2, [2, 2, 1]), (5, 3, [3, 2]), (10, 4, [4, 4, 2]), (3, 9, [3]), (0, 3, [])],
)
def test_runs_are_cut_into_as_few_parts_of_nearly_equal_size_as_possible(runs, width, sizes):
    parts = batches.cut(range(runs), width)
    assert list(map(len, parts)) == sizes
    assert [run for part in parts for run in part] == list(range(runs))


def test_batches_contain_every_cell_and_seed_exactly_once(study):
    axes = {"model.dim": [8, 16], "phases.query.step_size": [0.1, 0.2, 0.3]}
    for chunk in (1, 2, 4, 100):
        wanted = study(seeds=3, axes=axes, chunk=chunk)
        runs = [run for batch in cut(wanted) for run in numbered(batch)]
        assert sorted(runs) == [(cell, seed) for cell in range(6) for seed in range(3)]
        keys = [keys_of(wanted, batch) for batch in cut(wanted)]
        assert len(set(keys)) == len(keys)


def keys_of(study, batch):
    identity, _ = identities(study)
    return runs_key((identity[cell.number].key, seed) for cell, seed in batch.runs)


def test_batch_description_contains_its_settings_or_cell_count(study):
    axes = {"phases.query.step_size": [1e-4 / 3, 0.2], "model.dim": [8]}
    assert {batches.describe_batch(batch) for batch in cut(study(axes=axes, chunk=100))} == {"2 cells "}
    (first, *_) = cut(study(axes=axes, chunk=1, seeds=1))
    assert batches.describe_batch(first) == "phases.query.step_size=3.33333e-05 model.dim=8 "
    assert batches.describe_batch(cut(study(chunk=1))[0]) == ""


def test_batch_name_lists_the_range_of_cells_and_seeds(study):
    wanted = study(axes={"phases.query.step_size": [0.1, 0.2, 0.3]}, seeds=2, chunk=3)
    assert [batch.name for batch in cut(wanted)] == [
        "cells 0 to 1, seeds 0 to 1",
        "cells 1 to 2, seeds 0 to 1",
    ]
    assert cut(study(seeds="7:8", chunk=1))[0].name == "cell 0, seed 7"


def test_record_of_a_batch_has_the_identities_of_its_cells(study):
    wanted = study(axes={"phases.query.step_size": [0.1, 0.2]}, seeds=3, chunk=6)
    identity, _ = identities(wanted)
    (batch,) = cut(wanted)
    assert batches.batch_cells(batch, identity) == (BatchCell(0, *identity[0]), BatchCell(1, *identity[1]))
    _, half = batches.halve(batch)
    assert batches.batch_cells(half, identity) == (BatchCell(1, *identity[1]),)


def started(study, *parts):
    """Make records of partial batches with the given seeds of the only cell."""
    identity, _ = identities(study)
    cells = (BatchCell(0, *identity[0]),)
    return [BatchRecord(cells, tuple((0, seed) for seed in part), None) for part in parts], identity


def test_started_batches_are_kept_if_all_their_runs_are_missing(study):
    wanted = study(seeds=6)
    records, identity = started(wanted, [3, 1], [0, 9], [4, 5], [5, 2])
    missing = [(wanted.cells[0], seed) for seed in (0, 1, 2, 3, 4, 5)]
    found = batches.partial_runs(records, missing, identity)
    # The order of the runs is kept, and a run that two batches have belongs to the first of them.
    assert [[seed for _, seed in runs] for runs in found] == [[3, 1], [4, 5]]
    assert batches.partial_runs(records, missing[:3], identity) == []
    other, _ = identities(study(seeds=6, dtype="float64"))
    assert batches.partial_runs(records, missing, other) == []


def test_rest_of_the_runs_is_cut_as_all_of_them_if_possible():
    runs = [(SimpleNamespace(number=0), seed) for seed in range(10)]

    def seeds(rest, width=4):
        parts = batches.cut_rest(runs, [runs[seed] for seed in rest], width)
        return [[seed for _, seed in part] for part in parts]

    assert seeds(range(10)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seeds(range(4, 10)) == [[4, 5, 6, 7], [8, 9]]
    assert seeds([0, 1, 2, 3, 8, 9]) == [[0, 1, 2, 3], [8, 9]]
    # The first two seeds were computed without the others.
    assert seeds(range(2, 10)) == [[2, 3, 4, 5], [6, 7, 8, 9]]
    assert seeds([9]) == [[9]]
    assert seeds([]) == []


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.more
def test_interrupted_run_of_several_batches_equals_a_straight_run(
    tmp_path, go, stop, study, counted, assert_same, first
):
    """Ten seeds in batches of four: whichever batch has started is finished first, as are the others."""
    parts = [range(4), range(4, 8), range(8, 10)]
    folder = stop(tmp_path / "run", study(seeds=list(parts[first]), chunk=4), 5)
    counted.clear()
    go(folder, study(seeds=10, chunk=4))
    expected = [parts[first], *(part for number, part in enumerate(parts) if number != first)]
    assert [[seed for _, seed in runs] for runs, _ in counted] == [list(part) for part in expected]
    go(tmp_path / "straight", study(seeds=10, chunk=4))
    assert_same(folder, tmp_path / "straight")


@pytest.mark.more
def test_started_batch_that_exceeds_a_memory_limit_is_cut_again(
    tmp_path, go, stop, study, counted, monkeypatch
):
    folder = stop(tmp_path, study(seeds=3), 5)
    counted.clear()
    monkeypatch.setattr(batches.memory, "fitting_width", lambda *arguments: 2)
    go(folder, study(seeds=3), max_memory=10**9)
    assert [runs for runs, _ in counted] == [[(0, 0), (0, 1)], [(0, 2)]]


@pytest.mark.more
def test_batch_that_a_running_process_has_not_saved_yet_is_not_cut_again(tmp_path, stop, study, abandon):
    folder = stop(tmp_path, study(), 5)
    (path,) = abandon(folder, os.getppid())
    record = batch_record.read_record(path, folder)
    empty = msgspec.structs.replace(record, tables={}, checkpoint=None, phase=0, step=0)
    batch_record.write_record(path, empty, folder)
    wanted = study(seeds=6, chunk=3)
    planned = plan_study(wanted, folder, quick=True)[0][1]
    assert planned[["together", "batches"]].to_numpy().tolist() == [[2, 3]]
    # A process that was killed has left nothing.
    abandon(folder)
    planned = plan_study(wanted, folder, quick=True)[0][1]
    assert planned[["together", "batches"]].to_numpy().tolist() == [[3, 2]]


def test_batch_is_halved_with_its_source():
    runs = tuple((SimpleNamespace(number=0), seed) for seed in range(5))
    one, other = batches.halve(Batch(None, runs))
    assert (one.runs, other.runs, one.source, other.source) == (runs[:2], runs[2:], None, None)
    one, other = batches.halve(Batch(None, runs, Source("name", None, (7, 3, 5, 1, 0))))
    assert (one.runs, one.source.lanes) == (runs[:2], (7, 3))
    assert (other.runs, other.source.lanes) == (runs[2:], (5, 1, 0))
    assert one.source.name == "name"


def test_some_runs_of_a_batch_are_chosen_with_their_source():
    runs = tuple((SimpleNamespace(number=cell), seed) for cell in (0, 1) for seed in (4, 5))
    batch = Batch(None, runs, Source("name", None, (7, 3, 5, 1)))
    chosen = batches.choose_runs(batch, {(1, 4), (0, 5), (9, 9)})
    assert (chosen.runs, chosen.source.lanes) == ((runs[1], runs[2]), (3, 5))
    assert batches.choose_runs(batch._replace(source=None), set()) == Batch(None, ())


def test_too_many_batches_are_rejected():
    with pytest.raises(
        ja.InputError, match=r"chunk: 1,000,000 runs in batches of 1 need more than 100,000 batches"
    ):
        batches.cut(range(1_000_000), 1)


def test_widths_are_limited_by_the_chunk_and_the_number_of_shards(study, monkeypatch):
    monkeypatch.setattr(batches.memory, "fitting_width", lambda group, programs, runs, budget, note: 4)
    wanted = study(axes={"model.dim": [8, 16]}, seeds=6)
    groups = compile_groups(wanted.cells)
    missing = {group.number: [(group.cells[0], seed) for seed in wanted.seeds] for group in groups}

    def widths(study=wanted, **options):
        return batches.widths(study, missing, groups, ProgramCache(), None, **options)

    assert widths() == {0: 4, 1: 4}
    assert widths(shards=2) == {0: 3, 1: 3}
    # Code that always raises an exception is not compiled.
    assert widths(raising=[1]) == {0: 4, 1: 6}
    chunk = study(axes={"model.dim": [8, 16]}, seeds=6, chunk=5)
    assert widths(chunk) == {0: 5, 1: 5}
    assert widths(chunk, shards=3) == {0: 2, 1: 2}


@pytest.mark.more
def test_shards_one_after_another_complete_a_folder(tmp_path, go, study, counted, assert_same):
    wanted = study(axes={"model.dim": [8, 16]}, chunk=1)
    for which in (3, 1, 2):
        go(tmp_path / "shards", wanted, shard=(which, 3))
        assert ja.load(tmp_path / "shards").finished == (which == 2)
    runs = [run for runs, _ in counted for run in runs]
    assert runs == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert go(tmp_path / "shards", wanted, shard=(2, 3))[0].already_finished
    go(tmp_path / "whole", wanted)
    assert_same(tmp_path / "shards", tmp_path / "whole")


@pytest.mark.more
def test_shards_agree_on_the_batches_whenever_they_start(tmp_path, go, study, counted):
    """The second shard starts when the first one, and some seeds without shards, are finished."""
    wanted = study(seeds=5)
    go(tmp_path, study(seeds="1:2"))
    counted.clear()
    for which in (1, 2):
        go(tmp_path, wanted, shard=(which, 2))
    assert [[seed for _, seed in runs] for runs, _ in counted] == [[0, 2], [3, 4]]
    assert ja.load(tmp_path).finished


@pytest.mark.parametrize(
    ("shard", "message"),
    [((4, 3), "the index must be between 1 and 3"), ((5, 5), r"too few batches \(4\); use at most 4 shards")],
)
def test_invalid_shards_are_rejected(study, shard, message):
    with pytest.raises(ja.InputError, match=message):
        batches.select_shard(cut(study(axes={"model.dim": [8, 16]}, chunk=1)), shard)


def test_shards_contain_every_batch_once():
    shards = [batches.select_shard(list("abcdefg"), (which, 3)) for which in (1, 2, 3)]
    assert shards == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
