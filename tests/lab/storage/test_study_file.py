"""The file study.json: validated content, the runs that it asks for, and errors for invalid files."""

import json

import pytest

import jaxattn as ja
from jaxattn.lab import cli
from jaxattn.lab.storage import study_file
from jaxattn.lab.storage.batch_record import FORMAT
from jaxattn.lab.storage.files import Damaged

ONE, OTHER = "1" * 32, "2" * 32
WHOLE = {
    "format": FORMAT,
    "name": "run",
    "command": "jaxattn run 'a b.toml'",
    "config": {"phases": [{"name": "query", "kind": "descent"}]},
    "cells": [{"cell": 0, "settings": {"model.dim": 3}, "key": ONE, "config_hash": "0"}],
    "seeds": [0, 1],
    "code": {"__main__:loss": None},
}
CELL = WHOLE["cells"][0]
STRANGE = [
    *(("cells", wrong) for wrong in (None, 3, [3], [{}], {}, [])),
    *(("seeds", wrong) for wrong in (None, "1", ["a"], [0.5], {"a": 1}, [], [-1], [0, 0], ["\udcff"])),
    ("cells", [CELL | {"settings": {"model.dim": [3]}}]),
    ("cells", [CELL | {"key": "x"}]),
    ("cells", [CELL | {"key": ONE + "0"}]),
    ("cells", [CELL | {"older": {ONE: 3}}]),
    ("cells", [CELL | {"older": {"../x": [0]}}]),
    ("cells", [CELL, CELL]),
    ("config", None),
    ("config", {}),
    ("config", {"phases": 3}),
    ("config", {"phases": [{"kind": "descent"}]}),
    ("config", {"phases": [{"name": "query"}], "probes": {"bins": 10**9}}),
    ("config", {"figures": ["curves"]}),
    ("command", 3),
    ("name", None),
    ("labels", {"loss": 3}),
    ("scales", {"loss": ["cubic", 0, 1]}),
    ("format", "5"),
]


def write(folder, **changes):
    study_file.write_study(folder, WHOLE | changes)
    return folder


def test_optional_keys_have_defaults_and_unknown_ones_are_ignored(tmp_path):
    found = study_file.read_study(write(tmp_path, unknown=3))
    assert {key: found[key] for key in WHOLE if key != "cells"} == {
        key: x for key, x in WHOLE.items() if key != "cells"
    }
    assert found["cells"] == [CELL | {"older": {}, "hold": (), "varies": ()}]
    assert (found["description"], found["labels"], found["dtype"]) == ("", {}, None)
    assert "unknown" not in found
    assert study_file.run_command(found) == "jaxattn run 'a b.toml'"
    assert study_file.run_command({"command": ["jaxattn", "run", "a b"]}) == "jaxattn run 'a b'"


def test_wanted_runs_are_those_of_all_cells_and_seeds():
    older = {OTHER: [1, 9]}
    cells = [{"cell": 0, "key": ONE}, {"cell": 5, "key": OTHER}, {"cell": 7, "key": ONE, "older": older}]
    found = study_file.wanted_runs({"cells": cells, "seeds": [0, 1]})
    # Cells with the same key are the same runs, except for seeds that older code has computed.
    assert found == {(ONE, 0): [0, 7], (ONE, 1): [0], (OTHER, 0): [5], (OTHER, 1): [5, 7]}


def test_content_is_compared_except_for_the_command(tmp_path):
    assert not study_file.is_written(tmp_path, WHOLE)
    write(tmp_path)
    assert study_file.is_written(tmp_path, WHOLE)
    assert study_file.is_written(tmp_path, WHOLE | {"command": "another", "seeds": (0, 1)})
    assert not study_file.is_written(tmp_path, WHOLE | {"seeds": [0]})
    for damaged in ("", "{", "[]", "[" * 10**5):
        (tmp_path / "study.json").write_text(damaged)
        assert not study_file.is_written(tmp_path, WHOLE)


@pytest.mark.parametrize(("key", "wrong"), STRANGE)
def test_invalid_file_gives_a_one_line_error_in_every_command(tmp_path, monkeypatch, capsys, key, wrong):
    (tmp_path / "study.json").write_text(json.dumps(WHOLE | {key: wrong}))
    for command in ("status", "report", "aggregate", "prune"):
        monkeypatch.setattr("sys.argv", ["jaxattn", command, str(tmp_path)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert said.startswith(f"jaxattn: {tmp_path}/study.json: ")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        "[" * 10**5,
        '{"a":' * 10**5,
        "[" * 101 + "]" * 101,
        "9" * 5000,
        "{",
        "",
        json.dumps(WHOLE)[:-1] + ', "config": ' + "[" * 200 + "]" * 200 + "}",
    ],
    ids=["lists", "tables", "a little too deep", "a long number", "torn", "empty", "deep inside"],
)
def test_unreadable_json_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    match = rf"^{tmp_path}/study\.json: damaged .*; run the same sweep"
    with pytest.raises(ja.InputError, match=match) as caught:
        study_file.read_study(tmp_path)
    assert not isinstance(caught.value, Damaged)  # which would get the remedy once more
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("cells", "seeds"), [(1_001, 1_000), (2, 600_000), (30_000, 30_000)])
def test_study_of_millions_of_runs_is_refused_in_one_line(tmp_path, monkeypatch, cells, seeds):
    write(
        tmp_path,
        cells=[{"cell": number, "settings": {}, "key": f"{number:032x}"} for number in range(cells)],
        seeds=list(range(seeds)),
    )
    said = rf"^{tmp_path}/study\.json: {cells} cells and {seeds} seeds are more than 1,000,000 runs; use"
    with pytest.raises(ja.InputError, match=said) as caught:
        study_file.read_study(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ja.InputError, match="more than 1,000,000 runs"):
        study_file.wanted_runs({"cells": range(cells), "seeds": range(seeds)})


@pytest.mark.parametrize("key", ["name", "command", "config", "cells", "seeds"])
def test_missing_keys_raise(tmp_path, key):
    (tmp_path / "study.json").write_text(json.dumps({name: x for name, x in WHOLE.items() if name != key}))
    with pytest.raises(
        ja.InputError, match=f"study.json: .*`{key}`.*; use a folder written by `jaxattn run`"
    ):
        study_file.read_study(tmp_path)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_file_of_another_version_raises(tmp_path, other):
    with pytest.raises(ja.InputError, match="written by another version"):
        study_file.read_study(write(tmp_path, format=other))


def test_missing_file_or_folder_raises(tmp_path):
    assert study_file.find_study(tmp_path) is None
    with pytest.raises(ja.InputError, match=rf"^{tmp_path}: no study\.json, so not a results folder; use"):
        study_file.read_study(tmp_path)
    with pytest.raises(ja.InputError, match=rf"^{tmp_path}/none: no such folder"):
        study_file.read_study(tmp_path / "none")


def test_file_that_leads_out_of_the_folder_is_not_read(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "study.json").symlink_to(tmp_path / "out" / "study.json")
    with pytest.raises(ja.InputError, match=r"study\.json: a link that leads out of .*"):
        study_file.read_study(tmp_path / "in")


def test_damage_becomes_an_input_error_with_an_instruction(tmp_path):
    said = rf"^x: damaged; run the same sweep again into {tmp_path}$"
    with pytest.raises(ja.InputError, match=said) as caught, study_file.damage_as_input_error(tmp_path):
        raise Damaged("x: damaged")
    assert not isinstance(caught.value, Damaged)


def test_a_flipped_bit_is_detected(tmp_path):
    study_file.write_study(tmp_path, WHOLE)
    path = tmp_path / "study.json"
    content = path.read_bytes()
    assert study_file.find_study(tmp_path)["name"] == WHOLE["name"]
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            found = study_file.read_study(tmp_path)
        except ja.InputError:
            continue
        # Only the name of the checksum has changed, or a space.
        assert {key: found[key] for key in WHOLE} == WHOLE
