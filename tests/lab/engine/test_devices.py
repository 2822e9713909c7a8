"""Devices of a run: notes about a change of devices, and known bugs of JAX."""

import shutil

import pytest

from jaxattn.lab.engine import devices
from jaxattn.lab.storage import manifest


@pytest.mark.parametrize(
    ("begun", "words"),
    [
        ({"platform": "gpu", "kind": "H100", "count": 1}, "1 × H100"),
        pytest.param({"platform": "cpu", "kind": "cpu", "count": 64}, "64 × cpu", marks=pytest.mark.more),
    ],
)
@pytest.mark.more
def test_resuming_on_other_devices_is_reported_once(two_batches, study, go, tmp_path, begun, words):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    manifest.write_manifest(folder, manifest.read_manifest(folder) | {"device": begun})
    lines = [go(folder, study(chunk=1, seeds=n))[1] for n in (3, 4)]
    here = devices.describe_devices()
    told = f"started on {words}, resumed on {here['count']} × cpu: numbers may differ in their last digits"
    assert lines == [[told], []]
    assert manifest.read_manifest(folder)["continued_on"] == [here]


@pytest.mark.more
def test_resuming_on_the_same_devices_is_not_reported(two_batches, study, go, tmp_path):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    assert go(folder, study(chunk=1, seeds=3))[1] == []
    assert manifest.read_manifest(folder)["continued_on"] == []


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


@pytest.mark.more
def test_run_and_plan_warn_about_known_jax_bugs(monkeypatch, go, study, tmp_path):
    monkeypatch.setattr(devices, "known_bug", lambda platform: f"trouble on a {platform}")
    assert "trouble on a cpu" in go(tmp_path / "run", study(seeds=1))[1]
    assert study(seeds=1).plan(tmp_path / "other", quick=True).sentence.endswith("; trouble on a cpu")
