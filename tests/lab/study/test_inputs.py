"""A run depends on the contents of the files that its settings name."""

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.engine import attempt
from jaxattn.lab.study import inputs
from jaxattn.lab.study.identity import identities
from jaxattn.lab.study.inputs import Inputs

ONE_STEP = {"name": "embed", "kind": "one_step", "step_size": 1.0}
DULL, SOUR = [(0, "dull play"), (1, "fine play")], [(1, "sour soup"), (0, "good soup")]


def texts(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("label,text\n" + "".join(f"{label},{text}\n" for label, text in rows * 5))
    return ja.texts.Csv(path=str(path))


def study(data, seeds=1, **model):
    return ja.Study(
        name="t", seeds=seeds, data=data, model=ja.models.OneLayer(dim=3, **model), phases=[ONE_STEP]
    )


def drawn():
    return ja.data.Independent(vocab_size=6, relevant=4, length=3, sequences=8)


def with_start(seeds=1, axes=None, **starts):
    init = {name: {"file": str(path)} for name, path in starts.items()}
    model = {"kind": "one_layer", "dim": 3, "init": init}
    return ja.Study(name="t", seeds=seeds, data=drawn(), model=model, phases=[ONE_STEP], axes=axes or {})


def put(path, value):
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.full(3, value, np.float32))
    return path


@pytest.fixture
def computed(monkeypatch):
    """Collect the seeds that are computed."""
    seeds, run_batch = [], attempt.run_batch

    def counted(batch, *arguments, **options):
        seeds.extend(seed for _, seed in batch.runs)
        return run_batch(batch, *arguments, **options)

    monkeypatch.setattr(attempt, "run_batch", counted)
    return seeds


def run_in(folder, wanted, **options):
    return wanted.run(folder, quiet=True, report=False, **options)


@pytest.mark.more
def test_changed_texts_are_not_mixed_with_earlier_results(tmp_path, computed):
    path = tmp_path / "reviews.csv"
    first = run_in(tmp_path / "run", study(texts(path, DULL)))
    changed = run_in(tmp_path / "run", study(texts(path, SOUR), seeds=2))
    assert computed == [0, 0, 1]
    assert not changed.records.query("seed == 0").equals(first.records)
    fresh = run_in(tmp_path / "fresh", study(texts(path, SOUR), seeds=2))
    pd.testing.assert_frame_equal(changed.records, fresh.records, check_exact=True)
    computed.clear()
    # A file may be renamed, and moved.
    run_in(tmp_path / "run", study(texts(tmp_path / "other.csv", SOUR), seeds=2))
    again = run_in(tmp_path / "run", study(texts(tmp_path / "elsewhere" / "same.csv", DULL)))
    assert computed == []
    pd.testing.assert_frame_equal(again.records, first.records, check_exact=True)


@pytest.mark.more
def test_changed_start_is_not_mixed_with_earlier_results(tmp_path, computed):
    path = put(tmp_path / "p.npy", 1.0)
    first = run_in(tmp_path / "run", with_start(p=path))
    put(path, 2.0)
    changed = run_in(tmp_path / "run", with_start(p=path, seeds=2), reuse_code=True)
    assert computed == [0, 0, 1]
    assert not changed.records.query("seed == 0").equals(first.records)
    for seed in (0, 1):
        np.testing.assert_array_equal(changed.params(seed=seed).p, np.full(3, 2.0))
    computed.clear()
    put(path, 1.0)
    again = run_in(tmp_path / "run", with_start(p=path))
    assert computed == []
    pd.testing.assert_frame_equal(again.records, first.records, check_exact=True)
    np.testing.assert_array_equal(again.params(seed=0).p, np.ones(3))


def keys_of(wanted):
    return {number: identity.key for number, identity in identities(wanted)[0].items()}


def test_identity_depends_on_the_contents_of_starts_and_not_on_their_folders(tmp_path):
    one, other = put(tmp_path / "a" / "p.npy", 1.0), put(tmp_path / "b" / "p.npy", 2.0)
    before = keys_of(with_start(p=one))
    assert before == keys_of(with_start(p=one))
    assert before != keys_of(with_start(p=other))
    put(one, 3.0)
    assert before != keys_of(with_start(p=one))
    put(one, 1.0)
    assert before == keys_of(with_start(p=one))
    # The same arrays in each other's place are not the same start.
    put(other, 2.0)
    assert keys_of(with_start(p=one, v=other)) != keys_of(with_start(p=other, v=one))


def test_files_with_equal_names_are_listed_one_by_one(tmp_path):
    one, other = put(tmp_path / "a" / "p.npy", 1.0), put(tmp_path / "b" / "p.npy", 2.0)
    made = with_start(p=one, v=other)
    _, before = identities(made)
    assert list(before) == ["p.npy", "p.npy (2)"]
    keys = keys_of(made)
    put(other, 3.0)
    _, after = identities(with_start(p=one, v=other))
    assert after["p.npy"] == before["p.npy"]
    assert after["p.npy (2)"] != before["p.npy (2)"]
    assert keys_of(with_start(p=one, v=other)) != keys


def test_only_cells_that_name_a_file_depend_on_it(tmp_path):
    one, other = put(tmp_path / "one.npy", 1.0), put(tmp_path / "other.npy", 2.0)
    axes = {"model.init.p.file": [str(one), str(other)]}
    before = keys_of(with_start(p=one, axes=axes))
    put(other, 3.0)
    after = keys_of(with_start(p=one, axes=axes))
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_each_file_is_read_once(tmp_path, monkeypatch):
    path = put(tmp_path / "p.npy", 1.0)
    read, digest = [], inputs.source_digest
    monkeypatch.setattr(inputs, "source_digest", lambda *given: read.append(given[0]) or digest(*given))
    identities(with_start(p=path, axes={"phases.embed.step_size": [1.0, 2.0, 3.0]}))
    assert read == [{"": str(path)}]


def test_settings_without_files_have_no_hashes():
    made = Inputs()
    assert made.of(study(drawn()).base) == {}
    assert made.hashes == {}


@pytest.mark.parametrize(
    "name",
    [".DS_Store", *(pytest.param(x, marks=pytest.mark.more) for x in ("._p", ".nfs0012", "Thumbs.db"))],
)
def test_files_of_file_managers_are_ignored(tmp_path, name, computed, tables):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_bytes(b"\0")
    # The study of other tests, which compile its programs for one seed.
    one, two = (ja.Study.from_tables(tables(seeds=seeds, chunk=1)) for seeds in (1, 2))
    expected = run_in(tmp_path / "run", one).params(seed=0).E
    for folder in [path for path in (tmp_path / "run").rglob("*") if path.is_dir()]:
        (folder / name).write_bytes(b"\0")
    results = ja.load(tmp_path / "run")
    np.testing.assert_array_equal(results.params(seed=0).E, expected)
    assert set(run_in(tmp_path / "run", two).records["seed"]) == {0, 1}
    assert computed == [0, 1]


@pytest.mark.parametrize("change", ["contents", "deleted"])
def test_file_that_changes_after_it_was_hashed_is_detected(tmp_path, change):
    path = put(tmp_path / "p.npy", 1.0)
    made = Inputs()
    identities(with_start(p=path), made)
    made.check()
    put(path, 1.0)  # written again, with the same contents
    made.check()
    if change == "contents":
        put(path, 2.0)
    else:
        path.unlink()
    with pytest.raises((ja.RunError, ja.InputError), match=r"p\.npy"):
        made.check()


@pytest.mark.more
def test_file_that_changes_during_a_run_is_not_mixed(tmp_path, computed, monkeypatch):
    path = put(tmp_path / "p.npy", 1.0)
    wanted = with_start(p=path, seeds=2, axes={"model.dim": [3], "data.length": [3, 4]})
    original, begun = attempt.run_batch, []

    def second(batch, *arguments, **options):
        begun.append(batch)
        if len(begun) == 2:
            put(path, 2.0)
        return original(batch, *arguments, **options)

    monkeypatch.setattr(attempt, "run_batch", second)
    with pytest.raises(ja.RunError, match=r"p\.npy: changed while the study was running"):
        run_in(tmp_path / "run", wanted)
    found = run_in(tmp_path / "run", wanted)
    fresh = run_in(tmp_path / "fresh", wanted)
    pd.testing.assert_frame_equal(found.records, fresh.records, check_exact=True)
    for cell in (0, 1):
        np.testing.assert_array_equal(found.params(seed=0, cell=cell).p, np.full(3, 2.0))
