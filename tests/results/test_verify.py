"""Every damaged file is named with the command that mends it; `tests/robustness` tries many more."""

import shutil

import pytest

from jaxattn import cli
from jaxattn.core.errors import InputError
from jaxattn.results.verify import verify
from jaxattn.storage import checkpoints, files, manifest, marks

BATCH = "cells-00000-00000-seeds-00000-00000"


@pytest.fixture(scope="module")
def made(write, tmp_path_factory):
    """A finished folder of one batch, as a run leaves it, and something that a report has drawn."""
    folder = write(tmp_path_factory.mktemp("verified") / "run", seeds=1, vocab_size=20, text=False)
    cells = [{"cell": 0, "settings": {}, "config_hash": "0123456789abcdef"}]
    batch = {"name": BATCH, "cells": [0], "seeds": [0]}
    manifest.write(folder, manifest.read(folder) | {"cells": cells, "batches": [batch]})
    (folder / "parts").mkdir()
    (folder / "checkpoints" / BATCH).mkdir(parents=True)
    sums = manifest.read(folder)["sha256"]
    for name, sha256 in sums.items():
        shutil.copy(folder / f"{name}.parquet", marks.table_path(folder, BATCH, name, sha256))
    checkpoint = checkpoints.save(marks.checkpoint_path(folder, BATCH, 1), {"embed": {"E": [1.0]}})
    by = marks.Origin({"0": "0123456789abcdef"}, {}, {})
    marks.write(folder, BATCH, marks.Mark(True, 2, 0, [], sums, checkpoint, by))
    (folder / "figures").mkdir()
    (folder / "summary.csv").write_text("a,b\n")
    drawn = {"own": [], "sha256": {"summary.csv": files.digest(b"a,b\n")}}
    (folder / "figures" / "drawn.json").write_bytes(files.sealed(drawn))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def test_a_whole_folder_is_whole(folder, write, tmp_path):
    seen = []
    assert verify(folder, lambda name, share: seen.append((name, share))) == []
    assert seen == [(BATCH, 0.0)]
    # Of a run that was not saved there is nothing to compare but the merged tables.
    assert verify(write(tmp_path / "other", seeds=1, vocab_size=20)) == []
    with pytest.raises(InputError, match="no such folder"):
        verify(tmp_path / "none")


RUN = "; mend it with: jaxattn run sweeps/planted.toml"
FIRST = f"; delete {{folder}}/parts/{BATCH}.json and mend it with: jaxattn run"


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("records.parquet", RUN),
        ("tokens.parquet", RUN),
        ("parts/*.json", RUN),
        ("parts/*.tokens.*", RUN),
        ("checkpoints/*/1/_METADATA", FIRST),
        ("summary.csv", "; draw it again with: jaxattn report {folder}"),
        ("figures/drawn.json", "; draw it again with: jaxattn report {folder}"),
        ("manifest.json", "; run the same sweep again into this folder to rebuild it"),
    ],
)
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_file_is_named_with_what_mends_it(folder, pattern, remedy, damage):
    (path,) = folder.glob(pattern)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if damage == "missing":
        path.unlink()
    if (damage, pattern) == ("missing", "figures/drawn.json"):
        assert verify(folder) == []  # as of a run without a report
        return
    (line,) = verify(folder)
    assert line.startswith(f"{path}: {'damaged' if damage == 'flipped' else 'missing'}")
    assert remedy.format(folder=folder) in line
    assert "\n" not in line


def test_a_batch_of_another_config_is_named(folder):
    cells = [{"cell": 0, "settings": {}, "config_hash": "f" * 16}]
    manifest.write(folder, manifest.read(folder) | {"cells": cells})
    (line,) = verify(folder)
    assert line.startswith(f"{folder}/parts/{BATCH}.json: cell 0 is of another config")


def test_the_command_names_what_is_damaged_and_exits_with_1(folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["jaxattn", "status", "--verify", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    out, said = capsys.readouterr()
    assert "planted: 100 % done, finished" in out
    assert "made by jaxattn 0.1.0 at commit 000000000000; this is" in said
    (folder / "manifest.json").unlink()
    (folder / "parts" / f"{BATCH}.json").write_text("{}")
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\njaxattn: ") == 2
    assert "Traceback" not in said
