"""Devices of a run: recorded for each batch, and known bugs of JAX."""

import os
import shutil

import jax
import msgspec
import pytest

import jaxattn as ja
from jaxattn.lab.engine import devices
from jaxattn.lab.storage import batch_record
from jaxattn.lab.storage.batch_record import Device


def test_batches_of_other_devices_or_versions_of_jax_are_reported_by_readers(
    two_batches, tmp_path, go, study, finished
):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    here = devices.describe_devices()
    records = finished(folder)
    assert [msgspec.to_builtins(record.origin.device) for record in records.values()] == [here, here]
    assert ja.load(folder).manifest["mixed"] == ""
    name, record = next(iter(records.items()))
    origin = msgspec.structs.replace(record.origin, device=Device("gpu", "H100", 1))
    changed = msgspec.structs.replace(record, origin=origin)
    batch_record.write_record(folder / "runs" / name, changed, folder)
    assert ja.load(folder).manifest["mixed"] == (
        f"computed with 1 × H100, {here['count']} × cpu: last digits may differ"
    )
    # The runs are the same on all devices.
    outcome, lines = go(folder, study(chunk=1))
    assert (outcome.already_finished, lines) == (True, [])


@pytest.mark.parametrize(
    ("platform", "jaxlib", "words"),
    [
        ("gpu", "0.10.2", ["jaxlib 0.10.2 on a GPU: scans under vmap", "scatter-adds", "use Python 3.12"]),
        ("gpu", "0.11.0", ["scans under vmap", "scatter-adds"]),
        ("gpu", "0.10.1", ["scans under vmap"]),
        ("gpu", "0.11.1", []),
        ("gpu", "0.12.0.1", []),
        ("cpu", "0.10.2", []),
        ("cpu", "0.11.1", ["jaxlib 0.11.1 on a CPU: ", "copy the whole array; use another version"]),
        ("cpu", "0.11.2", []),
        ("tpu", "0.10.2", []),
    ],
)
def test_known_jax_bugs_are_reported_on_one_line(platform, jaxlib, words):
    found = devices.known_bug(platform, jaxlib)
    assert all(word in found for word in words)
    assert bool(found) == bool(words)
    assert "\n" not in found
    assert ("scatter" in found) == ("scatter-adds" in words)


@pytest.mark.parametrize(("given", "cores", "expected"), [(3, 8, 3), (None, 8, 8), (None, None, 1)])
def test_every_core_is_a_device_unless_their_number_is_set(monkeypatch, given, cores, expected):
    asked = []
    monkeypatch.setattr(jax.config, "update", lambda *setting: asked.append(setting))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    devices.use_all_cores(given)
    assert asked == [("jax_num_cpu_devices", expected)]
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    devices.use_all_cores(given)
    assert len(asked) == 1


@pytest.mark.more
def test_run_and_plan_warn_about_known_jax_bugs(monkeypatch, go, study, tmp_path):
    monkeypatch.setattr(devices, "known_bug", lambda platform: f"trouble on a {platform}")
    assert "trouble on a cpu" in go(tmp_path / "run", study(seeds=1))[1]
    assert study(seeds=1).plan(tmp_path / "other", quick=True).sentence.endswith("; trouble on a cpu")
