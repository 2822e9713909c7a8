"""A run depends on the contents of the files that its settings name."""

import re

import numpy as np
import pytest

import jaxattn as ja

ONE_STEP = {"name": "embed", "kind": "one_step", "step_size": 1.0}


def texts(path, rows):
    path.write_text("label,text\n" + "".join(f"{label},{text}\n" for label, text in rows * 5))
    return ja.data.Csv(path=str(path))


def study(data, seeds=1, **model):
    return ja.Study(
        name="t", seeds=seeds, data=data, model=ja.models.OneLayer(dim=3, **model), phases=[ONE_STEP]
    )


def drawn():
    return ja.data.Independent(vocab_size=6, relevant=4, length=3, sequences=8)


def start(path):
    return {"kind": "one_layer", "dim": 3, "init": {"p": {"file": str(path)}}}


def with_start(path, seeds=1):
    return ja.Study(name="t", seeds=seeds, data=drawn(), model=start(path), phases=[ONE_STEP])


def test_changed_texts_are_not_mixed_with_earlier_results(tmp_path):
    rows = [(0, "dull play"), (1, "fine play")]
    first = study(texts(tmp_path / "reviews.csv", rows)).run(tmp_path / "run", quiet=True)
    changed = study(texts(tmp_path / "reviews.csv", [(1, "sour soup"), (0, "good soup")]), seeds=2)
    with pytest.raises(ja.InputError, match=r"the texts of data changed since this run started"):
        changed.run(tmp_path / "run", quiet=True)
    renamed = study(texts(tmp_path / "other.csv", [(1, "sour soup"), (0, "good soup")]), seeds=2)
    with pytest.raises(ja.InputError, match=r"the texts of data changed since this run started"):
        renamed.run(tmp_path / "run", quiet=True)
    (tmp_path / "elsewhere").mkdir()
    moved = study(texts(tmp_path / "elsewhere" / "same.csv", rows), seeds=2)
    both = moved.run(tmp_path / "run", quiet=True).records
    assert set(both["seed"]) == {0, 1}
    assert both[both["seed"] == 0].reset_index(drop=True).equals(first.records.reset_index(drop=True))


def test_changed_start_is_not_mixed_with_earlier_results(tmp_path):
    np.save(tmp_path / "p.npy", np.ones(3, np.float32))
    with_start(tmp_path / "p.npy").run(tmp_path / "run", quiet=True)
    np.save(tmp_path / "p.npy", np.full(3, 2.0, np.float32))
    for accept in (False, True):
        with pytest.raises(ja.InputError, match=r"run: p\.npy changed since this run started; restore"):
            with_start(tmp_path / "p.npy", seeds=2).run(tmp_path / "run", quiet=True, accept_code=accept)
    np.save(tmp_path / "p.npy", np.ones(3, np.float32))
    both = with_start(tmp_path / "p.npy", seeds=2).run(tmp_path / "run", quiet=True)
    assert set(both.records["seed"]) == {0, 1}


def test_files_with_equal_names_are_compared_one_by_one(tmp_path):
    for folder, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "p.npy", np.full(3, value, np.float32))
    tables = {"p": {"file": str(tmp_path / "a" / "p.npy")}, "v": {"file": str(tmp_path / "b" / "p.npy")}}
    model = {"kind": "one_layer", "dim": 3, "init": tables}

    def run(seeds):
        made = ja.Study(name="t", seeds=seeds, data=drawn(), model=model, phases=[ONE_STEP])
        return made.run(tmp_path / "run", quiet=True)

    run(1)
    np.save(tmp_path / "b" / "p.npy", np.full(3, 3.0, np.float32))
    with pytest.raises(ja.InputError, match=re.escape("p.npy (2) changed since this run started")):
        run(2)


@pytest.mark.parametrize(
    "name",
    [".DS_Store", *(pytest.param(x, marks=pytest.mark.more) for x in ("._p", ".nfs0012", "Thumbs.db"))],
)
def test_files_of_file_managers_are_ignored(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_bytes(b"\0")
    made = study(drawn())
    expected = made.run(tmp_path / "run", quiet=True).params(seed=0).E
    for folder in [path for path in (tmp_path / "run").rglob("*") if path.is_dir()]:
        (folder / name).write_bytes(b"\0")
    results = ja.load(tmp_path / "run")
    np.testing.assert_array_equal(results.params(seed=0).E, expected)
    assert set(study(drawn(), seeds=2).run(tmp_path / "run", quiet=True).records["seed"]) == {0, 1}
