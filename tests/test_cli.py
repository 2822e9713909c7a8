import subprocess
import sys
from pathlib import Path

import pytest

from jaxattn import cli

SWEEPS = Path(__file__).parents[1] / "sweeps"
SMALL = [
    *("--set", "data.sequences=60", "--set", "data.vocab_size=30", "--set", "data.relevant=10"),
    *("--set", "model.dim=16", "--set", "phases.query.steps=5", "--set", "data.test_sequences=10"),
    *("--set", "probes.min_count=1", "--seeds", "2", "--quiet"),
]


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["jaxattn", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, error = capsys.readouterr()
    assert "Traceback" not in out + error
    return stopped.value.code, out, error


def test_run_then_aggregate_then_report(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "quick"
    status, out, _ = call(monkeypatch, capsys, "run", SWEEPS / "quickstart.toml", *SMALL, "--out", folder)
    assert status == 0
    assert "loss" in out
    assert str(folder / "report.html") in out
    for name in ("records.parquet", "tokens.parquet", "manifest.json", "report.html"):
        assert (folder / name).stat().st_size > 0
    status, out, _ = call(
        monkeypatch, capsys, "aggregate", folder, "--out", tmp_path / "all.csv", "--resamples", "50"
    )
    assert status == 0
    assert "iqm" in (tmp_path / "all.csv").read_text().partition("\n")[0]
    status, out, _ = call(monkeypatch, capsys, "report", folder)
    assert status == 0
    assert all(Path(line).exists() for line in out.split())


def test_data_shows_the_corpus(monkeypatch, capsys):
    status, out, _ = call(monkeypatch, capsys, "data", SWEEPS / "quickstart.toml", "--quiet")
    assert status == 0
    assert "2,000" in out
    assert "average signed frequency" in out


@pytest.mark.parametrize("command", ["run", "data", "aggregate", "report"])
def test_help_shows_an_example(monkeypatch, capsys, command):
    status, out, _ = call(monkeypatch, capsys, command, "--help")
    assert status == 0
    assert f"Example: jaxattn {command}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", SWEEPS / "nosuch.toml"], "no such sweep file"),
        (["run", SWEEPS / "quickstart.toml", "--set", "model.dimension=3"], "did you mean 'dim'"),
        (["run", SWEEPS / "quickstart.toml", "--seeds", "0"], "seeds: expected 'int' >= 1"),
        (["run", SWEEPS / "quickstart.toml", "--set", "data.relevant=7"], "relevant: 7 is not a positive"),
        (["run", SWEEPS / "quickstart.toml", "--set", "figures.0.phase=nosuch"], "nosuch"),
        (["run", SWEEPS / "imdb_one_step.toml", "--set", "data.data_dir=nosuch"], "nosuch"),
        (["data", SWEEPS / "imdb_one_step.toml", "--set", "data.data_dir=nosuch"], "nosuch"),
        (["report", "nosuch"], "nosuch"),
        (["aggregate", "nosuch"], "nosuch"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, error = call(monkeypatch, capsys, *arguments)
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
    assert out == ""


def test_unknown_commands_and_flags_are_status_2():
    for arguments in (["nosuch"], ["run", "--nosuch"]):
        command = [sys.executable, "-m", "jaxattn.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
