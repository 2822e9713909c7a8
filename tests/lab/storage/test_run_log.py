"""The log of a run: its newest lines are found fast, and invalid lines are ignored."""

import pytest

from jaxattn.lab.storage import files, run_log

ONE, OTHER = (f"cells-00000-00000-seeds-{seed:05d}-{seed:05d}" for seed in (0, 1))
FAILED = {"cell": 0, "seed": 0, "phase": "query", "step": 3, "reason": "NaN"}


def line(number, batch=ONE, **changes):
    return {
        "time": float(number),
        "start": 0.0,
        "batch": batch,
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


def test_latest_returns_the_newest_lines_in_order(tmp_path):
    assert run_log.latest(tmp_path) == []
    write(
        tmp_path, line(0), line(1, failures=[FAILED]), line(2, OTHER), line(3), line(4, losses={}, doing="x")
    )
    write(tmp_path, line(5, OTHER))
    found = run_log.latest(tmp_path)
    assert [each["step"] for each in found] == [1, 3, 4, 5]
    assert found[0]["failures"] == [FAILED]
    assert found[2]["doing"] == "x"


def test_previous_line_is_returned_if_a_line_is_damaged(tmp_path):
    write(tmp_path, line(0), line(1), line(2), line(3, OTHER))
    path = tmp_path / run_log.RUN_LOG
    path.write_bytes(
        path.read_bytes().replace(b'"step": 2', b'"step": 7') + b"\xff\n[]\n" + b'{"batch": "torn'
    )
    assert [each["step"] for each in run_log.latest(tmp_path)] == [1, 3]


@pytest.mark.parametrize("what", ["folder", "large"])
def test_invalid_log_is_ignored(tmp_path, monkeypatch, what):
    monkeypatch.setattr(run_log, "MAX_BYTES", 1000)
    if what == "folder":
        (tmp_path / run_log.RUN_LOG).mkdir()
    else:
        write(tmp_path, *map(line, range(9)))
    assert run_log.latest(tmp_path) == []


def test_only_the_newest_lines_are_parsed(tmp_path, monkeypatch):
    write(tmp_path, *map(line, range(500)))
    parsed = []
    parse = files.parse_json
    monkeypatch.setattr(files, "parse_json", lambda text: parsed.append(text) or parse(text))
    assert [each["step"] for each in run_log.latest(tmp_path)] == [499]
    assert len(parsed) == len(run_log.WITHOUT)
