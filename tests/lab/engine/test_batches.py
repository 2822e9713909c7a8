"""Lanes cut into batches, and batches into shares."""

import numpy as np
import pandas as pd
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.engine import batches, manifest
from jaxattn.lab.engine.groups import compile_groups
from jaxattn.lab.engine.lift import ProgramCache
from jaxattn.lab.engine.store import Store
from jaxattn.lab.results import load
from jaxattn.lab.results.combine import combine
from jaxattn.lab.storage import batch_state

KEYS = ["cell", "seed", "phase", "step", "metric"]


def cut(study, known=()):
    groups = compile_groups(study.cells)
    return batches.cut(groups, study.seeds, known, [study.chunk] * len(groups))


def test_more_shards_than_there_can_be_batches_are_refused_before_they_run(study):
    batches.check_shards(study(seeds=3), 3)
    with pytest.raises(
        InputError, match=r"^shard 4/4: there are 3 batches; use at most 3 shards, or make more"
    ):
        batches.check_shards(study(seeds=3), 4)
    # No chunk, and each of 4 shares of 6 seeds: one or two seeds as the memory may be.
    batches.check_shards(study(seeds=6, chunk=None), 4)
    with pytest.raises(InputError, match=r"^shard 4/4: there are 3 batches"):
        batches.check_shards(study(seeds=6, chunk=2), 4)


@pytest.mark.more
def test_batches_cut_the_seeds_and_chunks_change_no_more_than_rounding(small_run, two_batches, read, study):
    assert [list(batch.seeds) for batch in cut(study(seeds=5, chunk=2))] == [[0, 1], [2, 3], [4]]
    (one, _), (both, _) = read(two_batches, ordered=True), read(small_run, ordered=True)
    loss = one["metric"] == "loss"
    np.testing.assert_allclose(one["value"][loss], both["value"][loss], rtol=1e-5)


def test_gaps_between_seeds_make_batches_of_their_own(study):
    wanted = study(seeds=[0, 1, 2, 5, 6, 9], chunk=2)
    assert [list(batch.seeds) for batch in cut(wanted)] == [[0, 1], [2], [5, 6], [9]]
    known = ["cells-00000-00000-seeds-00001-00005"]
    assert [list(batch.seeds) for batch in cut(wanted, known)] == [[0], [1, 2, 3, 4, 5], [6], [9]]


@pytest.mark.parametrize(
    "name", ["cells-00000-00000-seeds-00003-00002", "cells-00001-00000-seeds-00000-00001"]
)
def test_a_name_that_holds_no_lane_is_no_batch(study, name):
    wanted = study(seeds=3, chunk=3)
    assert [list(batch.seeds) for batch in cut(wanted, [name])] == [[0, 1, 2]]


def test_lanes_are_every_seed_of_every_cell_once(study):
    axes = {"model.dim": [8, 16], "phases.query.step_size": [0.1, 0.2, 0.3]}
    for chunk in (1, 2, 4, 100):
        wanted = study(seeds=3, axes=axes, chunk=chunk)
        lanes = [(cell.number, seed) for batch in cut(wanted) for cell, seed in batch.lanes]
        assert sorted(lanes) == [(cell, seed) for cell in range(6) for seed in range(3)]
        assert len({batch.name for batch in cut(wanted)}) == len(cut(wanted))


def test_a_batch_is_called_by_the_settings_of_its_cell_or_by_how_many_it_has(study):
    axes = {"phases.query.step_size": [1e-4 / 3, 0.2], "model.dim": [8]}
    assert {batches.describe_batch(batch) for batch in cut(study(axes=axes, chunk=100))} == {"2 cells "}
    (first, *_) = cut(study(axes=axes, chunk=1, seeds=1))
    assert batches.describe_batch(first) == "phases.query.step_size=3.33333e-05 model.dim=8 "
    assert batches.describe_batch(cut(study(chunk=1))[0]) == ""


def test_what_a_folder_holds_of_several_cells_is_kept(study):
    wanted = study(seeds=4, axes={"phases.query.step_size": [0.1, 0.2, 0.3, 0.4]}, chunk=4)
    known = ["cells-00001-00002-seeds-00001-00002", "cells-00009-00009-seeds-00000-00003"]
    lanes = [(cell.number, seed) for batch in cut(wanted, known) for cell, seed in batch.lanes]
    assert sorted(lanes) == [(cell, seed) for cell in range(4) for seed in range(4)]
    assert known[0] in [batch.name for batch in cut(wanted, known)]


def test_more_batches_than_a_folder_can_hold_are_refused(study):
    with pytest.raises(
        InputError, match=r"chunk: 1 cells × 1,000,000 seeds in batches of 1 are more than 100,000"
    ):
        cut(study(seeds=1_000_000, chunk=1))


def begun(directory, *names):
    """A folder in which batches were begun."""
    (directory / "parts").mkdir(parents=True)
    nothing = {}, batch_state.Checkpoint(1, {}, {}), batch_state.Provenance({}, {}, {})
    for name in names:
        batch_state.write_state(directory, name, batch_state.BatchState(False, 0, 0, [], *nothing))
    return Store(directory).batches()


def cut_batches(wanted, folder, known, max_memory):
    return batches.cut_batches(
        wanted, compile_groups(wanted.cells), folder, known, ProgramCache(), max_memory
    )


def named(cut):
    widths, every = cut
    return widths, [batch.name for batch in every]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_what_is_left_is_cut_as_it_was_planned(tmp_path, study, first):
    """Ten seeds, four at a time: whichever batch was begun, the others stay the same."""
    wanted = study(seeds=10)
    groups = compile_groups(wanted.cells)
    every = batches.cut(groups, wanted.seeds, [], [4])
    assert [len(batch.seeds) for batch in every] == [4, 4, 2]
    names = [batch.name for batch in every]
    folder = begun(tmp_path / "run", every[first].name)
    described = manifest.new_manifest(wanted, "test")
    own, others = every[first::2], every[1 - first :: 2] if first < 2 else every[:2]
    known = described | {
        "widths": [4],
        "batches": manifest.batch_entries(own),
        "elsewhere": [batch.name for batch in others],
    }
    assert named(cut_batches(wanted, folder, known, None)) == ([4], names)
    if first < 2:
        # Without a manifest, the width of what was begun tells.
        assert named(cut_batches(wanted, folder, described, None)) == ([4], names)
    fewer = study(seeds=6 if first < 2 else "6:10")
    _, some = cut_batches(fewer, folder, known, None)
    assert every[first].name in {batch.name for batch in some}
    assert {seed for batch in some for seed in batch.seeds} == {*every[first].seeds, *fewer.seeds}
    _, anew = cut_batches(wanted, folder, known, 10**9)
    assert len(anew) == 2 + (first == 1)


@pytest.mark.slow
def test_shares_write_side_by_side_and_make_up_the_whole(tmp_path, go, study):
    wanted = study(axes={"model.dim": [8, 16]}, chunk=1)
    go(tmp_path / "whole", wanted)
    for which in (1, 2, 3):
        go(tmp_path / f"shard-{which}", wanted, shard=(which, 3))
    shards = combine([load(tmp_path / f"shard-{which}") for which in (1, 2, 3)])
    whole = load(tmp_path / "whole")
    one, other = (x.records.sort_values(KEYS).reset_index(drop=True) for x in (shards, whole))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert shards.manifest["cells"][1]["settings"] == whole.manifest["cells"][1]["settings"]


@pytest.mark.parametrize(
    ("shard", "message"),
    [((4, 3), "give a number from 1 to 3"), ((5, 5), "there are 4 batches; use at most 4 shards")],
)
def test_shares_that_are_none_are_named(study, shard, message):
    with pytest.raises(InputError, match=message):
        batches.select_shard(cut(study(axes={"model.dim": [8, 16]}, chunk=1)), shard)
