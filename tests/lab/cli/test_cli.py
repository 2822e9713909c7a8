import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jaxattn
from jaxattn.lab import cli
from jaxattn.lab.cli import console
from jaxattn.lab.cli.commands import commands, parse, print_overview

SWEEPS = Path(__file__).parents[3] / "sweeps"
# The same study as in other tests, so that its compiled programs are reused.
STUDY = Path(__file__).parents[2] / "sweeps" / "small.toml"
SMALL = [STUDY, "--set", "chunk=1", "--seeds", "2", "--quiet"]


@pytest.mark.more
def test_runs_can_be_aggregated_and_reported(call, tmp_path):
    folder = tmp_path / "quick"
    kinds = ('"one_step_law", phase = "embed"', '"importance", phase = "query"', '"curves"')
    figures = f"[{', '.join(f'{{kind = {kind}}}' for kind in kinds)}]"
    words = ["run", *SMALL, "--set", f"figures={figures}", "--out", folder]
    status, out, _ = call(*words)
    assert status == 0
    assert "loss" in out
    *table, more, page = out.splitlines()
    assert table[0].startswith("Last step of each phase: ")
    assert "log_gradient_norm" not in out
    assert more.endswith(" more metrics with --all")
    assert page == str(folder / "report.html")
    status, out, _ = call(*words, "--all")
    assert status == 0
    assert "log_gradient_norm" in out
    assert out.splitlines()[-1] == page
    for name in ("study.json", "report.html"):
        assert (folder / name).stat().st_size > 0
    assert len(list(folder.glob("runs/*/records.parquet"))) == 2
    status, out, _ = call("aggregate", folder, "--out", tmp_path / "all.csv")
    assert status == 0
    assert "iqm" in (tmp_path / "all.csv").read_text().partition("\n")[0]
    status, out, _ = call("aggregate", folder, "--metrics", "loss", "--json")
    rows = json.loads(out)
    assert {row["metric"] for row in rows} == {"loss"}
    assert {row["n"] for row in rows} == {2}
    status, out, _ = call("status", folder, "--json")
    (told,) = json.loads(out)
    assert [cell["state"] for cell in told["cells"]] == ["finished"]
    assert "100 % done" in told["summary"]
    status, out, _ = call("report", folder)
    assert (status, out) == (0, f"{page}\n")
    status, out, _ = call("report", folder, "--all")
    *others, last = out.split()
    assert (status, last) == (0, page)
    assert {Path(path).suffix for path in others} == {".csv", ".svg"}
    assert all(Path(path).exists() for path in others)


@pytest.mark.more
def test_rerun_with_fewer_seeds_shows_only_these_seeds(call, tmp_path):
    words = ["run", STUDY, "--set", "chunk=1", "--set", "figures=[]", "--out", tmp_path / "quick"]
    page = tmp_path / "quick" / "report.html"
    _, _, error = call(*words, "--seeds", "2")
    assert "nothing to run" not in error
    for seeds in (2, 1, 2):
        _, out, error = call(*words, "--seeds", seeds)
        assert "quick: already finished, nothing to run\n" in error
        assert ("mean over 2 seeds" in out, "1 seed, without an interval" in out) == (seeds == 2, seeds == 1)
        assert f"1 × {seeds}" in page.read_text(encoding="utf-8")
    assert len(list((tmp_path / "quick" / "runs").iterdir())) == 2
    status, _, error = call("aggregate", tmp_path / "quick", "--pair", "model.gain")
    assert status == 2
    assert error == "jaxattn: --pair model.gain: expected KEY=A,B, for example --pair model.dim=64,512\n"


@pytest.mark.more
def test_shards_share_a_folder(call, tmp_path):
    folder = tmp_path / "quick"
    small = [*SMALL, "--set", "figures=[]", "--out", folder]
    status, out, error = call("run", *small, "--shard", "1/2")
    assert status == 0
    assert "1 seed, without an interval" in out
    _, out, _ = call("status", folder)
    assert "small: 50 % done, stopped" in out
    _, out, error = call("aggregate", folder, "--metrics", "loss")
    assert "Last step of each phase: 1 seed, without an interval" in out
    assert "the run is not finished; the results so far are shown" in error
    call("run", *small, "--shard", "2/2")
    other = tmp_path / "other"
    words = ["--set", "name=other", "--seeds", "5:7", "--set", "figures=[]", "--quiet", "--out", other]
    assert call("run", STUDY, *words)[0] == 0
    options = ["--metrics", "loss", "--phases", "query", "--by", "model.dim", "--out", tmp_path / "loss.tex"]
    status, out, _ = call("aggregate", folder, *options)
    assert status == 0
    assert "loss" in out
    assert "Means over cells of the same model.dim, last step of each phase: mean over 2 seeds [95 %" in out
    assert "accuracy" not in out
    assert "tabular" in (tmp_path / "loss.tex").read_text()
    status, out, _ = call("status", folder, other)
    assert status == 0
    assert [out.count(f"{each}: {each.name}: 100 % done, finished") for each in (folder, other)] == [0, 1]
    assert f"{folder}: small: 100 % done, finished" in out
    status, _, error = call("aggregate", folder, other, "--pair", "model.dim=8,16")
    assert status == 2
    assert "model.dim: not swept" in error
    status, _, error = call("aggregate", folder, "--pair", "model.dim=8,16", "--by", "model.dim")
    assert status == 2
    assert "--by model.dim: is paired, so it cannot label rows" in error


def test_quiet_plan_prints_only_tables(call, tmp_path):
    words = ["plan", *SMALL, "--quick", "--out", tmp_path / "none"]
    status, out, error = call(*words)
    assert (status, error) == (0, "")
    assert "small: 1 cell in 1 group, 2 of 2 runs missing, in 2 batches" in out
    line = " ".join(out[out.index("embed records ") : out.index("\nquery records ")].split())
    assert {"loss", "test_accuracy", "one_step_error"} <= set(line.removeprefix("embed records ").split(", "))
    # The legend explains every column.
    rows = out.splitlines()
    head = rows[rows.index("Groups") + 1]
    for column in ("group", "cells", "coordinates", "vmapped", "vmapped runs", "together", "batches"):
        assert f" {column} " in f" {head} "
        assert len([row for row in rows if re.match(rf"  {column}  +[a-z]", row)]) == 1
    assert not [row for row in rows if re.match(r"  (memory|time)  +[a-z]", row)]
    status, out, error = call(*words, "--json")
    assert (status, error) == (0, "")
    told = json.loads(out)
    assert line in told["metrics"]
    assert [len(told[key]) for key in ("cells", "groups")] == [1, 1]
    assert told["summary"].startswith("small: 1 cell in 1 group, 2 of 2 runs missing")


def test_version_matches_the_package(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jaxattn", "--version"])
    cli.main()
    assert capsys.readouterr().out == f"jaxattn {jaxattn.__version__}\n"


def test_a_system_that_is_not_posix_raises_a_one_line_error():
    words = "import sys; sys.modules['resource'] = None; sys.argv = ['jaxattn', 'plan', 'x.toml']"
    code = f"{words}; from jaxattn.lab.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "results folders require a POSIX system" in line
    assert line.endswith("or WSL on Windows")


def test_schema_and_doctor_commands_print_their_results(call):
    status, out, _ = call("schema")
    assert status == 0
    assert json.loads(out)["title"] == "jaxattn sweep file"
    status, out, _ = call("doctor")
    assert status == 0
    assert "float64" in out


@pytest.mark.more
def test_data_command_requires_no_model_or_phases(call, tmp_path):
    table = 'kind = "independent"\nvocab_size = 30\nrelevant = 10\nlength = 8\nsequences = 20'
    (tmp_path / "x.toml").write_text(f'name = "x"\n[data]\n{table}\n')
    status, out, _ = call("data", tmp_path / "x.toml", "--quiet", "--set", "data.sequences=24")
    assert status == 0
    assert "24" in out


def test_data_command_shows_the_corpus(call):
    status, out, _ = call("data", STUDY, "--quiet")
    assert status == 0
    # 30 sequences of 6 tokens, and a vocabulary of 20.
    assert re.search(r"^train +30 +180 +\d+ +20 ", out, re.MULTILINE)
    assert "average signed frequency" in out


def test_run_options_are_grouped(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(["run", "--help"])
    out = capsys.readouterr().out
    order = [
        "study options",
        "--seeds N|A:B",
        "machine options",
        "--shard I/N",
        "failure options",
        "--reuse-code",
    ]
    places = [out.index(word) for word in [*order, "output options", "--log"]]
    assert places == sorted(places)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_running_without_arguments_prints_help(call, words):
    """Commands have one line each in three groups, without their options."""
    status, out, error = call(*words)
    assert (status, error) == (0, "")
    titles = ["Run studies:", "Read results:", "Papers and claims:", "Options:"]
    rows = [line for line in out.splitlines() if line in titles or line.startswith("  ")]
    assert [row for row in rows if row in titles] == titles
    assert [row.split()[0] for row in rows if row.startswith("  ")] == [*commands(), "--version", "-h,"]
    assert "  --version   print the version\n" in out
    assert "Example" not in out
    assert {*"─│╭"} & set(out) == set()


@pytest.mark.parametrize(("width", "longest"), [(80, 1), (60, 2)])
def test_command_list_fits_in_80_columns_and_wraps_at_60(monkeypatch, capsys, width, longest):
    monkeypatch.setenv("COLUMNS", str(width))
    print_overview()
    rows = capsys.readouterr().out.splitlines()
    assert max(map(len, rows)) <= width
    continued = [row for row in rows if row.startswith(" " * 4) and row.strip()]
    assert len(continued) <= (longest - 1) * len(commands())


@pytest.mark.parametrize("command", commands())
def test_help_fits_and_shows_an_example_that_can_be_parsed(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        parse([command, "--help"])
    out, error = capsys.readouterr()
    assert (stopped.value.code, error) == (0, "")
    (example,) = re.findall(r"^ *Example: (.+)$", commands()[command].__doc__, re.MULTILINE)
    assert example.startswith(f"jaxattn {command}")
    assert f"Example: jaxattn {command}" in out
    assert callable(parse(shlex.split(example.partition(" > ")[0])[1:]))
    assert "default: None" not in out
    assert all(len(row) <= 80 for row in out.splitlines() if "Example: " not in row)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["repor"], "repor: unknown command; did you mean report?"),
        (["agg", "x"], "agg: unknown command; did you mean aggregate?"),
        (["xyz"], "xyz: unknown command; `jaxattn --help` lists the commands"),
        (["--versoin"], "--versoin: unknown option; did you mean --version?"),
    ],
)
def test_mistyped_command_suggests_the_nearest_name(call, words, message):
    assert call(*words) == (2, "", f"jaxattn: {message}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "x.toml", "--sed", "3"], ["Unrecognized options: --sed", "--seeds N|A:B|A,B"]),
        (["run"], ["Missing from jaxattn run", "SWEEP"]),
        (["diagnose", "--head", "v.npy"], ["--embedding", "--query", "--corpus"]),
        (["reproduce", "x", "--seeds", "a"], ["--seeds", "'a'"]),
        (["run", "x.toml", "--on-failure", "nope"], ["'nope'", "--on-failure", "retry"]),
    ],
)
def test_errors_in_the_options_of_a_command_name_the_option(call, words, said):
    status, out, error = call(*words)
    assert (status, out) == (2, "")
    assert [one for one in said if one not in error] == []


def test_option_names_may_contain_underscores(call):
    _, _, error = call("run", "nosuch.toml", "--max_memory", "8GiB")
    assert error == "jaxattn: nosuch.toml: no such sweep file\n"


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
        (["run", SWEEPS / "quickstart.toml", "--axis", "model.dim"], "expected key=value"),
        (["run", SWEEPS / "quickstart.toml", "--axis", "model.dims=[3]"], "did you mean 'dim'"),
        (["run", SWEEPS / "quickstart.toml", "--shard", "half"], "--shard half: expected I/N"),
        (["run", SWEEPS / "quickstart.toml", "--shard", "3/2"], "the index must be between 1 and 2"),
        (
            ["run", SWEEPS / "quickstart.toml", "--seeds", "9:3"],
            "jaxattn: --seeds: 9:3 is an empty range; write",
        ),
        (["run", SWEEPS / "quickstart.toml", "--axis", "model.dim=16"], "--axis model.dim: 16 is not a list"),
        (["run", SWEEPS / "quickstart.toml", "--set", "model.dim=0"], "jaxattn: --set model.dim: expected"),
        (["reproduce", "claims", "--only", "T4.4"], "--only: T4.4: no such item; known: L4.1"),
        (
            ["reproduce", "claims", "--only", "L4.1", "--only", "T4.3"],
            "--only: given 2 times; use it only once",
        ),
        (["run", SWEEPS / "quickstart.toml", "--out", "a", "--out=b"], "--out: given 2 times"),
        (["reproduce", "claims", "--seeds", "1"], "an interval over seeds requires at least 2"),
        (["reproduce", "claims", "--only", "L4.1", "--data-dir", "nosuch"], "nosuch"),
        (["status", "nosuch"], "nosuch"),
        (["aggregate"], "expected at least one results folder"),
        (["status"], "expected at least one results folder"),
        (
            ["run", SWEEPS / "quickstart.toml", "--set", "seeds=abc"],
            "seeds: expected a number, a range such as",
        ),
        (
            ["run", SWEEPS / "quickstart.toml", "--set", "phases.query.step_size=inf"],
            "inf is not allowed here",
        ),
        (["report", "nosuch"], "nosuch"),
        (["aggregate", "nosuch"], "nosuch"),
        (
            ["launch", STUDY, "--jobs", "0", "--cluster", "local"],
            "--jobs 0: must be at least 1",
        ),
        (
            ["launch", STUDY, "--jobs", "2", "--cluster", "local", "--option", "gpus"],
            "--option gpus: expected KEY=VALUE, for example --option gpus_per_node=1",
        ),
    ],
)
def test_invalid_input_gives_a_one_line_error_and_status_2(call, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, error = call(*arguments)
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["reproduce", "paper"],
        ["diagnose", "--embedding", "E.npy", "--query", "p.npy", "--head", "v.npy", "--corpus", "c.toml"],
    ],
    ids=lambda words: words[0],
)
def test_reproduce_and_diagnose_cannot_write_to_a_bucket(call, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    status, _, error = call(*words, "--out", "s3://bucket/x")
    assert status == 2
    assert "s3://bucket/x: this command cannot write to a bucket; use a local folder" in error
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import importlib.abc, os, signal, sys
moment = sys.argv.pop(1)
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from jaxattn.lab.cli import main
main()
"""


@pytest.mark.parametrize(
    "moment", ["tyro", "jaxlib", pytest.param("jaxattn.lab.engine.run_study", marks=pytest.mark.more)]
)
def test_interrupt_before_a_run_prints_one_line(tmp_path, moment):
    words = ["run", SWEEPS / "quickstart.toml", "--out", tmp_path / "run"]
    command = [sys.executable, "-c", INTERRUPTED, moment, *map(str, words)]
    # A background process ignores SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    kept = "finished batches and saved states are kept; the same command resumes the run"
    assert done.stderr == f"stopped at once; {kept}\n"
    assert not (tmp_path / "run").exists()


OF = {"E": "--embedding", "p": "--query", "v": "--head"}


@pytest.fixture
def trained(tmp_path):
    """Write a sweep file and a model of 30 tokens whose E·v is α."""
    import numpy as np

    import jaxattn as ja
    from jaxattn.lab.diagnosis import read_corpus

    data = 'kind = "independent"\nvocab_size = 30\nrelevant = 10\nlength = 8\nsequences = 200'
    (tmp_path / "corpus.toml").write_text(f"[data]\n{data}\n")
    alpha = np.asarray(ja.data.average_signed_frequency(read_corpus(tmp_path / "corpus.toml")[0]))
    np.save(tmp_path / "E.npy", np.stack([np.abs(alpha), alpha], axis=1))
    np.save(tmp_path / "p.npy", np.float32([1, 0]))
    np.save(tmp_path / "v.npy", np.float32([0, 1]))
    model = [word for letter in "Epv" for word in (OF[letter], tmp_path / f"{letter}.npy")]
    return [*model, "--corpus", tmp_path / "corpus.toml", "--min-count", "5", "--quiet"]


@pytest.mark.more
def test_diagnose_prints_verdicts_and_writes_files(call, tmp_path, trained):
    status, out, _ = call("diagnose", *trained, "--out", tmp_path / "found")
    assert status == 0
    assert "E·v against α: 1.000 is above the null band" in out
    for name in ("diagnosis.html", "diagnosis.md", "tokens.csv", "importance.svg"):
        assert str(tmp_path / "found" / name) in out
        assert (tmp_path / "found" / name).stat().st_size > 0


@pytest.mark.more
def test_diagnose_rejects_mismatched_input(call, tmp_path, trained):
    (tmp_path / "words.txt").write_text("a\nb\na\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a b", "label": 1}\n{"text": "b", "label": 0}\n')
    texts = f'[data]\nkind = "jsonl"\npath = "{tmp_path / "a.jsonl"}"\n'
    (tmp_path / "texts.toml").write_text(texts)
    (tmp_path / "none.toml").write_text("seeds = 3")
    words, other = ["--vocabulary", tmp_path / "words.txt"], ["--corpus", tmp_path / "texts.toml"]
    for extra, said in (
        (["--set", "data.vocab_size=31"], "30 rows, but the corpus has V = 31"),
        (["--set", "data.vocab=31"], "unknown key 'vocab'; did you mean 'vocab_size'?"),
        (["--set", "model.dim=3"], "expected data.KEY=VALUE"),
        (["--query", tmp_path / "none.npy"], "no such file"),
        (["--corpus", tmp_path / "none.toml"], "no [data] table"),
        (words, "this corpus does not contain text"),
        ([*other, *words], "'a' is token 0 and token 2"),
        (other, "30 rows, but the corpus has V = 2"),
    ):
        replaced = {k + j for k, word in enumerate(trained) if word in extra for j in (0, 1)}
        kept = [word for k, word in enumerate(trained) if k not in replaced]
        status, out, error = call("diagnose", *kept, *extra)
        assert (status, out) == (2, "")
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "aggregate", "report"])
def test_reading_a_fifo_instead_of_a_file_does_not_block(call, tmp_path, command):
    os.mkfifo(tmp_path / "study.json")
    status, _, error = call(command, tmp_path)
    assert status == 2
    assert "study.json: not a regular file; remove it" in error


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
@pytest.mark.more
def test_command_works_without_standard_streams(closed, tmp_path):
    words = f"'{sys.executable}' -m jaxattn schema {closed}"
    assert subprocess.run(["sh", "-c", words], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("letters", ["ascii", "cp1252"])
def test_unencodable_characters_are_replaced(monkeypatch, letters):
    written = io.TextIOWrapper(io.BytesIO(), encoding=letters)
    monkeypatch.setattr(sys, "stdout", written)
    cli._open_streams()
    print("1 − cos ≤ 0.1")
    written.flush()
    assert written.buffer.getvalue().split() == [b"1", b"?", b"cos", b"?", b"0.1"]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_to_a_missing_or_closed_stream_is_discarded(monkeypatch, name):
    closed = io.StringIO()
    closed.close()
    for missing in (None, closed):
        monkeypatch.setattr(sys, name, missing)
        cli._open_streams()
        print("α", file=getattr(sys, name), flush=True)
        getattr(sys, name).close()


def test_json_is_escaped_for_a_limited_console(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    console.print_json({"x": "α"})
    written.flush()
    assert json.loads(written.buffer.getvalue()) == {"x": "α"}


@pytest.mark.parametrize(
    "command",
    [["schema"], ["data", "sweeps/quickstart.toml", "--quiet"]],
)
@pytest.mark.more
def test_full_standard_output_gives_a_one_line_error(command):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jaxattn", *command],
            cwd=SWEEPS.parent, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "jaxattn: standard output: No space left on device; fix this and try again"
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
