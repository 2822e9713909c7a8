"""Batches of vmapped runs, and shards of batches."""

import numpy as np
import pandas as pd
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.engine import batches, manifest
from jaxattn.lab.engine.programs import ProgramCache
from jaxattn.lab.engine.store import Store
from jaxattn.lab.results import load
from jaxattn.lab.results.combine import combine
from jaxattn.lab.storage import batch_state
from jaxattn.lab.study.groups import compile_groups

KEYS = ["cell", "seed", "phase", "step", "metric"]


def cut(study, known=()):
    groups = compile_groups(study.cells)
    return batches.cut(groups, study.seeds, known, [study.chunk] * len(groups))


def test_too_many_shards_are_rejected_before_the_run(study):
    batches.check_shards(study(seeds=3), 3)
    with pytest.raises(InputError, match=r"^shard 4/4: too few batches \(3\); use at most 3 shards"):
        batches.check_shards(study(seeds=3), 4)
    # Without a chunk, each of 4 shards of 6 seeds has one or two seeds, depending on memory.
    batches.check_shards(study(seeds=6, chunk=None), 4)
    with pytest.raises(InputError, match=r"^shard 4/4: too few batches \(3\)"):
        batches.check_shards(study(seeds=6, chunk=2), 4)


@pytest.mark.more
def test_chunk_size_changes_only_rounding(small_run, two_batches, read, study):
    assert [list(batch.seeds) for batch in cut(study(seeds=5, chunk=2))] == [[0, 1], [2, 3], [4]]
    (one, _), (both, _) = read(two_batches, ordered=True), read(small_run, ordered=True)
    loss = one["metric"] == "loss"
    np.testing.assert_allclose(one["value"][loss], both["value"][loss], rtol=1e-5)


def test_gaps_between_seeds_split_batches(study):
    wanted = study(seeds=[0, 1, 2, 5, 6, 9], chunk=2)
    assert [list(batch.seeds) for batch in cut(wanted)] == [[0, 1], [2], [5, 6], [9]]
    known = ["cells-00000-00000-seeds-00001-00005"]
    assert [list(batch.seeds) for batch in cut(wanted, known)] == [[0], [1, 2, 3, 4, 5], [6], [9]]


@pytest.mark.parametrize(
    "name", ["cells-00000-00000-seeds-00003-00002", "cells-00001-00000-seeds-00000-00001"]
)
def test_batch_names_with_an_empty_range_are_ignored(study, name):
    wanted = study(seeds=3, chunk=3)
    assert [list(batch.seeds) for batch in cut(wanted, [name])] == [[0, 1, 2]]


def test_batches_contain_every_cell_and_seed_exactly_once(study):
    axes = {"model.dim": [8, 16], "phases.query.step_size": [0.1, 0.2, 0.3]}
    for chunk in (1, 2, 4, 100):
        wanted = study(seeds=3, axes=axes, chunk=chunk)
        runs = [(cell.number, seed) for batch in cut(wanted) for cell, seed in batch.runs]
        assert sorted(runs) == [(cell, seed) for cell in range(6) for seed in range(3)]
        assert len({batch.name for batch in cut(wanted)}) == len(cut(wanted))


def test_batch_description_contains_its_settings_or_cell_count(study):
    axes = {"phases.query.step_size": [1e-4 / 3, 0.2], "model.dim": [8]}
    assert {batches.describe_batch(batch) for batch in cut(study(axes=axes, chunk=100))} == {"2 cells "}
    (first, *_) = cut(study(axes=axes, chunk=1, seeds=1))
    assert batches.describe_batch(first) == "phases.query.step_size=3.33333e-05 model.dim=8 "
    assert batches.describe_batch(cut(study(chunk=1))[0]) == ""


def test_existing_batches_with_several_cells_are_kept(study):
    wanted = study(seeds=4, axes={"phases.query.step_size": [0.1, 0.2, 0.3, 0.4]}, chunk=4)
    known = ["cells-00001-00002-seeds-00001-00002", "cells-00009-00009-seeds-00000-00003"]
    runs = [(cell.number, seed) for batch in cut(wanted, known) for cell, seed in batch.runs]
    assert sorted(runs) == [(cell, seed) for cell in range(4) for seed in range(4)]
    assert known[0] in [batch.name for batch in cut(wanted, known)]


def test_too_many_batches_are_rejected(study):
    with pytest.raises(
        InputError, match=r"chunk: 1 cells × 1,000,000 seeds in batches of 1 need more than 100,000"
    ):
        cut(study(seeds=1_000_000, chunk=1))


def begun(directory, *names):
    """Return a folder in which some batches have started."""
    (directory / "parts").mkdir(parents=True)
    nothing = {}, batch_state.Checkpoint(1, {}, {}), batch_state.BatchOrigin({}, {}, {})
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
def test_remaining_batches_are_split_as_planned(tmp_path, study, first):
    """Ten seeds in batches of four: whichever batch has started, the others are the same."""
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
        # Without a manifest, the width is that of the batches that have started.
        assert named(cut_batches(wanted, folder, described, None)) == ([4], names)
    fewer = study(seeds=6 if first < 2 else "6:10")
    _, some = cut_batches(fewer, folder, known, None)
    assert every[first].name in {batch.name for batch in some}
    assert {seed for batch in some for seed in batch.seeds} == {*every[first].seeds, *fewer.seeds}
    _, anew = cut_batches(wanted, folder, known, 10**9)
    assert len(anew) == 2 + (first == 1)


@pytest.mark.slow
def test_shards_combine_to_the_full_study(tmp_path, go, study):
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
    [((4, 3), "the index must be between 1 and 3"), ((5, 5), r"too few batches \(4\); use at most 4 shards")],
)
def test_invalid_shards_are_rejected(study, shard, message):
    with pytest.raises(InputError, match=message):
        batches.select_shard(cut(study(axes={"model.dim": [8, 16]}, chunk=1)), shard)
