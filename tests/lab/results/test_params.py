"""Trained parameters from the checkpoints of batches."""

import dataclasses
import os
import resource
import shutil
import types
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from msgspec import structs

import jaxattn as ja
from jaxattn.data import corpus
from jaxattn.lab.results.combine import group
from jaxattn.lab.storage import batch_record, checkpoints, study_file
from jaxattn.lab.storage.batch_record import TABLES
from jaxattn.lab.study.code_hash import code_hash
from jaxattn.lab.study.effective import as_written

DIM, PADDED = 4, 6
SIZES = [3, 6]
SEEDS = [2, 3]
CELLS = [{"cell": k, "settings": {"data.vocab_size": V}, "key": str(k) * 32} for k, V in enumerate(SIZES)]


def shapes(dim=DIM):
    return {"E": (PADDED, dim), "p": (dim,), "v": (dim,)}


def runs(name, shape, phase, first=0):
    """Five vmapped runs, one of them padded; each number encodes run, name and phase."""
    size = int(np.prod(shape))
    start = 1000 * "Epv".index(name) + 10_000 * phase + first
    return start + 100 * np.arange(5.0, dtype=np.float64)[:, None] + np.arange(size)


def state(first=0, dim=DIM):
    sizes = shapes(dim)
    return {
        # Restored trees are sorted by name; "embed" and "joint" are already in that order.
        "embed": {name: runs(name, s, 0, first).reshape(5, *s) for name, s in sizes.items()},
        "joint": {name: runs(name, sizes[name], 1, first).reshape(5, *sizes[name]) for name in "p"},
    }


def pairs(*seeds):
    return [(cell["cell"], seed) for cell in CELLS for seed in seeds]


@pytest.fixture(scope="module")
def writer(write, batch_of, batches, tmp_path_factory):
    """Write a batch with a checkpoint into a folder."""
    whole = write(
        tmp_path_factory.mktemp("whole") / "run",
        axes={"data.vocab_size": SIZES},
        seeds=9,
        vocab_size=20,
        text=False,
    )
    tables = {name: pd.read_parquet(batch_of(whole) / f"{name}.parquet") for name in TABLES}

    def make(folder, runs, arrays, **record):
        numbers = {cell for cell, _ in runs}
        own = [cell for cell in CELLS if cell["cell"] in numbers]
        wanted = pd.MultiIndex.from_tuples(runs)
        kept = {
            name: t[pd.MultiIndex.from_frame(t[["cell", "seed"]]).isin(wanted)] for name, t in tables.items()
        }
        path = batches.write(folder, own, runs, kept, **record)
        saved = batch_record.read_record(path, folder)
        checkpoint = checkpoints.save(path / saved.checkpoint_name, arrays)
        batches.change(path, checkpoint=checkpoint)
        return path

    return make


@pytest.fixture(scope="module")
def folder(write, writer, batch_of, change_study, tmp_path_factory):
    """A study with a finished batch of seeds 2 and 3, an unfinished one of seed 7, and none of seed 8."""
    folder = write(
        tmp_path_factory.mktemp("run"), axes={"data.vocab_size": SIZES}, seeds=1, vocab_size=20, text=False
    )
    shutil.rmtree(batch_of(folder))
    config = study_file.read_study(folder)["config"] | {"model": {"kind": "mine.py:OneLayer", "dim": DIM}}
    change_study(folder, config=config, cells=CELLS, seeds=[*SEEDS, 7, 8])
    writer(folder, pairs(*SEEDS), state())
    writer(folder, pairs(7), state(), writer="elsewhere-1-00000000")
    return folder


@pytest.fixture
def batch(folder):
    """The folder of the finished batch."""
    (found,) = folder.glob("runs/*/checkpoint")
    return found.parent


@pytest.mark.parametrize(("cell", "seed", "lane"), [(0, 2, 0), (0, 3, 1), (1, 2, 2), (1, 3, 3)])
def test_padding_rows_are_removed_from_restored_parameters(folder, cell, seed, lane):
    found = ja.load(folder).params(cell=cell, seed=seed)
    E, p, v = runs("E", (PADDED, DIM), 0), runs("p", (DIM,), 1), runs("v", (DIM,), 0)
    np.testing.assert_array_equal(found["E"], E[lane].reshape(PADDED, DIM)[: SIZES[cell]])
    np.testing.assert_array_equal(found["p"], p[lane])
    np.testing.assert_array_equal(found["v"], v[lane])
    assert found["E"].dtype == np.float64


def test_vectors_as_long_as_the_padded_vocabulary_are_not_cut(folder, writer, tmp_path):
    """If d is the size of the padded vocabulary, only E is known to have one row per token."""
    square = tmp_path / "run"
    shutil.copytree(folder, square)
    shutil.rmtree(square / "runs")
    writer(square, pairs(*SEEDS), state(dim=PADDED))
    found = ja.load(square).params(cell=0, seed=2)
    E, p = runs("E", (PADDED, PADDED), 0), runs("p", (PADDED,), 1)
    np.testing.assert_array_equal(found["E"], E[0].reshape(PADDED, PADDED)[: SIZES[0]])
    np.testing.assert_array_equal(found["p"], p[0])
    assert found["v"].shape == (PADDED,)


def test_parameters_at_the_end_of_an_earlier_phase_can_be_restored(folder):
    results = ja.load(folder)
    np.testing.assert_array_equal(results.params(phase="embed")["p"], runs("p", (DIM,), 0)[0])
    np.testing.assert_array_equal(results.params(phase="joint")["p"], runs("p", (DIM,), 1)[0])
    np.testing.assert_array_equal(results.choose(phases=["joint"]).params()["p"], runs("p", (DIM,), 1)[0])


def test_phases_are_ordered_by_run_and_not_alphabetically(folder, configured):
    results = ja.load(folder)
    turned = configured(results, phases=results.manifest["config"]["phases"][::-1])
    renamed = dataclasses.replace(turned, records=results.records.iloc[::-1])
    np.testing.assert_array_equal(renamed.params()["p"], runs("p", (DIM,), 0)[0])


def one_layer(*, dim: int):
    return ja.models.OneLayer(dim=dim)


def wider(*, dim: int):
    class Wider:
        def init(self, key, like, *, dtype):
            return ja.models.OneLayer(dim=dim).init(key, like, dtype=dtype).replace(v=jnp.zeros(9))

    return Wider()


def other(*, heads: int = 2):
    return ja.models.MultiHead(dim=DIM, heads=heads)


def test_parameters_have_the_type_of_the_given_model(folder, batches, tmp_path):
    """A function gets the settings of the run, and its code is compared with that of the run."""
    kind = "mine.py:OneLayer"
    own = code_hash(one_layer)
    for code, warns in (({kind: own}, False), ({kind: own[::-1]}, True), ({}, True)):
        copied = shutil.copytree(folder, tmp_path / f"{warns}-{len(code)}")
        (path,) = copied.glob("runs/*/checkpoint")
        origin = batch_record.read_record(path.parent, copied).origin
        batches.change(path.parent, origin=structs.replace(origin, code=code))
        with pytest.warns(UserWarning, match=f"the code of {kind} is not known") if warns else nullcontext():
            found = ja.load(copied).params(cell=0, seed=3, model=one_layer)
        assert isinstance(found, ja.models.one_layer.Params)
        assert found.E.shape == (3, DIM)
        np.testing.assert_array_equal(found.p, runs("p", (DIM,), 1)[1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wider, r"model: has parameters .*'v': \(9,\).*pass the model used in the run"),
        (other, r"model: .*dim.*; the run recorded the model mine.py:OneLayer with the settings {'dim': 4}"),
        (ja.models.OneLayer(dim=9), "model.dim: 9, but 4 in the run; pass only the class or function"),
        (
            ja.models.from_linen(None),
            "expected the function or class .* mine.py:OneLayer, without a call, got A",
        ),
        (3, "expected the function or class of the run's model, mine.py:OneLayer, without a call, got int"),
    ],
)
@pytest.mark.filterwarnings("ignore:model. the code of")
def test_a_model_with_other_settings_is_rejected(folder, model, message):
    with pytest.raises(ja.InputError, match=message) as caught:
        ja.load(folder).params(model=model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": 9}, "cell 9: .* has only cells 0 to 1"),
        ({"seed": 5}, "seed 5: .* has only seeds 2, 3, 7, 8 for cell 0"),
        ({"phase": "late"}, "phase 'late': the checkpoint contains only embed, joint"),
        ({"seed": 7}, "seed 7 of cell 0 is not finished; run the same sweep again into"),
        ({"seed": 8}, "seed 8 of cell 0 is not finished; run the same sweep again into"),
    ],
)
def test_missing_checkpoint_raises_a_one_line_error(folder, options, message):
    with pytest.raises(ja.InputError, match=message) as caught:
        ja.load(folder).params(**options)
    assert "\n" not in str(caught.value)


def test_a_selection_of_cells_has_the_parameters_of_their_runs(folder):
    chosen = ja.load(folder).choose(where={"data.vocab_size": SIZES[1]})
    np.testing.assert_array_equal(chosen.params(cell=1, seed=3)["p"], runs("p", (DIM,), 1)[3])


def test_parameters_are_in_the_batch_and_lane_of_their_run(folder, writer, change_study, tmp_path):
    """Cells have other numbers than in their batches, and a run in two batches is in the first one."""
    copied = shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(copied / "runs")
    found = [
        writer(copied, [(1, 3), (0, 2)], state(10)),
        writer(copied, [(0, 3), (1, 2), (0, 2)], state(20)),
        writer(copied, [(1, 5)], state(30), resumable=False),
    ]
    change_study(copied, cells=[CELLS[1] | {"cell": 0}, CELLS[0] | {"cell": 4}], seeds=[2, 3])
    results = ja.load(copied)
    assert results.finished
    order = sorted(found[:2])
    first = 10 if order[0] == found[0] else 20
    lane = 1 if first == 10 else 2
    for cell, seed, start, index in ((0, 3, 10, 0), (4, 3, 20, 0), (0, 2, 20, 1), (4, 2, first, lane)):
        params = results.params(cell=cell, seed=seed)
        np.testing.assert_array_equal(params["p"], runs("p", (DIM,), 1, start)[index])
        assert params["E"].shape == (SIZES[1 - cell // 4], DIM)


def test_parameters_of_older_code_are_found_where_the_study_refers_to_them(
    folder, batches, change_study, tmp_path
):
    copied = shutil.copytree(folder, tmp_path / "run")
    cells = [CELLS[0] | {"key": "d" * 32, "older": {CELLS[0]["key"]: [3]}}, CELLS[1]]
    change_study(copied, cells=cells, seeds=SEEDS)
    results = ja.load(copied)
    np.testing.assert_array_equal(results.params(cell=0, seed=3)["p"], runs("p", (DIM,), 1)[1])
    with pytest.raises(ja.InputError, match="seed 2 of cell 0 is not finished"):
        results.params(cell=0, seed=2)


def test_parameters_of_a_resumable_batch_are_found(folder, writer, change_study, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(copied / "runs")
    arrays = {"state": {"carried": {"x": np.ones(5)}, "kept": state()}, "history": {"loss": np.ones(5)}}
    writer(copied, pairs(*SEEDS), arrays, resumable=True)
    change_study(copied, seeds=SEEDS)
    np.testing.assert_array_equal(ja.load(copied).params(seed=3)["p"], runs("p", (DIM,), 1)[1])
    np.testing.assert_array_equal(ja.load(copied).params(seed=3, phase="embed")["p"], runs("p", (DIM,), 0)[1])


@pytest.mark.parametrize("arrays", [{"embed": {"E": np.ones((3, 2))}}, {"embed": np.ones(4)}])
def test_checkpoint_with_fewer_runs_than_its_batch_is_rejected(
    folder, writer, change_study, tmp_path, arrays
):
    copied = shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(copied / "runs")
    writer(copied, pairs(*SEEDS), arrays)
    change_study(copied, seeds=SEEDS)
    with pytest.raises(ja.InputError, match="checkpoint: does not contain the parameters of 4 runs; load"):
        ja.load(copied).params()


def test_combined_folders_have_no_checkpoints(folder):
    results = ja.load(folder)
    manifest = {key: value for key, value in results.manifest.items() if key != "batches"}
    with pytest.raises(ja.InputError, match="no checkpoint for cell 0"):
        dataclasses.replace(results, manifest=manifest).params()


@pytest.mark.parametrize("damage", ["flipped", "emptied", "missing"])
def test_damage_to_any_checkpoint_file_is_detected(folder, batch, capfd, damage):
    """Any error or output of orbax becomes one line that names a checkpoint file."""
    results = ja.load(folder)
    for path in (path for path in (batch / "checkpoint").rglob("*") if path.is_file()):
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        path.write_bytes(changed if damage == "flipped" else b"")
        if damage == "missing":
            path.unlink()
        with pytest.raises(
            ja.InputError, match=rf"{path.name}: .*; run the same sweep again into {folder}$"
        ) as caught:
            results.params()
        assert "\n" not in str(caught.value)
        path.write_bytes(content)
    assert capfd.readouterr() == ("", "")
    assert results.params()["E"].shape == (3, DIM)


def test_low_open_file_limit_raises_a_one_line_error(folder, monkeypatch, capfd):
    used = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (used + 20, used + 20))
    with pytest.raises(ja.RunError, match=rf"only {used + 20} files may be open .* ulimit -n 1024"):
        ja.load(folder).params()
    assert capfd.readouterr() == ("", "")


def test_checksums_of_arrays_in_large_files_are_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SMALL", 0)
    known = checkpoints.save(tmp_path / "1", {"a": np.arange(1000.0), "b": {"c": jnp.ones(3)}})
    assert {sha256 for _, sha256 in known.files.values()} == {None}
    assert set(known.arrays) == {"a", "b/c"}
    found = checkpoints.restore(tmp_path / "1", known, tmp_path)
    np.testing.assert_array_equal(found["b"]["c"], 1)
    other = batch_record.Checkpoint(known.arrays | {"a": known.arrays["a"] ^ 1}, known.files)
    like = {"a": np.zeros(1000), "b": {"c": np.zeros(3, np.float32)}}
    with pytest.raises(ja.InputError, match="the checksums of its arrays differ"):
        checkpoints.restore(tmp_path / "1", other, tmp_path, like)


def test_built_in_model_determines_the_parameter_type(folder, configured):
    results = configured(ja.load(folder), model={"kind": "one_layer", "dim": DIM})
    assert isinstance(results.params(cell=1, seed=3), ja.models.one_layer.Params)
    cell = types.SimpleNamespace(setting=types.SimpleNamespace(model=ja.models.OneLayer(dim=DIM)))
    splits = types.SimpleNamespace(train=corpus.shapes(vocab_size=SIZES[1], num_classes=2))
    study = types.SimpleNamespace(cells=[None, cell], dataset=lambda seed, cell: splits)
    ours = dataclasses.replace(ja.load(folder), study=study)
    assert isinstance(ours.params(cell=1, seed=3), ja.models.one_layer.Params)


@pytest.mark.parametrize("dim", [10**12, 2**31 - 1, "many", [3]])
def test_invalid_model_raises_a_one_line_error(folder, configured, dim):
    """An allocation of that size would kill the interpreter."""
    forged = configured(ja.load(folder), model={"kind": "one_layer", "dim": dim})
    with pytest.raises(
        ja.InputError, match=r"this version of jaxattn cannot build the model: |do not fit in memory"
    ):
        forged.params()


@pytest.mark.more
def test_parameters_of_padded_and_blocked_runs_have_their_own_shapes(tmp_path):
    """As many heads as rows of the padded vocabulary, and a block that changes a phase."""
    study = ja.Study(
        name="heads",
        seeds=1,
        data={"kind": "independent", "vocab_size": 6, "relevant": 2, "length": 4, "sequences": 8},
        model={"kind": "multi_head", "dim": 4, "heads": 8},
        axes={"data.vocab_size": [6, 8]},
        phases=[ja.dynamics.OneStep(name="embed", step_size=1.0)],
        blocks={"a": {}, "b": {"phases": {"embed": {"step_size": 2.0}}}},
    )
    study.run(tmp_path / "out", quiet=True)
    results = ja.load(tmp_path / "out")
    for cell in range(4):
        params = results.params(cell=cell, seed=0)
        assert params.E.shape == (results.lookup(cell, "data.vocab_size"), 4)
        assert params.p.shape[0] == 8
    steps = [
        results.params(cell=cell, seed=0).E - results.params(cell=cell, seed=0, step=0).E for cell in (0, 2)
    ]
    np.testing.assert_allclose(2 * steps[0], steps[1], rtol=1e-3, atol=1e-6)


@pytest.mark.more
def test_cells_of_blocks_with_other_kinds_have_the_defaults_of_their_kinds(tmp_path):
    """The weights of `key_query` are the identity by default, and those of `mlp` are normal."""
    data = {"kind": "independent", "vocab_size": 12, "relevant": 4, "length": 4, "sequences": 16}
    study = ja.Study(
        name="kinds",
        seeds=1,
        data=data,
        model={"kind": "key_query", "dim": 8},
        phases=[ja.dynamics.OneStep(name="embed", step_size=1.0)],
        axes={"phases.embed.step_size": [1.0, 2.0]},
        blocks={
            "a": {},
            "b": {"model": {"kind": "mlp"}, "loss": "squared"},
            "c": {
                "data": {"kind": "assumption1"},
                "phases": {"embed": {"kind": "descent", "optimizer": "sgd", "steps": 2}},
            },
        },
    )
    ran = study.run(tmp_path / "out", quiet=True)
    results = ja.load(tmp_path / "out")
    for cell in study.cells:
        wanted = as_written(cell.tables)
        assert {key: x for key, x in results.tables(cell.number).items() if key in wanted} == wanted
        assert results.lookup(cell.number, "model.weights") == cell.setting.model.weights
        for step in (0, None):
            same = [run.params(cell=cell.number, step=step) for run in (ran, results)]
            jax.tree.map(np.testing.assert_array_equal, *same)
        splits = [run.dataset(0, cell.number).train.targets for run in (ran, results)]
        np.testing.assert_array_equal(*splits)
    normal = results.choose(where={"model.weights": "normal"})
    assert [cell["settings"]["block"] for cell in normal.manifest["cells"]] == ["b", "b"]
    grouped = group(results, ["model.weights"])
    assert sorted(cell["settings"]["model.weights"] for cell in grouped.manifest["cells"]) == [
        "identity",
        "normal",
    ]
    identity = next(
        c["cell"] for c in grouped.manifest["cells"] if c["settings"]["model.weights"] == "identity"
    )
    assert grouped.lookup(identity, "model.kind") == "key_query"
    with pytest.raises(ja.InputError, match=r"data\.kind: no such key"):
        grouped.lookup(identity, "data.kind")
