"""What is stored with results: the content of study.json, and how each batch was computed."""

import json
import os
from types import MappingProxyType

import jax
import jax.numpy as jnp
import pytest

import jaxattn as ja
from jaxattn.core import backend
from jaxattn.lab.engine import devices, monitor
from jaxattn.lab.engine.description import note_unhashed, scales, study_content
from jaxattn.lab.storage import provenance
from jaxattn.lab.storage.study_file import find_study
from jaxattn.lab.study.identity import identities, package_hash


def test_study_file_contains_the_config_and_the_runs_that_are_asked_for(small_run, study, finished):
    found = json.loads((small_run / "study.json").read_text())
    assert found["config"] == study().config
    assert found["config_hash"] == study().config_hash
    identity, _ = identities(study())
    cell = {"cell": 0, "settings": {}, "key": identity[0].key, "config_hash": study().config_hash}
    assert found["cells"] == [cell]
    (record,) = finished(small_run).values()
    assert record.identities == [(identity[0].key, 0), (identity[0].key, 1)]
    assert (found["seeds"], found["code"], found["command"]) == ([0, 1], {}, "test")
    assert found["labels"]["loss"] == "loss"
    # Nothing in it depends on the run, so it changes only if something else is asked for.
    assert find_study(small_run)["cells"][0]["older"] == {}


def test_record_of_a_batch_contains_how_it_was_computed(small_run, finished):
    (record,) = finished(small_run).values()
    origin = record.origin
    assert (origin.width, len(record.runs)) == (2, 2)
    assert origin.package == provenance.installed()
    assert origin.computing == package_hash()
    assert origin.versions["jax"] == jax.__version__
    assert {"jaxlib", "numpy", "optax"} <= set(origin.versions)
    assert origin.device.kind == devices.describe_devices()["kind"]
    assert origin.pinned == backend.PINNED
    assert origin.xla_flags == os.environ["XLA_FLAGS"]
    assert origin.started.startswith("20")
    assert origin.command == "test"
    assert record.wall_time_s > 0
    assert monitor.peak_mib() is None or record.peak_memory_mib > 100


def test_study_can_be_run_again_from_its_file(small_run, study, go):
    config = json.loads((small_run / "study.json").read_text())["config"]
    again = type(study()).from_tables(config)
    assert identities(again) == identities(study())
    outcome, _ = go(small_run, again)
    assert (outcome.already_finished, outcome.renewed) == (True, False)


def test_another_command_alone_does_not_change_the_study_file(small_run, study, contents):
    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.engine.run_study import run_study

    before = contents(small_run)
    with Reporter(quiet=True) as reporter:
        outcome = run_study(study(), small_run, command="another", reporter=reporter)
    assert not outcome.renewed
    assert contents(small_run) == before


class Declares(ja.Probe):
    """Probe that declares the scales of its metrics."""

    scales = MappingProxyType({"share": ja.probes.Scale(low=0, high=1), "gap": ja.probes.Scale("log", low=0)})
    labels = MappingProxyType({"share": "$s$"})

    def measure(self, context):
        size = jnp.sum(context.params.p**2)
        return {"share": 1 / (1 + size), "gap": jnp.exp(-size)}


def content_of(study, older=MappingProxyType({})):
    return study_content(study, "test", *identities(study), older)


@pytest.mark.more
def test_scales_of_probe_metrics_reach_the_results(study, tmp_path):
    made = ja.Study(**(study().tree | {"probes": [Declares]}))
    results = made.run(tmp_path / "out", quiet=True)
    assert results.manifest["scales"].items() >= {"share": ["linear", 0, 1], "gap": ["log", 0, None]}.items()
    found = results.aggregate(metrics=["share", "gap"]).set_index("metric")
    assert (found.loc["share", "mean_high"].dropna() <= 1).all()
    assert found.loc["gap", "scale"].unique().tolist() == ["log"]


def negative(logits, labels):
    return -labels * logits


def test_labels_and_scales_are_those_that_probes_and_losses_declare(study):
    made = ja.Study(**(study().tree | {"probes": [Declares]}))
    assert scales(made) == scales(study()) | {"share": ["linear", 0, 1], "gap": ["log", 0, None]}
    assert content_of(made)["labels"]["share"] == "$s$"
    known = scales(study())
    assert (known["loss"], known["train_accuracy"]) == (["linear", 0, None], ["linear", 0, 1])
    # A custom loss may be negative.
    custom = scales(ja.Study(**(study().tree | {"loss": negative})))
    assert known.keys() - custom.keys() == {"loss", "test_loss", "validation_loss"}
    bounded = ja.declare(bounds=(-1.0, 2.0))(lambda outputs, labels: jnp.clip(-labels * outputs, -1, 2))
    assert scales(ja.Study(**(study().tree | {"loss": bounded})))["loss"] == ["linear", -1, 2]


def test_cells_list_shared_randomness_older_runs_and_tables_that_differ(study):
    blocks = {"one": {}, "two": {"phases": {"query": {"step_size": 0.2}}}}
    made = study(hold=["data"], blocks=blocks)
    one, two = content_of(made, {1: {"0" * 32: [1]}})["cells"]
    assert (one["hold"], one["varies"]) == (["data"], ["start"])
    assert "older" not in one
    assert two["older"] == {"0" * 32: [1]}
    assert "hold" not in content_of(study())["cells"][0]
    assert one["key"] != two["key"]


def test_code_without_a_hash_is_reported_with_the_reason(study):
    lines = []
    note_unhashed(study("own"), {"mine.py:pairs": "0", "mine.py:Turned": None}, lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("mine.py:Turned: its code has no hash, because ")
