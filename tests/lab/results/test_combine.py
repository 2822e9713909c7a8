from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.pages.layout import latex, markdown, write_page
from jaxattn.lab.results import aggregate
from jaxattn.lab.results.combine import _equal, choose, combine, group, paired
from jaxattn.lab.results.intervals import student_t
from jaxattn.lab.results.run import Run


@pytest.fixture
def folder(load_planted):
    """A run with loss = 100 d + 10 rate + seed/100 at step 1, and accuracy = seed."""

    def make(seeds, *, name="swept", dims=(8, 16), rates=(0.1, 0.2)):
        settings = [{"model.dim": d, "phases.query.step_size": r} for d in dims for r in rates]
        rows = [
            (cell, seed, "query", step, metric, value)
            for cell, s in enumerate(settings)
            for seed in seeds
            for step in (0, 1)
            for metric, value in (
                ("loss", step * (100 * s["model.dim"] + 10 * s["phases.query.step_size"] + seed / 100)),
                ("accuracy", float(seed)),
            )
        ]
        return load_planted(
            rows,
            name=name,
            config={"model": {"dim": 4}, "phases": [{"name": "query", "step_size": 0.1, "steps": 7}]},
            cells=[{"cell": k, "settings": s, "config_hash": f"{name}{s}"} for k, s in enumerate(settings)],
            seeds=list(seeds),
            failures=[{"cell": 0, "seed": seeds[0], "phase": "late", "step": 1, "reason": "NaN"}],
        )

    return make


def test_combined_shards_contain_all_seeds(folder):
    whole = folder(range(6))
    parts = [folder(range(4)), folder(range(4, 6))]
    both = combine(parts)
    assert both.manifest["seeds"] == [0, 1, 2, 3, 4, 5]
    assert both.axes == whole.axes
    assert {f["seed"] for f in both.manifest["failures"]} == {0, 4}
    pd.testing.assert_frame_equal(aggregate(both), aggregate(whole))
    assert combine([whole]) is whole


def test_combined_sweeps_are_distinguished_by_name(folder):
    both = combine([folder(range(2)), folder(range(2), name="other")])
    assert both.axes == ["sweep", "model.dim", "phases.query.step_size"]
    assert len(both.cells) == 8
    # In the order of the names of the folders, which are temporary.
    assert both.cells["sweep"].tolist() in (["swept"] * 4 + ["other"] * 4, ["other"] * 4 + ["swept"] * 4)


def test_merged_studies_keep_their_own_scales_and_labels_in_any_order(folder):
    """The metric `loss` of the second study is on a log scale, so its mean is geometric."""
    first, second = folder(range(2)), folder(range(2), name="other")
    scales, labels = {"loss": ["log", 0.0, None]}, {"loss": "planted loss"}
    second = replace(second, manifest=dict(second.manifest) | {"scales": scales, "labels": labels})
    found = [aggregate(combine(order)) for order in ([first, second], [second, first])]
    pd.testing.assert_frame_equal(*found)
    for name, alone in (("swept", first), ("other", second)):
        own = found[0][found[0]["sweep"] == name].drop(columns=["sweep", "cell"]).reset_index(drop=True)
        pd.testing.assert_frame_equal(own, aggregate(alone).drop(columns="cell"))
    assert combine([first, second]).label("loss") == "planted loss"
    third = replace(first, manifest=dict(first.manifest) | {"labels": {"loss": "another loss"}})
    assert combine([second, third]).label("loss") == "loss"


def changed(run, key, **tables):
    """Return a run whose cells have another identity, and another config."""
    cells = [cell | {"key": f"{key}{cell['cell']}"} for cell in run.manifest["cells"]]
    manifest = dict(run.manifest) | {"cells": cells, "config": dict(run.manifest["config"]) | tables}
    return replace(run, manifest=manifest)


def test_rows_that_differ_in_a_setting_outside_of_the_axes_are_told_apart(folder):
    phases = [{"name": "query", "step_size": 0.1, "steps": 9}]
    first, second = folder([0, 1]), changed(folder([0, 1]), "longer", phases=phases)
    for order in ([first, second], [second, first]):
        table = aggregate(combine(order))
        assert sorted(table["phases.query.steps"].unique()) == [7, 9]
        assert set(table["n"]) == {2}
        assert len(table) == 2 * len(aggregate(first))


def test_runs_of_different_code_are_never_pooled(folder):
    """Both folders have seeds of the same settings; a probe was edited in between."""
    first, second = folder([0, 1]), changed(folder([2, 3]), "edited")
    both = combine([first, second])
    assert both.axes[0] == "folder"
    assert both.cells["folder"].value_counts().to_dict() == {
        first.directory.name: 4,
        second.directory.name: 4,
    }
    table = aggregate(both)
    own = table[table["folder"] == second.directory.name].drop(columns=["folder", "cell"])
    expected = aggregate(second).drop(columns="cell")
    pd.testing.assert_frame_equal(own.reset_index(drop=True), expected)


def test_duplicate_seed_is_rejected(folder):
    with pytest.raises(ja.InputError, match=r"planted\d+: seed 1 is also in .*planted\d+"):
        combine([folder(range(2)), folder(range(1, 3))])


def test_lookup_finds_swept_and_fixed_keys(folder):
    results = folder(range(2))
    assert results.lookup(3, "model.dim") == 16
    assert results.lookup(3, "phases.query.steps") == results.lookup(3, "phases.0.steps") == 7
    with pytest.raises(ja.InputError, match=r"phases.embed.steps: no such key in the config of "):
        results.lookup(0, "phases.embed.steps")


def test_swept_key_that_a_cell_does_not_set_selects_the_other_cells(folder):
    """A list of cells, or a block, may set a key in some of the cells only."""
    results = folder(range(2))
    cells = [cell | {"settings": dict(cell["settings"])} for cell in results.manifest["cells"]]
    cells[3]["settings"]["data.relevant_mass"] = 0.7
    results = replace(results, manifest=dict(results.manifest) | {"cells": cells})
    assert [results.lookup(cell, "data.relevant_mass") for cell in (0, 3)] == [None, 0.7]
    chosen = choose(results, where={"data.relevant_mass": 0.7})
    assert [cell["cell"] for cell in chosen.manifest["cells"]] == [3]
    means = aggregate(group(results, ["data.relevant_mass"]))
    assert means["data.relevant_mass"].isna().tolist() == [True] * 4 + [False] * 4


def test_lookup_returns_the_value_set_in_the_block():
    blocks = {"two": {}, "three": {"data": {"relevant_per_sequence": 3}}}
    config = {"data": {"relevant_per_sequence": 2, "sequences": 40}, "blocks": blocks}
    cells = [{"cell": cell, "settings": {"block": name}} for cell, name in enumerate(blocks)]
    results = Run(Path(), {"config": config, "cells": cells}, pd.DataFrame(), pd.DataFrame())
    assert [results.lookup(cell, "data.relevant_per_sequence") for cell in (0, 1)] == [2, 3]
    assert results.lookup(1, "data.sequences") == 40


def test_lookup_finds_a_key_in_every_spelling_whether_an_axis_or_a_block_sets_it():
    """A phase can be addressed by its name or index in axes, in blocks and in lookups."""
    config = {
        "model": {"dim": 4, "init": {"p": {"kind": "scaled", "scale": 1.0}}},
        "phases": [{"name": "embed", "step_size": 20.0}, {"name": "q", "step_size": 0.5, "steps": 7}],
        "blocks": {
            "named": {"phases": {"embed": {"step_size": 5.0}}},
            "numbered": {"phases": {"0": {"step_size": 6.0}}},
            "listed": {"phases": [{"name": "q", "step_size": 7.0}]},
        },
    }
    settings = [
        {"block": "named", "phases.1.step_size": 2.0},
        {"block": "numbered", "phases.q.steps": 9},
        {"block": "listed", "model.init.p": {"kind": "zero"}},
    ]
    cells = [{"cell": k, "settings": own} for k, own in enumerate(settings)]
    run = Run(Path(), {"config": config, "cells": cells}, pd.DataFrame(), pd.DataFrame())
    for key in ("phases.embed.step_size", "phases.0.step_size"):
        assert [run.lookup(cell, key) for cell in (0, 1)] == [5.0, 6.0]
    for key in ("phases.q.step_size", "phases.1.step_size"):
        assert [run.lookup(cell, key) for cell in (0, 1)] == [2.0, 0.5]
    assert [run.lookup(cell, "phases.1.steps") for cell in (0, 1)] == [7, 9]
    assert run.lookup(2, "phases.0.step_size") == run.lookup(2, "phases.q.step_size") == 7.0
    assert [run.lookup(cell, "model.init.p.kind") for cell in (1, 2)] == ["scaled", "zero"]
    assert [entry["name"] for entry in run.lookup(0, "phases")] == ["embed", "q"]
    # The manifest is unchanged.
    assert config["phases"][0]["step_size"] == 20.0


def test_choose_selects_cells_metrics_and_phases(folder):
    results = folder(range(2))
    chosen = choose(results, where={"model.dim": "16"}, metrics=["loss"], phases=["query"])
    assert chosen.cells["model.dim"].tolist() == [16, 16]
    assert set(chosen.records["metric"]) == {"loss"}
    with pytest.raises(ja.InputError, match=r"metric 'los': not recorded by the run; did you mean 'loss'\?$"):
        choose(results, metrics=["los"])
    with pytest.raises(
        ja.InputError, match="metric 'entropy': not recorded; the run recorded accuracy, loss"
    ):
        choose(results, metrics=["entropy"])
    with pytest.raises(ja.InputError, match=r"phase 'embed': not recorded; the run recorded 'query'$"):
        choose(results, phases=["embed"])
    with pytest.raises(ja.InputError, match="no combination of cell, phase and metric matches"):
        choose(results, where={"model.dim": 17})


def test_choose_accepts_values_rounded_as_in_the_output(folder):
    third = 1 / 3
    results = folder(range(2), dims=(8, 16), rates=(150.0, third))
    for text, value in (("150", 150.0), ("1.5e2", 150.0), ("0.333333", third), (repr(third), third)):
        chosen = choose(results, where={"phases.query.step_size": text})
        assert set(chosen.cells["phases.query.step_size"]) == {value}
    table = aggregate(paired(results, "phases.query.step_size", "0.333333", "150"))
    rows = table[(table["metric"] == "loss") & (table["step"] == 1)]
    np.testing.assert_allclose(rows["mean"], 10 * (150 - third))
    with pytest.raises(
        ja.InputError, match=r"'7' and '150' were not both swept; choose two of 150, 0.333333"
    ):
        paired(results, "phases.query.step_size", "7", "150")
    close = folder(range(2), dims=(8,), rates=(third, third + 1e-9))
    with pytest.raises(
        ja.InputError, match=r"step_size: 0.333333 is ambiguous \(0.3333333333333333, 0.33333333"
    ):
        choose(close, where={"phases.query.step_size": "0.333333"})


@pytest.mark.parametrize(
    ("value", "wanted", "same"),
    [
        (True, "true", True),
        (False, "false", True),
        (1.0, True, True),
        ("150.0", "150", False),
        (150, "150.0", True),
        (150, "150.1", False),
        ("adam", "adam", True),
        (None, "0", False),
    ],
)
def test_choose_compares_numbers_by_value(value, wanted, same):
    assert _equal(value, wanted) == same


def test_group_averages_cells_for_each_seed(folder):
    results = folder(range(3))
    pooled = group(results, ["model.dim"])
    assert pooled.derived == ["means over cells of the same model.dim"]
    table = aggregate(pooled)
    row = table[(table["metric"] == "loss") & (table["step"] == 1)].set_index("model.dim")
    assert row["n"].tolist() == [3, 3]
    for d in (8, 16):
        of_seeds = [np.mean([100 * d + 10 * r + s / 100 for r in (0.1, 0.2)]) for s in range(3)]
        low, high = student_t(of_seeds)
        np.testing.assert_allclose(
            row.loc[d, ["mean", "mean_low", "mean_high"]].astype(float), [np.mean(of_seeds), low, high]
        )
    assert len(group(results, ["phases.query.steps"]).cells) == 1


def test_duplicate_cells_do_not_narrow_intervals(folder):
    """A seed has the same accuracy in all four cells, which therefore add no information."""
    results = folder(range(6))
    columns = ["n", "mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high"]
    found = {
        len(run.cells): aggregate(run).query("metric == 'accuracy' and step == 1").iloc[0][columns]
        for run in (results, group(results, ["phases.query.steps"]))
    }
    np.testing.assert_equal(found[1].tolist(), found[4].tolist())


def test_group_drops_seeds_that_are_missing_from_a_cell(folder):
    whole = folder(range(4), dims=(8,))
    records = whole.records
    lost = (records["cell"] == 0) & (records["seed"] == 1)  # has no records
    failed = (records["cell"] == 1) & (records["seed"] == 2) & (records["step"] == 1)
    records = records.assign(value=records["value"].mask(failed))[~lost]
    later = records[(records["cell"] == 1) & (records["step"] == 1)].assign(step=2)
    other = records[records["cell"] == 0].assign(phase="later")
    part = replace(whole, records=pd.concat([records, later, other]))
    table = aggregate(group(part, ["model.dim"])).set_index(["phase", "step", "metric"])
    loss = [np.mean([800 + 10 * r + s / 100 for r in (0.1, 0.2)]) for s in (0, 3)]
    assert table.loc[("query", 1, "loss"), ["n", "mean"]].tolist() == pytest.approx([2, np.mean(loss)])
    assert table.loc[("query", 0, "accuracy"), ["n", "mean"]].tolist() == pytest.approx([3, 5 / 3])
    # The last row has the last step of each cell. Seed 1 is missing from one, and seed 2 failed in the other.
    assert table.loc[("query", 2, "accuracy"), ["n", "mean"]].tolist() == pytest.approx([2, 3 / 2])
    # A phase that only one cell recorded has the values of that cell.
    assert table.loc[("later", 1, "accuracy"), ["n", "mean"]].tolist() == pytest.approx([3, 5 / 3])


def test_group_merges_seeds_from_several_folders(folder):
    both = combine([folder(range(2)), folder(range(1, 3), name="other")])
    table = aggregate(group(both, ["model.dim"])).query("metric == 'accuracy' and step == 1")
    assert table[["n", "mean"]].to_numpy().tolist() == [[1, 1], [1, 1]]


def test_paired_differences_cancel_shared_noise(folder):
    results = folder(range(3))
    table = aggregate(paired(results, "model.dim", 8, "16"))
    row = table[(table["metric"] == "loss") & (table["step"] == 1)]
    assert row["phases.query.step_size"].tolist() == [0.1, 0.2]
    np.testing.assert_allclose(row["mean"], 800)
    np.testing.assert_array_equal(table.loc[table["metric"] == "accuracy", "mean"], 0)
    with pytest.raises(ja.InputError, match=r"model.dim: 8 and 9 were not both swept"):
        paired(results, "model.dim", 8, 9)
    with pytest.raises(ja.InputError, match=r"data.length: not swept; swept keys: model.dim"):
        paired(results, "data.length", 8, 9)


@pytest.mark.parametrize("in_block", [False, True])
def test_zipped_keys_change_together_in_paired_differences(load_planted, in_block):
    grid = {"zip": {"model.dim": [8, 16], "phases.query.steps": [10, 40]}}
    config = {"phases": [{"name": "query"}]} | ({"blocks": {"b": grid}} if in_block else grid)
    settings = [
        {"data.length": length, "model.dim": d, "phases.query.steps": n}
        for length in (2, 3)
        for d, n in ((8, 10), (16, 40))
    ]
    rows = [
        (cell, seed, "query", 1, "loss", s["model.dim"] * s["data.length"] + seed)
        for cell, s in enumerate(settings)
        for seed in (0, 1)
    ]
    cells = [{"cell": k, "settings": s} for k, s in enumerate(settings)]
    run = load_planted(rows, name="x", config=config, cells=cells, seeds=[0, 1])
    found = paired(run, "model.dim", 8, 16)
    assert aggregate(found)["mean"].tolist() == [16.0, 24.0]
    assert list(found.axes) == ["data.length"]
    assert "model.dim = 16 minus 8, with phases.query.steps" in found.derived[-1]
    apart = load_planted(rows, name="x", config={"phases": [{"name": "query"}]}, cells=cells, seeds=[0, 1])
    with pytest.raises(ja.InputError, match="have no combination of seed, phase, step and metric in common"):
        paired(apart, "model.dim", 8, 16)


def test_two_cells_with_the_same_value_of_the_key_are_not_a_pair(load_planted):
    """A value may be repeated on a zipped axis, and the cell with the other value may be excluded."""
    sizes = [(0.5, 1), (0.5, 2), (1.0, 3)]
    settings = [{"data.length": n, "phases.query.step_size": x} for n in (4, 6) for x, _ in sizes[:2]]
    settings.append({"data.length": 6, "phases.query.step_size": 1.0})
    rows = [
        (cell, seed, "query", 1, "loss", 10 * s["phases.query.step_size"] + s["data.length"] + seed)
        for cell, s in enumerate(settings)
        for seed in (0, 1)
    ]
    cells = [{"cell": k, "settings": s} for k, s in enumerate(settings)]
    config = {"phases": [{"name": "query"}]}
    run = load_planted(rows, name="x", config=config, cells=cells, seeds=[0, 1])
    with pytest.raises(ja.InputError, match="have no combination of seed, phase, step and metric in common"):
        paired(run, "phases.query.step_size", 0.5, 1.0)
    fewer = choose(run, where={"data.length": 6}).manifest["cells"][1:]
    single = replace(run, manifest=dict(run.manifest) | {"cells": [*run.manifest["cells"][:2], *fewer]})
    found = paired(single, "phases.query.step_size", 0.5, 1.0)
    assert aggregate(found)["data.length"].tolist() == [6]
    np.testing.assert_allclose(aggregate(found)["mean"], 5.0)


@pytest.fixture
def lengths(load_planted):
    """Cells with 5 and 10 steps, two decays and loss = cell + seed/10 + step."""
    settings = [{"phases.query.steps": n, "decay": d} for n in (5, 10) for d in (0.1, 0.2)]
    rows = [
        (cell, seed, "query", step, "loss", cell + seed / 10 + step)
        for cell, found in enumerate(settings)
        for seed in range(3)
        for step in range(0, found["phases.query.steps"] + 1, 5)
    ]
    config = {"model": {"dim": 4}, "phases": [{"name": "query", "step_size": 0.1, "steps": 5}]}
    cells = [{"cell": k, "settings": s, "config_hash": str(k)} for k, s in enumerate(settings)]
    return load_planted(rows, name="lengths", config=config, cells=cells, seeds=[0, 1, 2], failures=[])


def test_last_rows_combine_the_last_step_of_each_cell(lengths):
    differences = paired(lengths, "phases.query.steps", 5, 10).records
    # Cells 0 and 2, and 1 and 3: the same steps, then the last steps, 10 and 5.
    found = {step: set(rows["value"].round(9)) for step, rows in differences.groupby("step")}
    assert found == {0: {2.0}, 5: {2.0}, 10: {7.0}}
    means = group(lengths, ["decay"]).records
    last = means[(means["step"] == 10) & (means["cell"] == 0)].sort_values("seed")["value"]
    np.testing.assert_allclose(last, [(0 + 5 + 2 + 10) / 2 + seed / 10 for seed in range(3)])
    alone = group(lengths, ["decay", "phases.query.steps"]).records
    assert len(alone) == len(lengths.records)


def test_failed_seed_has_no_paired_difference(folder):
    results = folder(range(3))
    records = results.records
    failed = (records["cell"] == 0) & (records["seed"] == 1)
    run = replace(results, records=records.assign(value=records["value"].mask(failed)))
    differences = paired(run, "model.dim", 8, 16)
    assert differences.derived == ["differences (model.dim = 16 minus 8)"]
    rows = aggregate(differences).query("metric == 'loss' and step == 1")
    assert rows["n"].tolist() == [2, 3]
    np.testing.assert_allclose(rows["mean"], 800)
    averages = group(differences, ["phases.query.steps"])
    assert averages.derived == [*differences.derived, "means over cells of the same phases.query.steps"]
    assert aggregate(averages).query("metric == 'loss' and step == 1")["n"].tolist() == [2]


def test_suffix_determines_the_table_format(tmp_path):
    table = pd.DataFrame({"name": ["a|b", "c_d"], "value": [0.123456, 1e-7]})
    for suffix in ("csv", "parquet", "tex", "md"):
        write_page(table, tmp_path / f"t.{suffix}")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), table)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table)
    assert markdown(table).splitlines()[2] == "| a\\|b | 0.123 |"
    assert "c\\_d & 1.00e-7" in latex(table)
    with pytest.raises(ja.InputError, match=r"t.xlsx: unsupported suffix for a table; use one of .csv"):
        write_page(table, tmp_path / "t.xlsx")
    with pytest.raises(ja.RunError, match="cannot be written"):
        write_page(table, tmp_path / "missing" / "t.csv")


def test_a_million_records_load_and_aggregate_quickly(folder, rewrite):
    """The bound of the time is loose for slow machines."""
    import sys

    path = folder(range(10), dims=range(1, 1001), rates=(0.1,)).directory
    step = np.tile(np.repeat(np.arange(100), 10), 1000)
    records = pd.DataFrame(
        {
            "cell": np.repeat(np.arange(1000, dtype=np.int32), 1000),
            "seed": np.tile(np.arange(10, dtype=np.int32), 100_000),
            "phase": "query",
            "step": step,
            "metric": "loss",
            "value": np.random.default_rng(0).normal(size=1_000_000),
        }
    )
    rewrite(path, "records", records)
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        loaded = ja.load(path)
    finally:
        sys.setprofile(None)
    # No function is called once per row. Each call counts twice, and there are 10,000 runs.
    assert calls < 600_000
    assert len(loaded.records) == 1_000_000


def test_cells_without_common_seeds_cannot_be_averaged(load_planted):
    cells = [{"cell": k, "settings": {"sweep": name}, "config_hash": name} for k, name in enumerate("ab")]
    config = {"model": {"kind": "one_layer", "dim": 4}, "phases": [{"name": "query"}]}
    for second in ((2, 3), (1, 2)):
        rows = [
            (cell, seed, "query", 0, "loss", 1.0) for cell, own in ((0, (0, 1)), (1, second)) for seed in own
        ]
        run = load_planted(rows, name="x", config=config, cells=cells, seeds=[0, 1, 2, 3], failures=[])
        if second == (1, 2):
            assert group(run, ["model.dim"]).records["value"].notna().sum() == 1
        else:
            with pytest.raises(ja.InputError, match="cells 0, 1: have no seed in common"):
                group(run, ["model.dim"])
