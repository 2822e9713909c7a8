import re
import shutil
from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.lab.engine import memory
from jaxattn.lab.engine import plan as planning
from jaxattn.lab.engine.batches import Batch
from jaxattn.lab.engine.plan import check_metrics, plan_study, recorded_lines
from jaxattn.lab.engine.program_cache import ProgramCache, programs
from jaxattn.lab.study.groups import compile_groups


def test_plan_lists_the_groups(tmp_path, study):
    axes = {"model.dim": [8, 16], "phases.embed.step_size": [1.0, 2.0, 3.0]}
    (cells, table), whole = plan_study(study(axes=axes, seeds=5, chunk=4), tmp_path / "none", quick=True)
    assert cells["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert cells["done"].tolist() == ["0 of 5"] * 6
    assert table["vmapped"].tolist() == ["seed, phases.embed.step_size"] * 2
    assert table[["cells", "runs", "together", "batches"]].to_numpy().tolist() == [[3, 15, 4, 4]] * 2
    # As few batches of up to four runs as possible, of nearly equal size.
    assert whole == "small: 6 cells in 2 groups, 30 of 30 runs missing, in 8 batches"


@pytest.mark.more
def test_plan_counts_finished_runs(two_batches, study, contents):
    before = contents(two_batches)
    (cells, groups), whole = plan_study(study(chunk=1, seeds=3), two_batches)
    assert cells["done"].tolist() == ["2 of 3"]
    assert groups[["runs", "batches"]].to_numpy().tolist() == [[1, 1]]
    assert "1 of 3 runs missing, in 1 batch, about " in whole
    assert contents(two_batches) == before


def test_plan_of_a_finished_study_traces_nothing(two_batches, study, monkeypatch):
    for owner, name in ((ProgramCache, "of"), (memory, "peak"), (planning, "estimate_runtime")):
        monkeypatch.setattr(owner, name, None)
    (cells, groups), whole = plan_study(study(chunk=1), two_batches)
    assert (cells["done"].tolist(), groups["batches"].tolist()) == (["2 of 2"], [0])
    assert whole == "small: 1 cell in 1 group, 0 of 2 runs missing, in 0 batches, about 0 s left"
    other = study(chunk=1, model={"kind": "one_layer", "dim": 8})
    with pytest.raises(TypeError):
        plan_study(other, two_batches)


@pytest.mark.more
def test_plan_counts_the_rest_of_a_started_batch_and_of_another_study(
    two_batches, tmp_path, study, stop, go, counted, contents
):
    """The plan has the batches that a run then computes."""
    folder = shutil.copytree(two_batches, tmp_path / "small")
    stop(folder, study(seeds="2:4"), 3)
    counted.clear()
    wanted = study(seeds=6, chunk=1)
    before = contents(folder)
    (cells, groups), whole = plan_study(wanted, folder, quick=True)
    assert contents(folder) == before
    assert cells["done"].tolist() == ["2 of 6"]
    assert groups[["runs", "together", "batches"]].to_numpy().tolist() == [[4, 2, 3]]
    assert whole == "small: 1 cell in 1 group, 4 of 6 runs missing, in 3 batches"
    go(folder, wanted)
    assert [len(runs) for runs, _ in counted] == [2, 1, 1]


def test_plan_neither_warns_about_nor_moves_damaged_batches(
    two_batches, tmp_path, study, flip, contents, listed
):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    flip(folder / "runs" / listed(folder).finished[0] / "records.parquet")
    before = contents(folder)
    (cells, _), _ = plan_study(study(chunk=1), folder, quick=True)
    assert cells["done"].tolist() == ["1 of 2"]
    assert contents(folder) == before


def test_plan_refuses_a_folder_with_other_files(tmp_path, study):
    (tmp_path / "thesis.txt").write_text("my life's work")
    with pytest.raises(ja.InputError, match="neither empty nor a results folder"):
        plan_study(study(), tmp_path, quick=True)


def test_plan_reports_progress(tmp_path, study, monkeypatch):
    monkeypatch.setattr(planning, "estimate_runtime", lambda *arguments: 1.0)
    monkeypatch.setattr(memory, "peak", lambda *arguments: 1)
    said = []
    plan_study(
        study(axes={"model.dim": [8, 16]}), tmp_path, progress=lambda text, share: said.append((text, share))
    )
    assert said == [("trying compile group 1 of 2", 0.0), ("trying compile group 2 of 2", 0.5)]


def test_quick_plan_does_not_compile(tmp_path, monkeypatch, study):
    def refuse(*arguments):
        raise AssertionError("compiles")

    monkeypatch.setattr(memory, "peak", refuse)
    monkeypatch.setattr(planning, "estimate_runtime", refuse)
    tables, whole = plan_study(study(), tmp_path, quick=True)
    assert list(tables[1]) == ["group", "cells", "coordinates", "vmapped", "runs", "together", "batches"]
    assert "left" not in whole
    with pytest.raises(AssertionError, match="compiles"):
        plan_study(study(), tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.more
def test_plan_shows_the_number_of_span_coordinates(tmp_path, study, dtype):
    """The vocabulary of 20 tokens is padded to 32, so E, p and v span 34 dimensions."""
    axes = {"model.dim": [16, 64, "inf"], "phases.query.optimizer": ["sgd", "adam"]}
    exclude = [{"model.dim": "inf", "phases.query.optimizer": "adam"}]
    _, groups = plan_study(study(axes=axes, exclude=exclude, dtype=dtype), tmp_path, quick=True)[0]
    assert groups["coordinates"].tolist() == ["16", "16", "34 for d = 64", "64", "34 for d = inf"]


@pytest.mark.parametrize("name", ["small", pytest.param("flow", marks=pytest.mark.more)])
def test_planned_metrics_match_recorded_metrics(name, study, request, read):
    wanted = study(name)
    records, _ = read(request.getfixturevalue(f"{name}_run"))
    for phase, line in zip(("embed", "query"), recorded_lines(wanted), strict=True):
        found = set(records.loc[records["phase"] == phase, "metric"])
        said, _, missing = line.removeprefix(f"{phase} records ").partition("; not ")
        names = {name for text in said.split(", ") for name in _spelled(text)}
        assert names == found
        assert ("one_step_error (requires a phase of one full step)" in missing) == (phase != "embed")
        assert ("max_margin" in names) == (phase != "embed" and name == "flow")


def _spelled(text):
    """Expand "Ev_bin_00 .. 02" to all names."""
    first, several, last = text.partition(" .. ")
    return [f"{first[:-2]}{k:02d}" for k in range(int(last) + 1)] if several else [text]


def test_plan_states_why_probes_are_skipped(tmp_path, study):
    two_layers = study(model={"kind": "two_layer", "dim": 4}, phases=study().tree["phases"][:1])
    (line,) = recorded_lines(two_layers)
    reason = "(requires a ja.TokenModel)"
    assert f"; not important_mass, important_selected, important_tied, selected_tokens {reason}" in line
    assert {"loss", "p_norm"} <= set(line.partition("; ")[0].split(", "))


def test_metric_of_a_custom_probe_is_not_listed_as_skipped():
    """A custom probe may replace a built-in probe that does not apply."""

    def mass(params, data):
        return {"important_mass": params.p.sum()}

    data = ja.data.Assumption1(vocab_size=20, relevant=8, length=4, sequences=10)
    phase = ja.dynamics.Descent(name="train", train=("p",), steps=2, optimizer="sgd", step_size=0.1)
    study = ja.Study(name="own", data=data, model=ja.models.TwoLayer(dim=4), phases=[phase], probes=[mass])
    (line,) = recorded_lines(study)
    recorded, _, skipped = line.partition("; not ")
    assert "important_mass" in recorded
    assert skipped.startswith("important_selected, important_tied, selected_tokens (requires")


@pytest.mark.more
def test_estimated_time_grows_with_the_number_of_steps_and_seeds(study, tables):
    phases = tables()["phases"]
    times = []
    for steps, seeds in ((20, 4), (200_000, 400)):
        wanted = study(phases=[*phases[:1], phases[1] | {"steps": steps}], seeds=seeds)
        (group,) = compile_groups(wanted.cells)
        remaining = [Batch(group, tuple((group.cells[0], seed) for seed in range(seeds)))]
        times.append(planning.estimate_runtime(group, programs(group.setting), remaining))
    assert 0 < times[0] < times[1] / 20


def test_figures_with_unknown_metrics_raise_before_the_run(study, tmp_path):
    for figure, said in (
        (
            {"kind": "curves", "metrics": ["loss", "lss"]},
            r"figures\[0\].metrics\[1\]: 'lss' .*; did you mean 'loss'",
        ),
        ({"kind": "curves", "x": "p_nrm"}, r"figures\[0\].x: 'p_nrm' is not measured by the study"),
        ({"kind": "convergence", "x": "p_norm", "y": "margin_shortfall"}, "'margin_ratio'"),
    ):
        with pytest.raises(ja.InputError, match=said):
            ja.Study.from_tables(study().tree | {"figures": [figure]}).run(tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()
    check_metrics(study(), {"a": "Ev_bin_00", "b": "test_accuracy_best_on_test", "c": "p_norm"})
    check_metrics(study(), {})


SWEEPS = Path(__file__).parents[3] / "sweeps"
# Texts are not available here, and books and their items are not studies.
SHIPPED = sorted(
    path
    for path in SWEEPS.rglob("*.toml")
    if path.name not in ("book.toml", "item.toml")
    and not re.search("tfds|imdb", path.read_text(encoding="utf-8"), re.IGNORECASE)
)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.relative_to(SWEEPS).as_posix(), marks=marks)
        for path in SHIPPED
        for marks in ([[]] if path.parent.name == "own" else [[pytest.mark.more]])
    ],
)
@pytest.mark.more
def test_every_shipped_sweep_has_a_quick_plan(path, tmp_path):
    made = ja.Study.read(path)
    if "yelp" in path.parent.name:
        with pytest.raises(ja.InputError, match=r"no file .*yelp_stars\.parquet"):  # not part of the project
            plan_study(made, tmp_path / "none", quick=True)
        return
    (cells, groups), whole = plan_study(made, tmp_path / "none", quick=True)
    assert len(cells) == len(made.cells)
    assert whole.startswith(f"{made.name}: ")
    assert len(groups["coordinates"]) == len(groups)


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(SWEEPS).as_posix())
def test_every_shipped_sweep_has_a_plan(path, tmp_path):
    (_, groups), whole = plan_study(ja.Study.read(path), tmp_path / "none")
    assert whole.endswith(" left")
    assert groups["memory"].str.endswith(" MiB").all()
