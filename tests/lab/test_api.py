"""A study as an object: made in Python, written, read, planned, run and looked at."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.study import seed

SWEEPS = Path(__file__).parents[1] / "sweeps"


@pytest.fixture(scope="session")
def mine():
    """The code of users as a module of theirs."""
    spec = importlib.util.spec_from_file_location("code_of_users", SWEEPS / "mine.py")
    module = sys.modules["code_of_users"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(**changes):
    """The small study in Python."""
    settings = {
        "name": "small",
        "seeds": 2,
        "data": ja.data.Independent(vocab_size=20, relevant=8, length=6, sequences=30, test_sequences=20),
        "model": ja.models.OneLayer(dim=16),
        "phases": [
            ja.dynamics.OneStep(name="embed", step_size=50.0),
            ja.dynamics.Descent(name="query", train=("p",), optimizer="sgd", step_size=0.1, steps=20),
        ],
        "probes": ja.Probes(min_count=1),
    }
    return ja.Study(**settings | changes)


def test_python_study_equals_the_study_from_the_sweep_file(study):
    assert small().config_hash == study().config_hash
    assert small().config == study().config
    axes = {"model.dim": [8, 16], "phases.query.step_size": [0.1, 0.2]}
    one, other = small(axes=axes), study(axes=axes)
    assert [cell.config_hash for cell in one.cells] == [cell.config_hash for cell in other.cells]
    assert small(axes={"model": {"dim": [8, 16]}}).cells[0].settings == {"model.dim": 8}


def test_name_table_instance_and_class_of_a_loss_are_equivalent():
    hashes = {
        small(loss=loss).config_hash
        for loss in ("logistic", {"kind": "logistic"}, ja.losses.Logistic(), ja.losses.Logistic)
    }
    assert len(hashes) == 1
    assert small(loss="hinge").config_hash not in hashes
    assert small(init={"p": "zero"}).base.starts["p"].__class__.__name__ == "Zero"


def own(mine, **changes):
    """A study of a user's own code, given as objects."""
    settings = {
        "name": "own",
        "seeds": 2,
        "dtype": "float64",
        "data": {
            "kind": f"{SWEEPS / 'mine.py'}:pairs",
            "vocab_size": 10,
            "sequences": 12,
            "test_sequences": 8,
        }
        | {"swapped": 0.25},
        "model": mine.Turned(dim=4, sharpness=2.0),
        "init": {"v": {"kind": f"{SWEEPS / 'mine.py'}:constant", "value": 0.25}},
        "loss": {"kind": f"{SWEEPS / 'mine.py'}:softened", "softness": 0.5},
        "phases": [
            ja.dynamics.Descent(
                name="clip",
                train=("E", "p"),
                optimizer=mine.clipped,
                step_size=0.5,
                steps=3,
                options={"limit": 0.01},
            ),
            mine.Wander(name="wander", step_size=0.1, noise=0.01),
        ],
        "probes": ja.Probes(bins=0, min_count=1, own=(mine.spread, mine.Travelled(), mine.Longest)),
        "figures": [mine.last_losses],
    }
    return ja.Study(**settings | changes)


@pytest.fixture(scope="module")
def ran(mine, tmp_path_factory):
    return own(mine).run(tmp_path_factory.mktemp("own") / "run", quiet=True)


def test_custom_objects_are_stored_by_import_path(mine):
    wanted = own(mine)
    assert {name for name in wanted.custom_kinds if name.startswith("code_of_users:")} == {
        f"code_of_users:{name}"
        for name in ("Turned", "clipped", "Wander", "spread", "Travelled", "Longest", "last_losses")
    }
    assert wanted.config["model"] == {
        "kind": "code_of_users:Turned",
        "dim": 4,
        "sharpness": 2.0,
        "rotation": "drawn",
        "init": {"v": {"kind": f"{SWEEPS / 'mine.py'}:constant", "value": 0.25}},
    }
    assert wanted.config["phases"][0]["optimizer"] == "code_of_users:clipped"


@pytest.mark.more
def test_custom_code_runs_from_python_and_from_a_sweep_file(ran, study, tmp_path):
    """The same tables, whether code is given as objects or named beside a sweep file."""
    tables = study("own").tree
    probes = tables["probes"] | {"own": ["mine.py:spread", "mine.py:Travelled", "mine.py:Longest"]}
    other = study("own", probes=probes).run(tmp_path / "file", quiet=True)
    pd.testing.assert_frame_equal(ran.records, other.records, check_exact=True)
    assert ran.finished
    assert {"spread", "travelled", "longest", "share_of_longest"} <= set(ran.records["metric"])
    assert ran.label("travelled") == "way of p"


@pytest.mark.more
def test_run_draws_figures_and_its_results_load_without_the_custom_code(ran):
    folder = ran.directory
    assert (folder / "figures" / "last_losses.svg").stat().st_size > 0
    code = (
        "import sys, jaxattn as ja\n"
        "found = ja.load(sys.argv[1])\n"
        "assert found.finished and len(found.records)\n"
        "assert found.params(seed=1, phase='clip').E.shape == (10, 4)\n"
        "assert not [name for name in sys.modules if name.startswith(('mine', 'code_of_users'))]\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_study_is_unchanged_after_writing_and_reading(mine, tmp_path):
    for number, wanted in enumerate(
        (
            small(axes={"model.dim": [8, 16]}),
            small(seeds="3:9", init={"p": "zero"}, figures=["curves"]),
            own(mine),
        )
    ):
        path = wanted.write(tmp_path / f"{number}.toml")
        again = ja.Study.read(path)
        assert again.config_hash == wanted.config_hash
        assert [cell.config_hash for cell in again.cells] == [cell.config_hash for cell in wanted.cells]
        assert again.seeds == wanted.seeds
        assert again.figures == wanted.figures


def test_code_without_an_import_path_cannot_be_written(tmp_path):
    class Local(ja.Model):
        dim: int = 3

        def init(self, key, like, *, dtype):
            return ja.models.OneLayer(dim=self.dim).init(key, like, dtype=dtype)

        def outputs(self, params, corpus):
            return ja.models.one_layer.outputs(params, corpus)

    wanted = small(model=Local())
    with pytest.raises(ja.InputError, match=r"Local: cannot be imported by a sweep file; move it to a file"):
        wanted.write(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sead": 3}, r"unknown key 'sead'; did you mean 'seeds'"),
        ({"phases": []}, "phases: expected 'array' of length >= 1"),
        ({"model": {"kind": "one_layer"}}, "model: missing key 'dim'"),
        (
            {"axes": {"model.dims": [3]}},
            r"cell 0 \(model.dims = 3\): model: unknown key 'dims'; did you mean 'dim'",
        ),
        ({"init": {"q": "zero"}}, "model.init: the model has no parameter 'q'"),
        ({"figures": ["nosuch"]}, "nosuch"),
        ({"figures": [{"kind": "curves", "phase": "nosuch"}]}, "nosuch"),
        ({"figures": [{"kind": f"{SWEEPS / 'mine.py'}:last_losses", "metri": "x"}]}, "did you mean 'metric'"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(changes, message):
    with pytest.raises(ja.InputError, match=message) as caught:
        small(**changes)
    assert "\n" not in str(caught.value)


def test_a_plan_lists_remaining_and_finished_work(tmp_path):
    wanted = small(axes={"model.dim": [8, 16]})
    cells, groups, sentence, _ = wanted.plan(tmp_path, quick=True)
    assert cells["model.dim"].tolist() == [8, 16]
    assert groups["runs"].tolist() == [2, 2]
    assert sentence.startswith("small: 2 cells in 2 groups, 4 of 4 runs missing, in 2 batches")
    assert wanted.folder() == Path("results/small")
    assert "2 cells × 2 seeds" in wanted._repr_html_()


def test_a_run_without_results_raises(mine, tmp_path):
    broken = small(loss={"kind": f"{SWEEPS / 'mine.py'}:broken"})
    with pytest.raises(ja.RunError, match=r"ZeroDivisionError in broken, line .* of .*mine.py"):
        broken.run(tmp_path / "run", quiet=True)
    # It is found on shapes, before a folder is begun.
    assert not (tmp_path / "run" / "study.json").exists()


@pytest.mark.more
def test_load_returns_the_same_results_as_run(tmp_path):
    ran = small().run(tmp_path / "run", quiet=True)
    again = ja.load(ran.directory)
    pd.testing.assert_frame_equal(again.records, ran.records)
    assert again.manifest == ran.manifest
    np.testing.assert_array_equal(again.params(seed=0).p, ran.params(seed=0).p)


@pytest.mark.more
def test_parameters_in_span_coordinates_match_the_full_space(study, tables, tmp_path):
    data = tables()["data"] | {"vocab_size": 10}
    sizes = {"dtype": "float64", "data": data, "model": {"kind": "one_layer", "dim": 64}}
    own = study(**sizes, phases=tables()["phases"][:1])
    found = own.run(tmp_path, quiet=True).params(seed=1)
    assert own.base.model.in_span() == own.base.model
    with jax.enable_x64(True):
        full = own.base._replace(model=ja.models.OneLayer(dim=64))

        @jax.jit
        def loop():
            data_key, key, _ = seed.keys(1)
            corpora = seed.draw_data(full, data_key)
            params = seed.initial_params(full, corpora, key, [])
            return ja.dynamics.one_step(params, corpora.train, step_size=50.0)

        moved = loop()
        for name in ("E", "p", "v"):
            np.testing.assert_allclose(getattr(found, name), getattr(moved, name), rtol=1e-10, atol=1e-11)
