import shutil

import pytest

from jaxattn.engine import memory
from jaxattn.engine import plan as planning
from jaxattn.engine.plan import plan
from jaxattn.engine.store import Store
from jaxattn.errors import InputError


def test_groups_say_what_runs_together(tmp_path, study):
    axes = {"model.dim": [8, 16], "phases.embed.step_size": [1.0, 2.0, 3.0]}
    (cells, table), whole = plan(study(axes=axes, seeds=5, chunk=4), tmp_path / "none", quick=True)
    assert cells["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert cells["done"].tolist() == ["0 of 5"] * 6
    assert table["vmapped"].tolist() == ["seed, phases.embed.step_size"] * 2
    assert table[["cells", "lanes", "together", "batches"]].to_numpy().tolist() == [[3, 15, 3, 6]] * 2
    assert whole.startswith("small: 6 cells in 2 groups, 12 batches, 0 of them done")


def test_what_is_there_counts_as_done(two_batches, tmp_path, study):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    (cells, _), whole = plan(study(chunk=1, seeds=3), folder)
    assert cells["done"].tolist() == ["2 of 3"]
    assert "3 batches, 2 of them done, about " in whole


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_folder_of_another_config_is_refused_by_plan_and_run(small_run, go, study, chunk):
    wanted = study(axes={"model.dim": [8, 16]}, chunk=chunk)
    for refused in (lambda: plan(wanted, small_run, quick=True), lambda: go(small_run, wanted)):
        with pytest.raises(
            InputError, match=r"another config \(axes.model.dim: absent -> \[8, 16\]"
        ) as error:
            refused()
        assert "\n" not in str(error.value)


def test_a_folder_with_cells_of_another_config_is_refused(small_run, study):
    config = study().config
    store = Store(small_run)
    assert store.begun(config, {0: study().cells[0].config_hash})
    with pytest.raises(InputError, match=r"another config \(cell 0\)"):
        store.begun(config, {0: "other"})


def test_progress_tells_what_takes_long(tmp_path, study, monkeypatch):
    monkeypatch.setattr(planning, "estimate_runtime", lambda *arguments: 1.0)
    said = []
    plan(
        study(axes={"model.dim": [8, 16]}), tmp_path, progress=lambda text, share: said.append((text, share))
    )
    assert said == [("trying compile group 1 of 2", 0.0), ("trying compile group 2 of 2", 0.5)]


def test_quick_leaves_out_what_takes_compiling(tmp_path, monkeypatch, study):
    def refuse(*arguments):
        raise AssertionError("compiles")

    monkeypatch.setattr(memory, "predict", refuse)
    monkeypatch.setattr(planning, "estimate_runtime", refuse)
    tables, whole = plan(study(), tmp_path, quick=True)
    assert list(tables[1]) == ["group", "cells", "vmapped", "lanes", "together", "batches"]
    assert "left" not in whole
    with pytest.raises(AssertionError, match="compiles"):
        plan(study(), tmp_path)
