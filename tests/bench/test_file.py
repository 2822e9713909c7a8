"""Files of measured machines: read back, and laid side by side."""

import json

import pytest

from jaxattn.bench import Machine, Measured, Report, beside, read, table, write
from jaxattn.core.errors import InputError, RunError


def report(*measured, device="chip"):
    return Report(Machine(device, "gpu", 1, 3000.0, "3.12", "0.10", {"version": "1"}), list(measured))


def row(name="small", seeds=1, us=10.0, peak=None):
    return Measured(name, seeds, 1.0, us, 3, True, 5.0, peak)


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    one = report(row(), row(seeds=4, peak=17.0))
    path = write(one, tmp_path / "deep" / "bench.json")
    assert read(path) == one
    assert json.loads(path.read_text())["machine"]["device"] == "chip"


def test_machines_stand_side_by_side():
    first, second = (
        report(row(), row(seeds=4, us=2.0)),
        report(row(us=30.0), row("other"), device="other chip"),
    )
    found = beside([first, second])
    assert found[["case", "seeds"]].to_numpy().tolist() == [["small", 1], ["small", 4], ["other", 1]]
    assert found.iloc[:, 2].tolist() == ["10", "2", "-"]
    assert found.iloc[:, 3].tolist() == ["30", "-", "10"]
    assert "other chip" in found.columns[3]
    assert table(report(row(peak=17.0)))["peak MiB so far"].tolist() == ["17"]


WRONG_TYPE = """{"machine": {"device": "chip", "platform": "gpu", "devices": 1, "copied_gb_s": "fast",
"python": "3.12", "jax": "0.10", "made_by": {}}, "measured": []}"""


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"machine": {}, "measured": []}', WRONG_TYPE, '{"measured": 1']
)
def test_other_files_are_named(tmp_path, content):
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not a file of `jaxattn bench`"):
        read(path)
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "missing.json")
    with pytest.raises(RunError, match="cannot be written"):
        write(report(), path / "below.json")
