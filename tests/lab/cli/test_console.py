"""Printed tables: nothing is truncated or parsed as markup."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from jaxattn.lab import cli
from jaxattn.lab.cli import console
from jaxattn.lab.engine.monitor import Interrupted
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results.run import Run

METRICS = ["loss", "spearman_Ep_tokens", "spearman_Ep_bins", "best_test_accuracy", "important_mass"]


@pytest.fixture
def lines(monkeypatch, capsys):
    def printed(show, *arguments, width=80, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        show(*arguments, **options)
        return capsys.readouterr().out.splitlines()

    return printed


@pytest.mark.parametrize("name", ["[/nope]", "[red]x[/red]", "a[b]c", ":smile:"])
def test_names_are_not_parsed_as_markup(lines, name):
    frame = pd.DataFrame({name: ["one"], "phase": [name]})
    text = "\n".join(lines(console.print_table, f"title {name}", frame))
    assert text.count(name) == 3


def test_control_characters_are_escaped(lines):
    (row,) = (
        line for line in lines(console.print_table, "t", pd.DataFrame({"x": ["a\n\x1b[31mb"]})) if "a" in line
    )
    assert row.strip() == r"a\n\x1b[31mb"


def test_output_has_no_terminal_escape_codes(lines, capsys):
    told = "a\tb é\x1b[2J\x9b1m\u202ec\r"
    assert lines(console.print_line, f"{told}\nsecond") == [r"a       b é\x1b[2J\x9b1m\u202ec\r", "second"]
    console.print_line(told, err=True)
    assert capsys.readouterr().err == "a       b é\\x1b[2J\\x9b1m\\u202ec\\r\n"
    printed = "\n".join(lines(console.print_json, {"é": told}))
    assert json.loads(printed) == {"é": told}
    assert all((x.isprintable() and x.isascii()) or x == "\n" for x in printed)
    with Reporter() as reporter:
        reporter.warn(told)
        reporter.update(told, 0.5, told)
    assert all(x.isprintable() or x == "\n" for x in capsys.readouterr().err)


def test_all_command_output_is_escaped():
    """One function prints all output, so text from a folder never reaches the terminal unescaped."""
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        calls = re.findall(r"(?<![\w.])print\(.*", path.read_text(encoding="utf-8"))
        allowed = {"console.py": 1, "__init__.py": 1}.get(path.name, 0)
        assert len(calls) == allowed, (path.name, calls)


def test_columns_with_identical_names_are_all_printed(lines):
    frame = pd.DataFrame([[1, 2, 3]], columns=["x", "x", "x"])
    assert [line.split() for line in lines(console.print_table, "t", frame)][-2] == ["1", "2", "3"]


def test_columns_are_aligned(lines):
    words = [line.strip() for line in lines(console.print_table, "t", pd.DataFrame({"x": [4, 5, 6]}))]
    first = words.index("4")
    assert words[first : first + 3] == ["4", "5", "6"]


def test_numbers_are_not_separated_from_their_units(lines):
    frame = pd.DataFrame({"bytes": ["3.18 kB", "16 B"], "words": ["a few words of text", "and some more"]})
    printed = lines(console.print_table, "t", frame, width=20)
    assert [line.split()[:2] for line in printed if "kB" in line] == [["3.18", "kB"]]


def run_of(directory, cells, seeds=2, metrics=METRICS):
    settings = [
        {"phases.embed.step_size": 1.0, "phases.query.step_size": 0.1 * (1 + k)} for k in range(cells)
    ]
    rows = [
        (cell, seed, phase, 3, metric, 0.1234 * (seed + 1) * (cell + 1))
        for cell in range(cells)
        for seed in range(seeds)
        for phase in ("embed", "query")
        for metric in metrics
    ]
    records = pd.DataFrame(rows, columns=["cell", "seed", "phase", "step", "metric", "value"])
    named = [{"cell": k, "settings": s if cells > 1 else {}} for k, s in enumerate(settings)]
    return Run(
        directory,
        {"name": "x", "config": {}, "cells": named, "seeds": list(range(seeds))},
        records,
        records.iloc[:0],
    )


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("cells", [1, 6, 40])
def test_summary_fits_the_terminal_without_truncation(lines, tmp_path, cells, width):
    found = lines(console.print_summary, run_of(tmp_path, cells), width=width)
    assert max(map(len, found)) <= width
    assert "…" not in "".join(found)
    assert "mean over 2 seeds [95 % interval, Student's t]" in " ".join(" ".join(found).split())
    values = [line for line in found if "[" in line and "Student" not in line]
    # Every value is on a separate line of one of the tables.
    assert sum(line.count("[") for line in values) == cells * 2 * len(METRICS)
    # Names are not broken.
    assert all(metric in " ".join(found).split() for metric in METRICS)
    if cells > 1:
        assert all(line.split()[0] == "1" for line in values)
    # There is one table, or one for each metric, but never a continued table.
    assert sum(line.startswith("──") for line in found) in (1, len(METRICS))


MANY = [*METRICS, *(f"spectral_norm_of_layer_{k}" for k in range(14))]


@pytest.mark.parametrize("cells", [1, 6])
def test_six_metrics_are_printed_unless_all_are_requested(lines, tmp_path, cells):
    run = run_of(tmp_path, cells, metrics=MANY)
    found = " ".join(" ".join(lines(console.print_summary, run)).split())
    assert sum(f" {name} " in found for name in MANY) == 6
    assert "13 more metrics with --all" in found
    found = " ".join(" ".join(lines(console.print_summary, run, every=True)).split())
    assert all(f" {name} " in found for name in MANY)
    assert "more metrics" not in found


@pytest.fixture
def learned(tmp_path):
    """A run with wide tables and long notes."""
    names = ["test_accuracy", "loss", "important_selected", "spearman_Ev_tokens", *MANY]
    return run_of(tmp_path, 2, metrics=names)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("every", [False, True])
def test_words_in_the_output_of_a_run_are_never_broken(lines, learned, width, every):
    def show():
        console.print_summary(learned, every=every)

    wide, found = lines(show, width=10_000), lines(show, width=width)
    assert max(map(len, found)) <= width
    words = {word for line in wide for word in line.split()} | {"value", "phase", "1", "in", "all", "rows"}
    # In a heading of the wide table, settings are followed by a comma.
    words |= {word.rstrip(",") for word in words}
    # Table lines and headings are excluded, because headings may break after dots.
    heads = {f"{part}." for word in words for part in word.split(".")} | {
        word.split(".")[-1] for word in words if word.startswith("phases.")
    }
    found_words = {word for line in found if not line.startswith("──") for word in line.split()}
    assert {word for word in found_words if not word.endswith(":")} <= words | heads


def test_long_words_in_a_table_are_not_broken(lines):
    path = "/" + "folder/" * 9 + "file.txt"
    found = lines(console.print_table, "t", pd.DataFrame({"name": ["x"], "found": [f"at {path}"]}), width=80)
    assert path in " ".join(found).split()


def test_text_is_wrapped_in_a_terminal_but_not_in_a_pipe(lines, monkeypatch, capsys):
    text = "embed records " + ", ".join(f"metric_{k}" for k in range(30)) + ", Ep_bin_00 .. 19, x [0.1, 0.2]"
    for width in range(20, 90):
        found = lines(console.print_wrapped, text, indent=2, width=width)
        assert max(map(len, found)) <= width
        assert all(line.startswith("  ") for line in found[1:])
        assert " ".join(" ".join(found).split()) == text
        assert any("Ep_bin_00 .. 19" in line for line in found)
        assert any("[0.1, 0.2]" in line for line in found)
    assert lines(console.print_wrapped, "see results/one/long-path/report.html", width=20) == [
        "see",
        "results/one/long-path/report.html",
    ]
    monkeypatch.delenv("COLUMNS")
    console.print_wrapped(text)
    assert capsys.readouterr().out == text + "\n"


def test_constant_columns_in_a_wide_table_are_printed_once(lines):
    frame = pd.DataFrame(
        {f"data.some_setting_{k}": [f"some long value {k}"] * 3 for k in range(6)} | {"cell": [0, 1, 2]}
    )
    found = lines(console.print_table, "t", frame)
    assert found[1] == "data.some_setting_0: some long value 0 in all rows"
    assert [line.strip() for line in found if line.strip().isdecimal()] == ["0", "1", "2"]
    assert sum(line.startswith("──") for line in found) == 1


def test_a_very_wide_table_is_printed_row_by_row(lines):
    frame = pd.DataFrame(
        {f"axis_{k}": [f"a-word-of-some-length-{k}-{row}" for row in "xy"] for k in range(5)}
    )
    found = lines(console.print_table, "t", frame)
    assert found[1:6] == [f"axis_{k}: a-word-of-some-length-{k}-x" for k in range(5)]
    assert not any(line.startswith("──") for line in found)


def test_cells_in_a_wide_table_wrap_between_words(lines):
    text = "a sentence of many words that goes on " * 3
    found = lines(console.print_table, "t", pd.DataFrame({"name": ["x"], "said": [text], "and": [text]}))
    assert max(map(len, found)) <= 80
    assert {word for line in found[3:] for word in line.split()} <= {*text.split(), "x"}


def failures(cells, seeds):
    return [
        {"reason": "loss is not finite", "cell": cell, "seed": seed, "phase": "query", "step": 3}
        for cell in range(cells)
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(("cells", "seeds", "shown"), [(2, 60, 12), (2, 3, 6)])
def test_first_failures_are_printed_with_a_remedy(capsys, cells, seeds, shown):
    console.print_failures(failures(cells, seeds), "results/x")
    *each, last = capsys.readouterr().err.splitlines()
    assert len(each) == shown
    assert each[0] == "jaxattn: failed: loss is not finite in cell 0, seed 0, phase query, step 3"
    left = cells * seeds - shown
    more = (
        f"and {left} more: see results/x/runs/*/run.json, or run `jaxattn status results/x`; " if left else ""
    )
    assert last == f"jaxattn: {more}try a smaller step_size in that phase, or --set dtype=float64"


def test_nonfinite_initial_loss_has_a_specific_remedy(capsys):
    console.print_failures([failure | {"step": 0} for failure in failures(1, 2)], "results/x")
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("jaxattn: no step was taken: check the outputs of the model and the loss")


def test_nothing_is_printed_if_there_are_no_failures(capsys):
    console.print_failures([], "results/x")
    assert capsys.readouterr().err == ""


def test_stopped_run_prints_resume_command(capsys):
    with pytest.raises(SystemExit) as stopped, console.stoppable("jaxattn run x.toml"):
        raise Interrupted("1 of 2 batches finished")
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "stopped; 1 of 2 batches finished; resume with: jaxattn run x.toml\n"


def test_long_tables_are_truncated(lines, monkeypatch):
    monkeypatch.setattr(console, "_ROWS", 10)
    found = lines(console.print_table, "t", pd.DataFrame({"x": range(25)}))
    assert found[-1] == "... and 15 more rows"
    assert [line.strip() for line in found if line.strip().isdecimal()] == [str(k) for k in range(10)]
