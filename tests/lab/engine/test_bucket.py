"""Results folders in buckets, on a local S3 server: runs, readers, and errors."""

import importlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab import cli
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import objects
from jaxattn.lab.storage.folder import Kind, results_folder

pytest.importorskip("obstore")
pytest.importorskip("moto")
NUMBERS, WHOLE = itertools.count(), get_args(Kind)


@pytest.fixture(scope="module")
def server():
    """Return a server that this process uses while the tests of the module run."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "robustness"))
    try:
        started = importlib.import_module("s3_server").Server()
    finally:
        del sys.path[0]
    with started.used():
        yield started
    started.close()


@pytest.fixture
def place(server):
    """Return an address in an empty bucket."""
    name = f"bucket-{next(NUMBERS)}"
    server.make_bucket(name)
    yield Path(f"s3://{name}/results/small")
    server.fault = lambda method, path: ""


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Return a function that switches to another machine, which has no local copies."""
    hosts = itertools.count()

    def move():
        monkeypatch.setenv("JAXATTN_CACHE", str(tmp_path / f"host-{next(hosts)}"))

    move()
    return move


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the time for which failed requests are repeated."""
    monkeypatch.setattr(objects, "RETRY_S", 0.3)


def sent(server, place):
    """Return names and contents of the objects below an address."""
    name, _, folder = str(place).removeprefix("s3:/").partition("/")
    return {key.removeprefix(f"{folder}/"): x for key, x in server.objects(name).items()}


def records(there):
    """Return the records of batches among the objects of a folder, by the names of the batches."""
    names = (name for name in there if name.startswith("runs/") and name.endswith("/run.json"))
    return {name.split("/")[1]: json.loads(there[name]) for name in names}


def test_stopped_run_resumes_bitwise_identically_on_another_machine(
    go, stop, study, place, elsewhere, two_batches, every_step, assert_same, server, monkeypatch
):
    wanted = study(chunk=1)
    stop(place, wanted, 40, intervals=every_step)
    found = records(sent(server, place))
    assert sorted(one["finished"] for one in found.values()) == [False, True]
    elsewhere()
    # The process on the first machine has ended, which only time can show.
    monkeypatch.setattr("jaxattn.lab.storage.memo.GONE_S", 0.0)
    monkeypatch.setattr("jaxattn.lab.storage.memo._HOST", "other")
    server.sent.clear()
    outcome, _ = go(place, wanted)
    assert outcome.batches == 1
    assert_same(outcome.directory, two_batches)
    after = sent(server, place)
    assert all(one["finished"] for one in records(after).values())
    assert not [name for name in after if ".partial-" in name]
    elsewhere()
    assert_same(results_folder(place).fetch("tables"), two_batches)
    assert go(place, wanted)[0].already_finished


@pytest.mark.more
def test_records_in_a_bucket_always_refer_to_complete_files(go, study, place, elsewhere, every_step, server):
    lacking = []

    def look(method, path):
        there = sent(server, place) if method == "PUT" else {}
        for batch, record in records(there).items():
            number = "" if record["finished"] else f"-{record['saved']}"
            wanted = [f"{table}{number}.parquet" for table in record["tables"]]
            state = "checkpoint" if record["finished"] else f"state{number}"
            saved = record["checkpoint"] or {"files": ()}
            wanted += [f"{state}/{file}" for file in saved["files"]]
            lacking.append({f"runs/{batch}/{name}" for name in wanted} - there.keys())
        return ""

    server.fault = look
    go(place, study(chunk=1), intervals=every_step)
    assert len(lacking) > 100
    assert not set().union(*lacking)
    left = {name.split("/")[2] for name in sent(server, place) if name.startswith("runs/")}
    assert left == {"run.json", "metrics.jsonl", "records.parquet", "tokens.parquet", "checkpoint"}


@pytest.mark.more
def test_results_can_be_read_from_another_machine(study, go, place, elsewhere, server, capsys):
    here = ja.load(go(place, study())[0].directory)
    elsewhere()
    loaded = ja.load(str(place).replace("s3:/", "s3://"))
    pd.testing.assert_frame_equal(loaded.records, here.records)
    assert not list(loaded.directory.glob("runs/*/checkpoint"))
    np.testing.assert_array_equal(loaded.params(seed=1).p, here.params(seed=1).p)
    assert run_status(place)[1] == "small: 100 % done, finished"
    elsewhere()
    command("status", place, "--verify")
    command("aggregate", place)
    assert "all files match their checksums" in capsys.readouterr().out


def command(*words, status=0):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["jaxattn", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert (ended.value.code or 0) == status


@pytest.mark.more
def test_report_from_another_machine_is_bitwise_identical(study, place, elsewhere, server):
    study().run(place, quiet=True)
    page = sent(server, place)["report.html"]
    elsewhere()
    command("report", place)
    assert sent(server, place)["report.html"] == page
    assert verify(results_folder(place).fetch(*WHOLE)) == []


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.more
def test_verify_reports_damage_in_a_bucket_and_the_next_run_repairs_it(
    go, study, place, elsewhere, server, capsys, damage
):
    go(place, study())
    name = next(x for x in sent(server, place) if x.endswith("/records.parquet"))
    size = len(sent(server, place)[name])
    objects.Objects(place).delete([name])
    if damage == "damaged":
        server.put(str(place).split("/")[1], f"results/small/{name}", bytes(size))
    elsewhere()
    command("status", place, "--verify", status=1)
    assert f"s3://{str(place)[4:]}/{name}: {damage}" in capsys.readouterr().err
    outcome, lines = go(place, study())
    assert outcome.batches == 1
    assert len([line for line in lines if name.split("/")[1] in line]) == 1
    elsewhere()
    command("status", place, "--verify")


def test_damaged_checkpoint_is_reported_by_address(go, study, place, elsewhere, server):
    go(place, study())
    name = next(x for x in sent(server, place) if "/checkpoint/" in x and x.endswith("_METADATA"))
    server.put(str(place).split("/")[1], f"results/small/{name}", b"{}")
    elsewhere()
    with pytest.raises(ja.InputError) as caught:
        ja.load(place).params()
    assert f"s3://{str(place)[4:]}/{name}: damaged" in str(caught.value)
    assert os.environ["JAXATTN_CACHE"] not in str(caught.value)


@pytest.mark.parametrize("key", ["a/../b", "a//b", "runs/..", "figures/\x1b[2J"])
def test_object_key_that_is_not_a_path_raises(go, study, place, elsewhere, server, key):
    go(place, study())
    server.put(str(place).split("/")[1], f"results/small/{key}", b"x")
    elsewhere()
    with pytest.raises(
        ja.InputError, match=r"the key 'results/small/.*' is not a valid path; delete that object"
    ) as caught:
        ja.load(place)
    assert repr(key)[1:-1] in str(caught.value)


def test_object_keys_unsupported_by_the_file_system_are_ignored(go, study, place, elsewhere, server):
    go(place, study())
    for key in (f"figures/{'x' * 300}", f"runs/{'x' * 300}/run.json", "figures/", "x" * 500, "figures/a/b"):
        server.put(str(place).split("/")[1], f"results/small/{key}", b"x")
    elsewhere()
    folder = results_folder(place).fetch(*WHOLE)
    assert verify(folder) == []
    assert not (folder / "figures").exists()
    assert go(place, study())[0].already_finished


@pytest.mark.parametrize(
    "fault",
    [*(pytest.param(x, marks=pytest.mark.more) for x in ("500", "lost before")), "slow down", "lost after"],
)
@pytest.mark.more
def test_occasional_request_failures_are_retried(
    go, study, place, elsewhere, server, fault, two_batches, assert_same
):
    numbers = itertools.count(1)
    server.fault = lambda method, path: fault if next(numbers) % 7 == 0 else ""
    outcome, _ = go(place, study(chunk=1))
    assert not outcome.failures
    assert_same(outcome.directory, two_batches)
    server.fault = lambda method, path: ""
    assert verify(results_folder(place).fetch(*WHOLE)) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("denied", "access denied; use credentials"),
        ("expired", "the credentials have expired; renew them"),
        pytest.param("500", "unexpected response from the server", marks=pytest.mark.more),
        ("lost before", "unexpected response from the server"),
    ],
)
@pytest.mark.more
def test_bucket_failure_during_a_run_raises_a_one_line_error(
    go, study, place, elsewhere, server, fault, words, impatient, two_batches, assert_same
):
    marks = itertools.count()

    def end(method, path):
        if method == "PUT" and path.partition("?")[0].endswith("/run.json") and next(marks) > 2:
            server.fault = lambda method, path: fault
            return fault
        return ""

    server.fault = end
    with pytest.raises(ja.RunError, match=words) as raised:
        go(place, study(chunk=1))
    assert "run the same command again to resume" in str(raised.value)
    server.fault = lambda method, path: ""
    outcome, _ = go(place, study(chunk=1))
    assert_same(outcome.directory, two_batches)


@pytest.mark.parametrize(("fault", "words"), [("denied", "access denied"), ("expired", "have expired")])
def test_bucket_failure_at_the_start_raises_a_one_line_error(study, place, elsewhere, server, fault, words):
    server.fault = lambda method, path: fault
    with pytest.raises(ja.InputError, match=words):
        study().run(place, quiet=True)
    with pytest.raises(ja.InputError, match=words):
        ja.load(place)


def test_invalid_addresses_raise(study, place, elsewhere, server, monkeypatch, impatient):
    run = study().run
    with pytest.raises(ja.InputError, match=r"s3://nosuch/x: cannot be read: no such bucket; create it"):
        run("s3://nosuch/x", quiet=True)
    with pytest.raises(ja.InputError, match="not the URL of a bucket folder; use s3://BUCKET/NAME"):
        run("s3://bucket", quiet=True)
    with pytest.raises(ja.InputError, match="not the URL of a bucket folder"):
        run("s3://bucket/a/../b", quiet=True)
    with pytest.raises(ja.InputError, match=r"s3://.*: no study.json, so not a results folder"):
        ja.load(place)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ja.InputError, match=r"obstore is not installed; run pip .* 'jaxattn\[cloud\]'"):
        run(place, quiet=True)


def test_missing_credentials_raise(study, place, elsewhere, monkeypatch, tmp_path, impatient):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    with pytest.raises(ja.InputError, match=r"s3://.*: no credentials; set AWS_ACCESS_KEY_ID"):
        study().run(place, quiet=True)


def test_bucket_prefix_with_unrelated_objects_raises(study, place, elsewhere, server):
    server.put(str(place).split("/")[1], "results/small/thesis.tex", b"x")
    with pytest.raises(ja.InputError, match="neither empty nor a results folder; choose another folder"):
        study().run(place, quiet=True)
    assert sent(server, place).keys() == {"thesis.tex"}


def test_another_study_in_the_same_bucket_folder_leaves_the_first_one(go, study, place, elsewhere, server):
    go(place, study())
    before = sent(server, place)
    elsewhere()
    first, last = study().tree["phases"]
    other = study(phases=[first, last | {"step_size": 0.2}])
    assert not go(place, other)[0].already_finished
    after = sent(server, place)
    assert {name: x for name, x in before.items() if name.startswith("runs/")}.items() <= after.items()
    elsewhere()
    assert go(place, study())[0].already_finished
    assert len(ja.load(place).records) == len(ja.load(go(place, study())[0].directory).records)


def test_failed_start_leaves_no_objects(study, place, elsewhere, server):
    with pytest.raises((ja.InputError, ja.RunError)):
        study(data={"kind": "texts", "path": "nosuch"}).run(place, quiet=True)
    assert not sent(server, place)


def test_shards_in_a_bucket_complete_one_folder(
    study, place, elsewhere, go, server, two_batches, assert_same
):
    wanted = study(chunk=1)
    for number in (1, 2):
        assert go(place, wanted, shard=(number, 2))[0].batches == 1
        elsewhere()
    assert_same(results_folder(place).fetch("tables"), two_batches)
