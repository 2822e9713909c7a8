"""Errors for missing or mismatched compilers of chips."""

from importlib import metadata

import pytest
from chips import process
from chips.targets import read_target

import jaxattn as ja


@pytest.fixture
def installed(monkeypatch):
    """Pretend that some distributions have these versions, and that jax requires libtpu 0.0.42."""

    def pretend(**versions):
        known = {name.replace("_", "-"): version for name, version in versions.items()}

        def version(name):
            if name not in known:
                raise metadata.PackageNotFoundError(name)
            return known[name]

        monkeypatch.setattr(process.metadata, "version", version)
        pins = ['jaxlib<=0.10.2,>=0.10.1; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"']
        monkeypatch.setattr(process.metadata, "requires", lambda name: pins)

    return pretend


def test_missing_compilers_are_reported_with_requirements(installed):
    installed(jax="0.10.2", jaxlib="0.10.2")
    with pytest.raises(
        ja.InputError,
        match=r"target v5e: libtpu not installed.*pip install -r benchmarks/chips/requirements.txt",
    ):
        process.call(read_target("v5e"), "nowhere:nothing", {})
    with pytest.raises(ja.InputError, match="jax-cuda12-plugin, jax-cuda12-pjrt, nvidia-cuda-nvcc-cu12 not"):
        process.call(read_target("h200"), "nowhere:nothing", {})


def test_mismatched_compiler_reports_the_matching_version(installed):
    installed(jax="0.10.2", jaxlib="0.10.2", libtpu="0.0.41")
    with pytest.raises(
        ja.InputError, match=r"libtpu 0.0.41 does not match jax 0.10.2; .*'libtpu==0.0.42.\*'"
    ):
        process.check(read_target("v5e"))
    gpu = {"jax_cuda12_plugin": "0.10.2", "jax_cuda12_pjrt": "0.11.0", "nvidia_cuda_nvcc_cu12": "12.9.86"}
    installed(jax="0.10.2", jaxlib="0.10.2", **gpu)
    with pytest.raises(ja.InputError, match=r"jax-cuda12-pjrt 0.11.0 does not match jax 0.10.2"):
        process.check(read_target("h200"))


def test_matching_compilers_are_accepted(installed):
    installed(jax="0.10.2", jaxlib="0.10.2", libtpu="0.0.42.1")
    process.check(read_target("v5e"))


def test_version_pins_of_installed_jax_are_parsed():
    assert process._fitting(("libtpu",))["libtpu"].startswith("0.0.")


@pytest.mark.parametrize(
    ("code", "raised", "said"),
    [
        ("import sys; sys.stdin.read(); sys.exit('no chip')", ja.RunError, "ended with 1: no chip"),
        ('import sys; sys.stdin.read(); print(\'{"error": "not so"}\')', ja.InputError, "^not so$"),
    ],
)
def test_failed_process_raises_a_one_line_error(monkeypatch, tmp_path, code, raised, said):
    monkeypatch.setattr(process, "check", lambda target: None)
    (tmp_path / "instead.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(process, "__file__", str(tmp_path / "instead.py"))
    with pytest.raises(raised, match=said):
        process.call(read_target("v5e"), "nowhere:nothing", {"x": 1})


def test_progress_and_result_are_forwarded(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "check", lambda target: None)
    lines = "print('{\"progress\": [\"half\", 0.5]}'); print(json.dumps({'result': json.load(sys.stdin)}))"
    (tmp_path / "instead.py").write_text(f"import json, sys; {lines}", encoding="utf-8")
    monkeypatch.setattr(process, "__file__", str(tmp_path / "instead.py"))
    told = []
    asked = {"sweep": "x.toml", "only": ["draw"]}
    assert process.call(read_target("v5e"), "a:b", asked, lambda *said: told.append(said)) == asked
    assert told == [("half", 0.5)]
