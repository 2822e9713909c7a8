"""Cases, machine description, report and output of bench.py."""

import dataclasses
import json
import os
import sys

import bench
import jax
import numpy as np
import pytest
from bench import (
    CASES,
    Case,
    Machine,
    Measured,
    Report,
    beside,
    machine,
    measure,
    read,
    reviews,
    table,
    write,
)

import jaxattn as ja


def test_generated_reviews_have_realistic_lengths_and_are_deterministic():
    corpus = reviews(sequences=300, vocab_size=500)
    total = np.bincount(np.asarray(corpus.bags.owner), np.asarray(corpus.bags.count).sum(axis=1), 300)
    assert 130 < np.median(total) < 260
    again = reviews(sequences=300, vocab_size=500)
    np.testing.assert_array_equal(corpus.bags.index, again.bags.index)


def test_cases_have_distinct_names_and_increasing_sizes():
    assert len({one.name for one in CASES}) == len(CASES)
    assert all(list(one.seeds) == sorted(one.seeds) for one in CASES)


def case(**changes):
    study = ja.Study(
        name="bench",
        data=ja.data.Independent(vocab_size=12, relevant=4, length=4, sequences=10),
        model=ja.models.OneLayer(dim=8),
        phases=[ja.dynamics.Descent(name="descent", train=("p",), optimizer="sgd", step_size=0.1, steps=20)],
        probes={"tokens": False, "per_decade": 0},
    )
    return dataclasses.replace(Case("small", study, (1, 3), 20), **changes)


@pytest.fixture(scope="module")
def rows():
    return [measure(case(), seeds, repeats=2) for seeds in (1, 3)]


@pytest.mark.more
def test_all_seed_counts_are_measured(rows):
    assert [(one.case, one.seeds, one.passes) for one in rows] == [("small", 1, 2), ("small", 3, 2)]
    for one in rows:
        assert one.same_bits
        assert 0 < one.step_us < 1e6
        # Compiling takes longer than twenty steps of ten sequences.
        assert one.first_s > 20e-6 * one.step_us * one.seeds
        assert one.planned_mib > 0
        assert one.peak_mib is None or one.peak_mib > 0


@pytest.mark.more
def test_bitwise_differences_are_detected(monkeypatch):
    numbers = iter(range(100))
    seen = bench._timed

    def changing(function):
        took, bits = seen(function)
        return took, [*bits, str(next(numbers))]

    monkeypatch.setattr(bench, "_timed", changing)
    assert not measure(case(), 1, repeats=1).same_bits


def test_case_that_exceeds_memory_raises_a_one_line_error(monkeypatch):
    def full(function):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.\nmore")

    monkeypatch.setattr(bench, "_timed", full)
    with pytest.raises(
        ja.RunError, match=r"small, 3 seeds: RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes$"
    ):
        measure(case(), 3, repeats=1)


def test_report_describes_the_machine(monkeypatch):
    monkeypatch.setattr(bench, "_COPIED", 2**20)
    here = machine()
    assert here.platform == "cpu"
    assert here.devices >= 1
    assert 0.01 < here.copied_gb_s < 10_000


def report(*measured, device="chip"):
    return Report(Machine(device, "gpu", 1, 3000.0, "3.12", "0.10", {"version": "1"}), list(measured))


def row(name="small", seeds=1, us=10.0, peak=None):
    return Measured(name, seeds, 1.0, us, 3, True, 5.0, peak)


def test_reports_round_trip_through_files(tmp_path):
    one = report(row(), row(seeds=4, peak=17.0))
    path = write(one, tmp_path / "deep" / "bench.json")
    assert read(path) == one
    assert json.loads(path.read_text())["machine"]["device"] == "chip"


def test_comparison_has_one_column_per_machine():
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
def test_files_that_are_not_reports_are_rejected(tmp_path, content):
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(ja.InputError, match=r"not a file of bench\.py"):
        read(path)
    with pytest.raises(ja.InputError, match="missing"):
        read(tmp_path / "missing.json")
    with pytest.raises(ja.RunError, match="cannot be written"):
        write(report(), path / "below.json")


def test_special_and_oversized_files_are_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(
        ja.InputError, match=r"fifo: not a regular file; give a file that bench.py --out wrote$"
    ):
        read(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    with pytest.raises(
        ja.InputError, match=r"large: too large: 1,099,511,627,776 bytes, with a limit of 16,777,216 bytes"
    ):
        read(tmp_path / "large")
    (tmp_path / "deep").write_text("[" * 10**6)
    with pytest.raises(ja.InputError, match=r"not a file of bench\.py"):
        read(tmp_path / "deep")


@pytest.fixture
def script(monkeypatch, capsys):
    """Run the script; return its status, output and errors."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "300")
        return bench.main(), *capsys.readouterr()

    return run


@pytest.mark.more
def test_script_writes_reports_and_compares_files(script, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "_COPIED", 2**20)
    file = tmp_path / "bench.json"
    words = ["--only", "corpora of their own", "--seeds", "1", "--repeats", "1", "--quiet"]
    status, out, _ = script(*words, "--out", file)
    assert status == 0
    assert "corpora of their own, p" in out
    assert "GB/s" in out
    status, out, _ = script(file, file)
    assert status == 0
    assert "1: " in out
    assert "2: " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "nosuch"], "--only nosuch: no case name contains it; the cases are corpora of their own"),
        (["--repeats", "0"], "--repeats 0: give at least 1"),
        (["--seeds", "0"], "--seeds 0: give at least 1"),
        (["nosuch.json"], "nosuch.json: missing; give a file that bench.py --out wrote"),
        (["nosuch.json", "--seeds", "1"], "do not apply to files"),
        (["--seeds", "1", "--seeds", "2"], "--seeds: given 2 times"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(script, words, message):
    status, out, error = script(*words)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error
