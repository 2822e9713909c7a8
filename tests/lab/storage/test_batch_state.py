"""Commit records identify their batch, also those of version 0.2 without its name."""

import json

import pandas as pd
import pytest

from jaxattn.lab.storage import batch_state, files
from jaxattn.lab.storage.batch_state import BatchOrigin, BatchState, Checkpoint, Misplaced
from jaxattn.lab.storage.files import Damaged

ONE, OTHER = "cells-00000-00002-seeds-00004-00005", "cells-00000-00002-seeds-00006-00007"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "parts").mkdir()
    save(tmp_path, ONE, seeds=[4, 5])
    return tmp_path


def save(folder, batch, seeds, *, cells=(0, 2), finished=True, known=None):
    """Write the tables of a batch, and a commit record that may have any name."""
    cell_seed_pairs = [(cell, seed) for cell in cells for seed in seeds]
    table = pd.DataFrame(cell_seed_pairs, columns=["cell", "seed"]).assign(
        phase="query", step=1, metric="loss", value=0.5
    )
    sums = {}
    for name in batch_state.TABLES:
        content = table.to_parquet(None, index=False)
        sums[name] = files.digest(content)
        batch_state.table_path(folder, batch, name, sums[name]).write_bytes(content)
    origin = BatchOrigin(dict.fromkeys(known or map(str, cells), ""), {}, {})
    state = BatchState(finished, 0, 1, [], sums, Checkpoint(1, {}, {}), origin)
    batch_state.write_state(folder, batch, state)
    return state


def without_name(folder, batch):
    """Rewrite a commit record as version 0.2 wrote it."""
    path = batch_state.path(folder, batch)
    content = files.unsealed(json.loads(path.read_bytes()))
    assert content.pop("batch") == batch
    path.write_bytes(files.sealed(content))


def renamed(folder, batch, other):
    for path in (folder / "parts").glob(f"{batch}.*"):
        path.rename(path.with_name(path.name.replace(batch, other)))


def test_commit_record_stored_under_another_batch_name_is_rejected(folder):
    assert batch_state.read_state(folder, ONE).batch == ONE
    renamed(folder, ONE, OTHER)
    with pytest.raises(Misplaced, match=rf"{OTHER}\.json: is the commit record of another batch$"):
        batch_state.read_state(folder, OTHER)


@pytest.mark.parametrize(
    "other", ["cells-00001-00002-seeds-00004-00005", "cells-00000-00003-seeds-00004-00005"]
)
def test_cells_identify_a_batch_whose_record_has_no_name(folder, other):
    without_name(folder, ONE)
    assert batch_state.read_state(folder, ONE).batch is None
    renamed(folder, ONE, other)
    with pytest.raises(Misplaced, match="commit record of another batch"):
        batch_state.read_state(folder, other)


def test_tables_identify_the_seeds_of_a_batch_whose_record_has_no_name(folder):
    without_name(folder, ONE)
    state, tables = batch_state.read_with_tables(folder, ONE)
    assert set(tables["records"]["seed"]) == {4, 5}
    batch_state.check_cells_and_seeds(folder, ONE, state)
    renamed(folder, ONE, OTHER)
    state = batch_state.read_state(folder, OTHER)
    for ask in (batch_state.read_with_tables, lambda *of: batch_state.check_cells_and_seeds(*of, state)):
        with pytest.raises(Misplaced, match=rf"{OTHER}\.records\..*: this table belongs to another batch"):
            ask(folder, OTHER)


@pytest.mark.parametrize(("seeds", "finished"), [([4], True), ([4, 5, 6], False), ([6], False)])
def test_table_of_another_batch_is_rejected(folder, seeds, finished):
    save(folder, ONE, seeds, finished=finished)
    with pytest.raises(Misplaced, match="table belongs to another batch"):
        batch_state.read_with_tables(folder, ONE)


def test_tables_of_an_unfinished_batch_may_lack_seeds(folder):
    save(folder, ONE, [5], finished=False)
    assert batch_state.read_with_tables(folder, ONE)


@pytest.mark.parametrize("cells", [["x"], ["-1", "2"], ["0", "1"]])
def test_commit_record_with_invalid_cells_is_rejected(folder, cells):
    save(folder, ONE, [4, 5], known=cells)
    with pytest.raises(Misplaced):
        batch_state.read_state(folder, ONE)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "", "a/../b", "a//b", ".", "a\0"])
def test_damage_message_does_not_suggest_removing_a_path_outside_the_checkpoint(folder, name):
    path = batch_state.path(folder, ONE)
    content = files.unsealed(json.loads(path.read_bytes()))
    content["checkpoint"]["files"] = {name: [1, None]}
    path.write_bytes(files.sealed(content))
    with pytest.raises(Damaged, match=rf"^{path}: damaged \(its checkpoint has a file '") as caught:
        batch_state.read_state(folder, ONE)
    assert "remove" not in str(caught.value)


def test_overlapping_batches_are_detected():
    def name(first, last):
        return f"cells-00000-00009-seeds-{first:05d}-{last:05d}"

    cells = {name(0, 9): [0], name(3, 4): [0], name(5, 5): [0], name(10, 12): [0], name(2, 2): [1]}
    assert batch_state.overlaps(cells) == [(name(0, 9), name(3, 4)), (name(0, 9), name(5, 5))]
    assert batch_state.overlaps({batch: own for batch, own in cells.items() if batch != name(0, 9)}) == []
