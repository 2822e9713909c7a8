"""The log of a batch: its newest lines are found fast, and invalid lines are ignored."""

import pytest

from jaxattn.lab.storage import files, run_log
from jaxattn.lab.storage.run_log import Latest

FAILED = {"cell": 0, "seed": 0, "phase": "query", "step": 3, "reason": "NaN"}


def line(number, **changes):
    return {
        "time": float(number),
        "start": 0.0,
        "batch": "cell 0, seed 0",
        "overall": 0.5,
        "share": 0.5,
        "phase": "query",
        "step": number,
        "steps": 9,
        "failures": [],
        "losses": {"0": [0.5]},
        "metrics": {"loss": 0.5},
    } | changes


def write(folder, *lines):
    for each in lines:
        run_log.append_entry(folder, each)


def test_the_newest_line_and_the_newest_measurement_are_found(tmp_path):
    assert run_log.latest(tmp_path, tmp_path) == Latest(None, None)
    write(tmp_path, line(0), line(1, failures=[FAILED]))
    found = run_log.latest(tmp_path, tmp_path)
    assert found.line == found.measured
    assert (found.line.step, found.line.failures[0].reason) == (1, "NaN")
    write(tmp_path, line(2, losses={}, doing="x", left=3.0))
    found = run_log.latest(tmp_path, tmp_path)
    assert (found.line.step, found.line.doing, found.line.left) == (2, "x", 3.0)
    assert (found.measured.step, found.measured.losses) == (1, {"0": [0.5]})


def test_previous_line_is_returned_if_a_line_is_damaged(tmp_path):
    write(tmp_path, line(0), line(1), line(2))
    path = tmp_path / run_log.RUN_LOG
    path.write_bytes(path.read_bytes().replace(b'"step": 2', b'"step": 7') + b'\xff\n{"batch": "torn')
    assert run_log.latest(tmp_path, tmp_path).line is None
    path.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n")
    assert run_log.latest(tmp_path, tmp_path).line.step == 1


@pytest.mark.parametrize("what", ["folder", "large", "link"])
def test_invalid_log_is_ignored(tmp_path, monkeypatch, what):
    monkeypatch.setattr(run_log, "MAX_BYTES", 1000)
    (tmp_path / "run").mkdir()
    if what == "folder":
        (tmp_path / "run" / run_log.RUN_LOG).mkdir()
    elif what == "link":
        write(tmp_path, line(0))
        (tmp_path / "run" / run_log.RUN_LOG).symlink_to(tmp_path / run_log.RUN_LOG)
    else:
        write(tmp_path / "run", *map(line, range(9)))
    assert run_log.latest(tmp_path / "run", tmp_path / "run") == Latest(None, None)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": "x"}, {"failures": [3]}, {"share": "x"}, {"left": -1.0}, {"losses": 3}, {"phase": None}],
)
def test_unknown_lines_are_ignored(tmp_path, wrong):
    write(tmp_path, line(0), line(1, unknown=3), line(2, **wrong), {})
    assert run_log.latest(tmp_path, tmp_path).line.step == 1


def test_only_the_newest_lines_are_parsed(tmp_path, monkeypatch):
    write(tmp_path, *map(line, range(500)))
    parsed = []
    parse = files.parse_json
    monkeypatch.setattr(files, "parse_json", lambda text: parsed.append(text) or parse(text))
    assert run_log.latest(tmp_path, tmp_path).line.step == 499
    assert len(parsed) == 2
