"""Methods of results, as used in a notebook."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.results import aggregate, summary_table
from jaxattn.lab.results.tokens import final_tokens, top


def test_aggregate_selects_rows_and_averages_over_cells(results):
    run = results["failed"]
    found = run.aggregate(metrics=["loss"], phases=["joint"], where={"data.kind": "a"}, by=["model.dim"])
    assert found["model.dim"].unique().tolist() == [64, 128]
    assert set(found["metric"]) == {"loss"}
    assert found["n"].max() == 4
    rows = run.with_axes(run.records)
    rows = rows[(rows["metric"] == "loss") & (rows["phase"] == "joint") & (rows["step"] == 1)]
    rows = rows[(rows["data.kind"] == "a") & (rows["model.dim"] == 64)]
    first = found[(found["model.dim"] == 64) & (found["step"] == 1)].iloc[0]
    assert first["mean"] == pytest.approx(rows["value"].mean())
    assert first["mean_low"] < first["mean"] < first["mean_high"]
    pd.testing.assert_frame_equal(run.aggregate(), aggregate(run))


def test_pair_subtracts_seed_by_seed(results):
    run = results["dims"]
    found = run.pair("model.dim", 64, 256, metrics=["test_accuracy"], phases=["joint"])
    assert set(found["metric"]) == {"test_accuracy"}
    rows = run.records[(run.records["metric"] == "test_accuracy") & (run.records["step"] == 2000)]
    wide = rows.pivot(index="seed", columns="cell", values="value")
    last = found[found["step"] == 2000].iloc[0]
    assert last["mean"] == pytest.approx((wide[2] - wide[0]).mean())
    assert last["n"] == 6
    with pytest.raises(ja.InputError, match="not swept"):
        run.pair("data.length", 1, 2)


def test_methods_of_results_match_the_functions(results):
    run = results["text"]
    pd.testing.assert_frame_equal(run.summary(), summary_table(run))
    pd.testing.assert_frame_equal(run.top_tokens(number=3), top(final_tokens(run), count=3))
    assert run.finished
    assert run.failures.empty
    chosen = run.choose(metrics=["loss"])
    assert isinstance(chosen, ja.Results)
    assert set(chosen.records["metric"]) == {"loss"}


def test_notebook_representation_is_a_summary(results):
    html = results["failed"]._repr_html_()
    for words in ("<b>planted</b>", "status: finished", "8 × 4", "embed, joint", "failed seeds: 3", "<table"):
        assert words in html
    run = results["text"]
    strange = dataclasses.replace(run, manifest=dict(run.manifest) | {"name": "<script>"})
    assert "<script>" not in strange._repr_html_()


def test_notebook_table_of_many_cells_is_truncated(results):
    run = results["text"]
    cells = [{"cell": cell, "settings": {"model.dim": cell + 1}} for cell in range(200)]
    loss = run.records[(run.records["metric"] == "loss") & (run.records["step"] == 1)]
    records = pd.concat([loss.assign(cell=np.int32(cell)) for cell in range(200)])
    many = dataclasses.replace(run, manifest=dict(run.manifest) | {"cells": cells}, records=records)
    assert many._repr_html_().count("<tr") < 40


def test_repr_of_results_is_short(results):
    shown = repr(results["dims"])
    assert shown.startswith("Results('")
    assert shown.endswith("4 × 6 cells × seeds, " + f"{len(results['dims'].records):,} records, finished)")
    assert len(shown.splitlines()) == 1
    assert len(shown) < 300
