"""Batches of another run, or under another name, are moved aside and not counted."""

import json
import shutil

import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.engine import strays
from jaxattn.lab.results import load
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import batch_state, files, manifest

FIRST, SECOND, THIRD = (f"cells-00000-00000-seeds-{seed:05d}-{seed:05d}" for seed in (0, 1, 2))


@pytest.fixture(params=["this version", "0.2"])
def folder(request, two_batches, tmp_path):
    """Return a finished run of two batches; in version 0.2 commit records lack the names of batches."""
    directory = shutil.copytree(two_batches, tmp_path / "small")
    for path in (directory / "parts").glob("*.json") if request.param == "0.2" else ():
        content = files.unsealed(json.loads(path.read_bytes()))
        del content["batch"]
        path.write_bytes(files.sealed(content))
    return directory


def put(source, batch, folder, name):
    """Copy all files of a batch to the name of another batch, replacing its files."""
    for path in (folder / "parts").glob(f"{name}.*"):
        path.unlink()
    shutil.rmtree(folder / "checkpoints" / name, ignore_errors=True)
    for path in (source / "parts").glob(f"{batch}.*"):
        shutil.copy(path, folder / "parts" / path.name.replace(batch, name))
    shutil.copytree(source / "checkpoints" / batch, folder / "checkpoints" / name)


def test_folder_written_by_version_0_2_loads_and_accepts_more_seeds(
    folder, go, study, two_batches, assert_same
):
    assert verify(folder) == []
    assert load(folder).finished
    assert go(folder, study(chunk=1))[0].already_finished
    assert not go(folder, study(chunk=1, seeds=3))[0].already_finished
    assert sorted(load(folder).records["seed"].unique()) == [0, 1, 2]
    assert batch_state.read_state(folder, THIRD).batch == THIRD
    assert not (folder / "damaged").exists()


def test_batch_stored_under_another_name_is_recomputed(folder, go, study, two_batches, assert_same):
    put(two_batches if batch_state.read_state(folder, FIRST).batch else folder, SECOND, folder, FIRST)
    (line,) = verify(folder)
    assert FIRST in line
    assert "another batch; run the same sweep again into" in line
    with pytest.raises(InputError, match=r"another batch; run the same sweep again into"):
        load(folder).params(seed=0)
    _, lines = go(folder, study(chunk=1))
    assert [FIRST in line and "another batch; moved to" in line for line in lines] == [True]
    assert_same(folder, two_batches)
    assert verify(folder) == []


def test_seeds_of_an_unlisted_batch_are_not_added_to_the_run(folder, go, study, two_batches, assert_same):
    put(folder, SECOND, folder, THIRD)
    for name in batch_state.TABLES:
        (folder / f"{name}.parquet").unlink()
    with pytest.raises(InputError, match=rf"{THIRD}\."):
        load(folder)
    go(folder, study(chunk=1))
    assert manifest.read_manifest(folder)["seeds"] == [0, 1]
    assert (folder / "damaged" / THIRD).is_dir()
    assert_same(folder, two_batches)


@pytest.fixture(scope="module")
def wide(go, study, tmp_path_factory):
    """Return a run of the same study with additional seeds, in batches of two."""
    directory = tmp_path_factory.mktemp("wide") / "small"
    go(directory, study(chunk=2, seeds=4))
    return directory


@pytest.mark.parametrize("seeds", ["00000-00001", "00002-00003"])
@pytest.mark.parametrize("lost", [False, True])
def test_overlapping_batches_of_the_same_study_are_moved_aside(
    wide, folder, go, study, two_batches, assert_same, seeds, lost
):
    batch = f"cells-00000-00000-seeds-{seeds}"
    put(wide, batch, folder, batch)
    status = manifest.read_manifest(folder)
    manifest.write_manifest(folder, status | {"status": "running"})
    with pytest.raises(InputError, match=r"(has|contains) seeds that (are also in|are not in the manifest)"):
        load(folder)
    if lost:
        (folder / "manifest.json").unlink()
    _, lines = go(folder, study(chunk=1))
    # Without a manifest the requested seeds are unknown.
    kept = lost and seeds == "00002-00003"
    assert any("moved to" in line for line in lines) == (not kept)
    assert manifest.read_manifest(folder)["seeds"] == [0, 1, *([2, 3] if kept else [])]
    if not kept:
        assert_same(folder, two_batches)
    assert verify(folder) == []


def test_damaged_batch_is_rejected_only_if_the_manifest_does_not_list_it(folder):
    place = batch_state.path(folder, SECOND)
    place.write_bytes(b"{}")
    known = manifest.read_manifest(folder)
    assert strays.find_strays(folder, None, [0]) == {}
    assert strays.find_strays(folder, known, [0]) == {}
    listed = [batch for batch in known["batches"] if batch["name"] != SECOND]
    assert set(strays.find_strays(folder, known | {"batches": listed}, [0, 1])) == {SECOND}
