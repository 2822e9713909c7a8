import json
import os
from types import MappingProxyType

import jax
import jax.numpy as jnp
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.core import backend
from jaxattn.lab.engine import monitor
from jaxattn.lab.engine.manifest import differences


@pytest.mark.more
def test_manifest_records_provenance(small_run, study):
    manifest = json.loads((small_run / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["config"]["model"]["dim"] == 16
    assert manifest["versions"]["jax"] == jax.__version__
    assert manifest["widths"] == [2]
    assert manifest["wall_time_s"] > 0
    assert monitor.peak_mib() is None or manifest["peak_memory_mib"] > 100
    assert len(manifest["config_hash"]) == 16
    assert manifest["config"] == study().config
    assert manifest["config_hash"] == study().config_hash
    assert manifest["cells"] == [{"cell": 0, "settings": {}, "config_hash": study().config_hash}]
    (batch,) = manifest["batches"]
    assert (batch["cells"], batch["seeds"]) == ([0], [0, 1])
    assert manifest["labels"]["loss"] == "loss"
    assert manifest["code"] == {}
    assert manifest["pinned"] == backend.PINNED
    assert manifest["xla_flags"] == os.environ["XLA_FLAGS"]


def test_results_do_not_depend_on_jax_settings(small_run, study, go, tmp_path):
    with jax.default_prng_impl("rbg"), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        go(tmp_path / "run", study())
    found, expected = (pd.read_parquet(x / "records.parquet") for x in (tmp_path / "run", small_run))
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


class Declares(ja.Probe):
    """Probe that declares the scales of its metrics."""

    scales = MappingProxyType({"share": ja.probes.Scale(low=0, high=1), "gap": ja.probes.Scale("log", low=0)})

    def measure(self, context):
        size = jnp.sum(context.params.p**2)
        return {"share": 1 / (1 + size), "gap": jnp.exp(-size)}


@pytest.mark.more
def test_manifest_contains_the_scales_of_probe_metrics(study, tmp_path):
    made = ja.Study(**(study().tree | {"probes": [Declares]}))
    results = made.run(tmp_path / "out", quiet=True)
    assert results.manifest["scales"] == {"share": ["linear", 0, 1], "gap": ["log", 0, None]}
    found = results.aggregate(metrics=["share", "gap"]).set_index("metric")
    assert (found.loc["share", "mean_high"].dropna() <= 1).all()
    assert found.loc["gap", "scale"].unique().tolist() == ["log"]


def test_run_can_be_resumed_from_its_manifest(small_run, study):
    """The tables of a manifest define the same study."""
    config = json.loads((small_run / "manifest.json").read_text())["config"]
    again = type(study()).of_tables(config)
    assert again.config_hash == study().config_hash
    assert differences(config, again.config) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"model": {"dim": 3}}, {"model": {"dim": 4}}, ["model.dim: 3 -> 4"]),
        (
            {"phases": [{"name": "a", "steps": 3}]},
            {"phases": [{"name": "a"}]},
            ["phases.a.steps: 3 -> absent"],
        ),
        ({"seeds": 3, "description": "x"}, {"seeds": 4, "description": "y"}, []),
        ({"data": {"path": "x"}}, {"data": {"path": "y"}}, []),
        ({"data": {"labels": [1, 2]}}, {"data": {"labels": [1, 2], "class_names": ["a", "b"]}}, []),
        ({"data": {"labels": [1, 2]}}, {"data": {"labels": [2, 1]}}, ["data.labels: [1, 2] -> [2, 1]"]),
        ({"axes": {"model.dim": [1]}}, {"axes": {"model.dim": [2]}}, ["axes.model.dim: [1] -> [2]"]),
        ({"blocks": {"a": {"x": 1}}}, {"blocks": {"a": {"x": 2}}}, ["blocks.a.x: 1 -> 2"]),
    ],
)
def test_differences_list_changed_settings(old, new, expected):
    assert differences(old, new) == expected
