"""Manifests: validated content, and errors for invalid files."""

from pathlib import Path

import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab import cli
from jaxattn.lab.storage import files, manifest
from jaxattn.lab.storage.files import Damaged

COMMITTED = Path(__file__).parents[3] / "results" / "published"
WHOLE = {
    "format": manifest.FORMAT,
    "name": "run",
    "command": ["jaxattn", "run", "a b.toml"],
    "config": {"phases": [{"name": "query", "kind": "descent"}]},
    "cells": [{"cell": 0, "settings": {"model.dim": 3}, "config_hash": "0"}],
    "seeds": [0, 1],
    "widths": [2],
    "failures": [{"cell": 0, "seed": 1, "phase": "query", "step": 3, "reason": "NaN"}],
    "wall_time_s": 2,
    "code": {"__main__:loss": None},
}
STRANGE = [
    *((key, wrong) for key in ("cells", "failures", "batches") for wrong in (None, 3, [3], [{}], {})),
    *((key, wrong) for key in ("seeds", "widths") for wrong in (None, "1", ["a"], [0.5], {"a": 1})),
    ("errors", [{"batch": "a"}]),
    ("seeds", []),
    ("cells", []),
    ("cells", [{"cell": 0, "settings": {"model.dim": [3]}}]),
    ("failures", [{"cell": 7, "seed": 1, "phase": "query", "step": 3, "reason": "NaN"}]),
    ("batches", [{"name": "a", "cells": [], "seeds": [0]}]),
    ("wall_time_s", "long"),
    ("wall_time_s", "\udcff"),
    ("seeds", ["\udcff"]),
    ("config", None),
    ("config", {}),
    ("config", {"phases": 3}),
    ("config", {"phases": [{"kind": "descent"}]}),
    ("config", {"figures": ["curves"]}),
    ("command", 3),
    ("name", None),
    ("status", 3),
    ("sha256", []),
    ("format", "5"),
]


def test_optional_manifest_keys_have_defaults(tmp_path):
    manifest.write_manifest(tmp_path, WHOLE)
    found = manifest.read_manifest(tmp_path)
    assert {key: found[key] for key in WHOLE} == WHOLE
    assert (found["status"], list(found["errors"]), found["sha256"]) == ("stopped", [], {})
    assert manifest.run_command(found) == "jaxattn run 'a b.toml'"


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*/manifest.json")), ids=lambda path: path.parent.name)
def test_published_manifests_are_read(path):
    found = manifest.read_manifest(path.parent)
    assert found["status"] == "finished"


@pytest.mark.parametrize(("key", "wrong"), STRANGE)
def test_invalid_manifest_gives_a_one_line_error_in_every_command(tmp_path, monkeypatch, capsys, key, wrong):
    manifest.write_manifest(tmp_path, WHOLE | {key: wrong})
    for command in ("status", "report", "aggregate"):
        monkeypatch.setattr("sys.argv", ["jaxattn", command, str(tmp_path)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert said.startswith(f"jaxattn: {tmp_path}/manifest.json: ")
        assert said.count("\n") == 1


@pytest.mark.parametrize("key", ["name", "command", "config", "cells", "seeds"])
def test_missing_manifest_keys_raise(tmp_path, key):
    manifest.write_manifest(tmp_path, {name: x for name, x in WHOLE.items() if name != key})
    with pytest.raises(
        InputError, match=f"manifest.json: .*`{key}`.*; use a folder written by `jaxattn run`"
    ):
        manifest.read_manifest(tmp_path)


@pytest.mark.parametrize("other", [manifest.FORMAT - 1, manifest.FORMAT + 1])
def test_manifest_from_another_version_raises(tmp_path, other):
    manifest.write_manifest(tmp_path, WHOLE | {"format": other})
    with pytest.raises(InputError, match="written by another version"):
        manifest.read_manifest(tmp_path)


def test_changed_manifest_counts_as_damaged(tmp_path):
    path = tmp_path / "manifest.json"
    for old, new in (('"model.dim": 3', '"model.dim": 4'), (f'"{files.SEAL}"', '"seam"'), ("{", "[")):
        manifest.write_manifest(tmp_path, WHOLE)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(Damaged, match=r"manifest\.json: damaged .*; run the same sweep again"):
            manifest.find_manifest(tmp_path)
    path.unlink()
    assert manifest.find_manifest(tmp_path) is None
    with pytest.raises(InputError, match=r"no manifest\.json, so not a results folder"):
        manifest.read_manifest(tmp_path)
