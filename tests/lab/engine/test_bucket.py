"""Results folders in buckets, on a local S3 server: runs, readers, locks, and errors."""

import importlib
import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError, RunError
from jaxattn.lab import cli
from jaxattn.lab.cli.options import read_folders
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import distributed
from jaxattn.lab.engine.store import Store
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import bucket, copies, lock, objects
from jaxattn.lab.storage.folder import Kind, _BucketFolder, results_folder

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
def soon(monkeypatch):
    """Shorten the intervals of locks, for tests in which nobody must keep a lock."""
    monkeypatch.setattr(lock, "BEAT_S", 0.1)
    monkeypatch.setattr(lock, "GONE_S", 1.0)
    monkeypatch.setattr(lock, "LOOK_S", 0.05)
    monkeypatch.setattr(_BucketFolder, "look_s", 0.1)


@pytest.fixture
def looked_at(monkeypatch):
    """Let the holder of a lock renew it whenever another process reads it."""

    def held_by(holder):
        clock = SimpleNamespace(**vars(time) | {"sleep": lambda seconds: holder.send_heartbeat()})
        monkeypatch.setattr(lock, "time", clock)

    return held_by


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the time for which failed requests are repeated."""
    monkeypatch.setattr(objects, "RETRY_S", 0.3)


def sent(server, place):
    """Return names and contents of the objects below an address."""
    name, _, folder = str(place).removeprefix("s3:/").partition("/")
    return {key.removeprefix(f"{folder}/"): x for key, x in server.objects(name).items()}


def test_stopped_run_resumes_bitwise_identically_on_another_machine(
    go, stop, study, place, elsewhere, soon, two_batches, every_step, assert_same, server
):
    wanted = study(chunk=1)
    stop(place, wanted, 12, intervals=every_step)
    there = sent(server, place)
    assert {"manifest.json", "metrics.jsonl", lock.OBJECT} <= there.keys()
    # The finished batch is read without its parameters, the other one with its checkpoint.
    elsewhere()
    server.sent.clear()
    outcome, _ = go(place, wanted)
    assert not outcome.already_finished
    after = sent(server, place)
    assert_same(outcome.directory, two_batches)
    marks = [json.loads(x) for name, x in there.items() if bucket._is_record(name)]
    checkpoints = sum(
        size for mark in marks for size, _ in mark["checkpoint"]["files"].values() if not mark["finished"]
    )
    small = sum(len(x) for name, x in there.items() if not name.startswith("checkpoints/"))
    assert checkpoints > 0
    # The objects are listed twice at the start and once at the end.
    listed = 2 * len(there) + len(after)
    assert server.sent["GET"] < checkpoints + small + listed * 400
    elsewhere()
    assert_same(results_folder(place).fetch("tables"), two_batches)
    assert go(place, wanted)[0].already_finished


@pytest.mark.more
def test_bucket_contains_exactly_the_committed_objects(go, study, place, elsewhere, every_step, server):
    named = []

    def look(method, path):
        there = sent(server, place) if method == "PUT" else {}
        for name, content in there.items():
            if bucket._is_record(name):
                mark, batch = json.loads(content), name[len("parts/") : -len(".json")]
                wanted = [f"parts/{batch}.{table}.{x[:16]}.parquet" for table, x in mark["tables"].items()]
                saved = mark["checkpoint"]
                wanted += [f"checkpoints/{batch}/{saved['number']}/{file}" for file in saved["files"]]
                named.append(set(wanted) - there.keys())
        return ""

    server.fault = look
    go(place, study(chunk=1), intervals=every_step)
    assert len(named) > 100
    assert not set().union(*named)
    found = Store(place)
    kept = set(bucket.MERGED) | {"manifest.json", "metrics.jsonl", lock.OBJECT}
    for batch in (name[6:-5] for name in sent(server, place) if bucket._is_record(name)):
        saved = bucket.batch_state.read_state(found.directory, batch)
        kept |= {f"parts/{batch}.json", *bucket._tables(batch, saved), *bucket._checkpoint(batch, saved)}
    assert sent(server, place).keys() == kept


@pytest.mark.more
def test_results_can_be_read_from_another_machine(study, go, place, elsewhere, soon, server, capsys):
    here = ja.load(go(place, study())[0].directory)
    elsewhere()
    loaded = ja.load(str(place).replace("s3:/", "s3://"))
    pd.testing.assert_frame_equal(loaded.records, here.records)
    assert not list(loaded.directory.glob("checkpoints/*"))
    np.testing.assert_array_equal(loaded.params(seed=1).p, here.params(seed=1).p)
    assert run_status(place)[1] == "small: 100 % done, finished"
    assert read_folders((place,)) == ([place], [])
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
def test_verify_reports_damage_in_a_bucket(go, study, place, elsewhere, server, capsys, damage):
    go(place, study())
    name = next(x for x in sent(server, place) if x.startswith("parts/") and ".records." in x)
    store, size = objects.Objects(place), len(sent(server, place)[name])
    store.delete([name])
    if damage == "damaged":
        store.commit(name, bytes(size))
    command("status", place, "--verify", status=1)
    lines = capsys.readouterr().err
    assert f"s3://{str(place)[4:]}/{name}: {damage}" in lines
    # The same command fixes it, also if an earlier copy is intact.
    go(place, study())
    command("status", place, "--verify")


def test_second_run_reports_the_holder_of_the_lock(study, place, elsewhere, looked_at, go):
    holder = Store(place)
    with holder.locked():
        looked_at(holder.bucket.lock)
        assert lock.is_locked(place)
        elsewhere()
        with pytest.raises(RunError, match=rf"in use by process {os.getpid()} on .* \(since 20.*\)"):
            go(place, study())
    assert not lock.is_locked(place)


def test_abandoned_lock_is_taken_over_despite_clock_skew(study, place, elsewhere, soon, go, monkeypatch):
    gone = lock.Lock(objects.Objects(place), Path(os.environ["JAXATTN_CACHE"]).parent / "gone")
    monkeypatch.setattr(time, "gmtime", lambda *_: time.struct_time((2040, 1, 1, 0, 0, 0, 6, 1, 0)))
    gone.take(print)
    monkeypatch.undo()
    monkeypatch.setenv("JAXATTN_CACHE", str(Path(os.environ.get("JAXATTN_CACHE", "/tmp")) / "other"))
    monkeypatch.setattr(lock, "GONE_S", 0.5)
    assert not go(place, study())[0].failures
    gone._last = -np.inf
    with pytest.raises(RunError, match="taken over by"):
        gone.check()


def test_same_machine_resumes_immediately_after_a_kill(study, place, elsewhere, go, monkeypatch):
    store = Store(place)
    store.directory.mkdir(parents=True)
    lock.Lock(store.bucket.objects, store.directory / bucket.OWN[0]).take(print)
    monkeypatch.setattr(lock, "_replaced", lambda *_: pytest.fail("it waits for a holder that is gone"))
    assert not go(place, study())[0].failures


@pytest.mark.more
def test_suspended_run_cannot_overwrite_its_successor(
    study, place, elsewhere, soon, go, stop, every_step, server
):
    """A suspended process counts as gone, a successor resumes the run, and the first process continues."""
    stop(place, study(), 8, intervals=every_step)
    elsewhere()
    first = Store(place)
    first.directory.mkdir(parents=True)
    with first.locked():
        first.bucket.lock._one.acquire()  # The process stops renewing its lock.
        elsewhere()
        assert not go(place, study())[0].failures
        before = sent(server, place)
        first.bucket.lock._one.release()
        with pytest.raises(RunError, match=r"taken over by|another run"):
            first.write_manifest({"status": "running"})
    assert sent(server, place) == before
    assert verify(results_folder(place).fetch(*WHOLE)) == []


def test_a_lost_lock_is_never_reacquired(place, elsewhere, soon, tmp_path):
    """Reporting the new holder reads the lock object, and a process may replace what it has read."""
    first, second = (lock.Lock(objects.Objects(place), tmp_path / name) for name in ("first", "second"))
    first.take(print)
    second.take(print)
    with pytest.raises(objects.Changed):
        first.send_heartbeat()
    first._lose()
    assert first.is_lost
    with pytest.raises(objects.Changed, match="taken over by process"):
        first.send_heartbeat()
    second.send_heartbeat()


def named(folder):
    """Return the commit records of a local copy, and the names that they refer to."""
    found = set()
    for batch in bucket.batch_state.batches(folder):
        saved = bucket.batch_state.read_state(folder, batch)
        found |= {f"parts/{batch}.json", *bucket._tables(batch, saved), *bucket._checkpoint(batch, saved)}
    return found


@pytest.mark.more
def test_uncommitted_objects_are_deleted(
    study, place, elsewhere, soon, go, stop, every_step, server, monkeypatch
):
    stop(place, study(chunk=1), 8, intervals=every_step)
    elsewhere()
    first = Store(place)
    first.directory.mkdir(parents=True)
    batch = "cells-00000-00000-seeds-00001-00001"
    with first.locked():
        first.bucket.lock._one.acquire()  # The process stops renewing its lock.
        elsewhere()
        objects.Objects(place).commit(f"checkpoints/{batch}/7/killed", b"x")
        objects.Objects(place).commit(f"parts/{batch}.records.killed.parquet", b"x")
        # These are files of a batch that the successor lacks, because it was halved for lack of memory.
        other = batch.replace("seeds-00001", "seeds-00000")
        objects.Objects(place).commit(f"checkpoints/{other}/7/killed", b"x")
        objects.Objects(place).commit("parts/strange", b"x")
        go(place, study(chunk=1))
        there = {name for name in sent(server, place) if name.startswith(("parts/", "checkpoints/"))}
        expected = named(results_folder(place).fetch(*WHOLE)) | {"parts/strange"}
        first.bucket.lock._one.release()
        arrays, tables = {"E": np.zeros(3)}, lambda: {name: pd.DataFrame() for name in bucket.TABLES}
        with pytest.raises(RunError, match=r"taken over by|another run"):
            first.save(batch, arrays, tables, cells={"0": "x"}, phase=0, step=1, failures=[])
    assert there == expected
    remaining = {name for name in sent(server, place) if name.startswith("checkpoints/")}
    assert remaining == {name for name in there if name.startswith("checkpoints/")}
    elsewhere()
    assert verify(results_folder(place).fetch(*WHOLE)) == []


def test_damaged_checkpoint_is_reported_by_address(go, study, place, elsewhere, server):
    go(place, study())
    name = next(x for x in sent(server, place) if x.startswith("checkpoints/") and x.endswith("_METADATA"))
    server.put(str(place).split("/")[1], f"results/small/{name}", b"{}")
    elsewhere()
    with pytest.raises(InputError) as caught:
        ja.load(place).params()
    address = f"s3://{str(place)[4:]}"
    assert f"{address}/{name}: damaged" in str(caught.value)
    assert f"delete {address}/parts/" in str(caught.value)
    assert os.environ["JAXATTN_CACHE"] not in str(caught.value)


@pytest.mark.parametrize("key", ["a/../b", "a//b", "parts/..", "figures/\x1b[2J"])
def test_object_key_that_is_not_a_path_raises(go, study, place, elsewhere, server, key):
    go(place, study())
    server.put(str(place).split("/")[1], f"results/small/{key}", b"x")
    elsewhere()
    with pytest.raises(
        InputError, match=r"the key 'results/small/.*' is not a valid path; delete that object"
    ) as caught:
        ja.load(place)
    assert repr(key)[1:-1] in str(caught.value)


def test_object_keys_unsupported_by_the_file_system_are_ignored(go, study, place, elsewhere, server):
    go(place, study())
    for key in (f"figures/{'x' * 300}", f"parts/{'x' * 300}.json", "figures/", "x" * 500, "figures/a/b"):
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
    go, study, place, elsewhere, server, fault, words, impatient, soon, two_batches, assert_same
):
    marks = itertools.count()

    def end(method, path):
        if method == "PUT" and bucket._is_record(path.partition("small/")[2]) and next(marks):
            server.fault = lambda method, path: fault
            return fault
        return ""

    server.fault = end
    with pytest.raises(RunError, match=words) as raised:
        go(place, study(chunk=1))
    assert "run the same command again to resume" in str(raised.value)
    server.fault = lambda method, path: ""
    outcome, _ = go(place, study(chunk=1))
    assert_same(outcome.directory, two_batches)


@pytest.mark.parametrize(("fault", "words"), [("denied", "access denied"), ("expired", "have expired")])
def test_bucket_failure_at_the_start_raises_a_one_line_error(study, place, elsewhere, server, fault, words):
    server.fault = lambda method, path: fault
    with pytest.raises(InputError, match=words):
        study().run(place, quiet=True)
    with pytest.raises(InputError, match=words):
        ja.load(place)


def test_invalid_addresses_raise(study, place, elsewhere, server, monkeypatch, impatient):
    run = study().run
    with pytest.raises(InputError, match=r"s3://nosuch/x: cannot be read: no such bucket; create it"):
        run("s3://nosuch/x", quiet=True)
    with pytest.raises(InputError, match="not the URL of a bucket folder; use s3://BUCKET/NAME"):
        run("s3://bucket", quiet=True)
    with pytest.raises(InputError, match="not the URL of a bucket folder"):
        run("s3://bucket/a/../b", quiet=True)
    with pytest.raises(InputError, match=r"s3://.*: no manifest.json, so not a results folder"):
        ja.load(place)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InputError, match=r"obstore is not installed; run pip .* 'jaxattn\[cloud\]'"):
        run(place, quiet=True)


def test_missing_credentials_raise(study, place, elsewhere, monkeypatch, tmp_path, impatient):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    with pytest.raises(InputError, match=r"s3://.*: no credentials; set AWS_ACCESS_KEY_ID"):
        study().run(place, quiet=True)


def test_bucket_prefix_with_unrelated_objects_raises(study, place, elsewhere, server):
    other = objects.Objects(place)
    other.commit("thesis.tex", b"x")
    with pytest.raises(InputError, match="neither empty nor a results folder; choose another folder"):
        study().run(place, quiet=True)
    assert sent(server, place).keys() == {"thesis.tex"}


def test_bucket_folder_with_a_different_config_raises(go, study, place, elsewhere, server):
    go(place, study())
    before = sent(server, place)
    elsewhere()
    with pytest.raises(
        InputError, match=r"s3://bucket.*: contains results of a different config \(model.dim"
    ):
        study(model={"kind": "one_layer", "dim": 8}).run(place, quiet=True)
    after = sent(server, place)
    assert {**before, lock.OBJECT: b""} == {**after, lock.OBJECT: b""}


def test_failed_start_leaves_no_objects(study, place, elsewhere, server):
    with pytest.raises((InputError, RunError)):
        study(data={"kind": "texts", "path": "nosuch"}).run(place, quiet=True)
    assert sent(server, place).keys() <= {lock.OBJECT}


def test_shards_in_a_bucket_can_be_combined(study, place, elsewhere, soon, go, server, two_batches):
    wanted, lines = study(chunk=1), []
    with pytest.raises(RunError, match=r"s3://.*/shard-1-of-2: not finished, and no process has"):
        distributed.wait(wanted, place, 2, 0.3, lines.append)
    for number in (1, 2):
        go(distributed.shard_folder(place, (number, 2)), wanted, shard=(number, 2))
        elsewhere()
    folders = distributed.wait(wanted, place, 2, 5.0, lines.append)
    assert read_folders((place,))[0] == folders
    records = pd.concat([ja.load(folder).records for folder in folders], ignore_index=True)
    pd.testing.assert_frame_equal(records, ja.load(two_batches).records)
    shutil.rmtree(copies.local_path(folders[0]))
