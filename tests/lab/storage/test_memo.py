"""Results folders: batches are written once, resumed, taken over, set aside and deleted."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import msgspec
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.storage import batch_record, checkpoints, memo, study_file
from jaxattn.lab.storage.batch_record import FORMAT, BatchCell, BatchRecord, Device, Origin
from jaxattn.lab.storage.memo import Memo, writer
from jaxattn.lab.storage.workplace import Workplace

ORIGIN = Origin(
    package={},
    computing="0",
    code={},
    versions={},
    device=Device(),
    pinned={},
    xla_flags="",
    width=2,
    started="2025-01-01T00:00:00Z",
    command="test",
)
KEY = "1" * 32


def record_of(seeds=(0, 1), key=KEY):
    return BatchRecord((BatchCell(0, key, key),), tuple((0, seed) for seed in seeds), ORIGIN)


def tables_of(seeds=(0, 1), value=0.5):
    table = pd.DataFrame({"cell": 0, "seed": list(seeds), "phase": "query", "step": 1, "metric": "loss"})
    return {"records": table.assign(value=value), "tokens": pd.DataFrame()}


def arrays_of(value=0.5, seeds=(0, 1)):
    return {"p": np.full((len(seeds), 3), value)}


@pytest.fixture
def folder(tmp_path):
    """Return a results folder, with a list of its warnings."""
    warnings = []
    made = Memo(tmp_path / "folder", warnings.append)
    study = {
        "format": FORMAT,
        "name": "x",
        "command": "test",
        "config": {"phases": [{"name": "query"}]},
        "cells": [{"cell": 0, "settings": {}, "key": KEY}],
        "seeds": [0, 1],
    }
    made.write_study(study)
    made.warnings = warnings
    return made


def work(folder, seeds=(0, 1), key=KEY):
    place = Workplace(folder, record_of(seeds, key))
    place.claim()
    return place


def save(place, value=0.5, **progress):
    seeds = [seed for _, seed in place.description.runs]
    place.save(arrays_of(value, seeds), lambda: tables_of(seeds, value), **{"phase": 0, "step": 1} | progress)


def finish(folder, seeds=(0, 1), key=KEY, value=0.5):
    place = work(folder, seeds, key)
    save(place, value, finished=True)
    return place.final


def names(folder):
    return sorted(path.name for path in (folder.directory / "runs").iterdir())


@pytest.fixture(scope="module")
def dead():
    """Return the number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def given_to(path, process, host=memo._HOST, token="0" * 8):
    """Rename a partial folder as if another process had written it."""
    return path.rename(path.with_name(f"{path.name.partition('.')[0]}.partial-{host}-{process}-{token}"))


def age(path, seconds):
    for each in (*path.iterdir(), path):
        os.utime(each, (time.time() - seconds,) * 2)


# A folder as a whole.


@pytest.mark.parametrize(
    "content", [[], [".DS_Store", "._x", ".nfs01"], ["study.json", "x.txt"], ["runs", "x"]]
)
def test_empty_folders_and_results_folders_are_accepted(tmp_path, content):
    Memo(tmp_path / "none").check()
    assert not (tmp_path / "none").exists()
    for name in content:
        (tmp_path / name).write_text("") if name != "runs" else (tmp_path / name).mkdir()
    Memo(tmp_path).check()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(content)


def test_folders_of_something_else_are_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(
        ja.InputError, match=rf"{tmp_path}: neither empty nor a results folder; choose another"
    ):
        Memo(tmp_path).check()
    with pytest.raises(ja.InputError, match=r"thesis.txt: is a file, not a folder"):
        Memo(tmp_path / "thesis.txt").check()


@pytest.mark.parametrize("place", ["runs", "study.json", "figures", "runs/x"])
def test_links_out_of_the_folder_are_refused(folder, tmp_path, place):
    path = folder.directory / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    (tmp_path / "out").mkdir()
    path.symlink_to(tmp_path / "out")
    with pytest.raises(ja.InputError, match=rf"{place}: a link that leads out of .*; remove the link"):
        folder.check()


def test_another_study_leaves_the_batches(folder):
    final = finish(folder)
    before = (final / "run.json").read_bytes()
    found = study_file.read_study(folder.directory)
    folder.write_study(found | {"seeds": [7]})
    assert study_file.read_study(folder.directory)["seeds"] == [7]
    assert (final / "run.json").read_bytes() == before
    assert names(folder) == [final.name]


# Finished batches.


def test_finished_batches_are_found_by_name_and_by_run(folder):
    paths = [finish(folder, (0, 1)), finish(folder, (2,)), finish(folder, (0,), "2" * 32)]
    for name in (".DS_Store", ".nfs0012", "x", "a" * 31, "A" * 32):
        (folder.directory / "runs" / name).write_text("")
    work(folder, (9,))
    damaged = []
    found = memo.finished(folder.directory, damaged.append)
    assert list(found) == sorted(path.name for path in paths)
    assert all(record.finished and record.key == name for name, record in found.items())
    assert folder.finished() == found
    for wanted, expected in (
        ([(KEY, 1), ("3" * 32, 0)], [paths[0]]),
        ([(KEY, 2), (KEY, 0)], paths[:2]),
        ([("2" * 32, 0)], paths[2:]),
        ([("2" * 32, 1)], []),
    ):
        some = memo.finished(folder.directory, damaged.append, set(wanted))
        assert sorted(some) == sorted(path.name for path in expected)
    assert (damaged, folder.warnings) == ([], [])
    assert memo.finished(folder.directory / "none", damaged.append) == {}


def test_batch_without_the_finished_record_of_its_runs_is_damaged(folder):
    one, two, three = finish(folder, (0,)), finish(folder, (1,)), finish(folder, (2,))
    record = batch_record.read_record(one, folder.directory)
    unfinished = msgspec.structs.replace(record, finished=False, saved=1)
    batch_record.write_record(one, unfinished, folder.directory)
    (two / "run.json").unlink()
    three.rename(three.with_name(KEY))
    damaged = []
    assert memo.finished(folder.directory, damaged.append) == {}
    said = sorted(str(error).partition(": ")[2] for error in damaged)
    assert said == ["damaged (it is not finished)", "is the record of another batch", "missing"]
    assert folder.finished() == {}
    assert len(folder.warnings) == 3
    assert all(
        line.endswith("; its runs are computed again where they are wanted") for line in folder.warnings
    )
    folder.set_aside_damaged()
    assert [name.partition(".damaged-")[0] for name in names(folder)] == sorted([one.name, two.name, KEY])
    folder.warnings.clear()
    assert folder.finished() == {}
    assert folder.warnings == []


@pytest.mark.parametrize(
    "name", ["records.parquet", "tokens.parquet", "checkpoint/_METADATA", "checkpoint/x"]
)
def test_damaged_files_of_a_batch_are_reported_once_and_set_aside(folder, name):
    final, other = finish(folder, (0,)), finish(folder, (1,))
    (final / name).write_bytes(b"x")
    found = folder.finished()
    assert [folder.is_intact(each, found[each]) for each in (final.name, final.name)] == [False, False]
    assert folder.is_intact(other.name, found[other.name])
    (line,) = folder.warnings
    assert line.startswith(f"{final / name}: damaged (")
    folder.set_aside_damaged()
    assert other.exists()
    assert not final.exists()
    assert len(names(folder)) == 2


def test_damaged_batch_that_another_process_has_replaced_is_kept(folder, tmp_path):
    final = finish(folder)
    shutil.copytree(final, tmp_path / "good")
    record = folder.finished()[final.name]
    (final / "records.parquet").write_bytes(b"x")
    assert not folder.is_intact(final.name, record)
    shutil.rmtree(final)
    shutil.copytree(tmp_path / "good", final)
    folder.set_aside_damaged()
    assert names(folder) == [final.name]


def test_foreign_files_in_a_checkpoint_are_ignored(folder):
    final = finish(folder)
    for place in (final, final / "checkpoint"):
        for name in (".DS_Store", ".nfs0012", "Thumbs.db"):
            (place / name).write_bytes(b"x")
    record = folder.finished()[final.name]
    assert folder.is_intact(final.name, record)
    restored = checkpoints.restore(final / "checkpoint", record.checkpoint, folder.directory)
    np.testing.assert_array_equal(restored["p"], arrays_of()["p"])


# Partial batches, and whether a process computes them.


def test_partial_batches_are_listed_with_their_writers(folder, dead):
    one = work(folder, (0,))
    two = given_to(work(folder, (1,)).path, dead)
    finish(folder, (2,))
    found = {each.path: each for each in memo.partials(folder.directory)}
    assert found.keys() == {one.path, two}
    assert found[one.path].writer == writer()
    assert found[one.path].record == one.description
    assert (found[one.path].is_running, found[two].is_running) == (True, False)
    (only,) = memo.partials(folder.directory, one.description.key)
    assert only.path == one.path
    (one.path / "run.json").write_bytes(b"{")
    damaged = []
    assert [each.path for each in memo.partials(folder.directory, damaged=damaged.append)] == [two]
    assert [str(error).partition(": ")[0] for error in damaged] == [f"{one.path}/run.json"]
    assert memo.partials(folder.directory, "2" * 32, damaged.append) == []
    assert len(damaged) == 1


def test_name_of_this_process_is_that_of_a_writer():
    assert memo._WRITER.fullmatch(writer())
    assert f"-{os.getpid()}-" in writer()


@pytest.mark.parametrize(
    ("host", "alive", "silent", "running"),
    [
        (memo._HOST, True, 0, True),
        (memo._HOST, True, memo.HUNG_S - 60, True),
        (memo._HOST, True, memo.HUNG_S + 60, False),
        (memo._HOST, True, -memo.HUNG_S - 60, False),
        (memo._HOST, False, 0, False),
        # It is not known whether a process on another host exists.
        ("elsewhere", False, 0, True),
        ("elsewhere", False, memo.GONE_S - 60, True),
        ("elsewhere", True, memo.GONE_S + 60, False),
    ],
)
def test_process_counts_as_killed_if_it_does_not_exist_or_is_silent(
    folder, dead, host, alive, silent, running
):
    path = given_to(work(folder).path, os.getppid() if alive else dead, host)
    age(path, silent)
    (one,) = memo.partials(folder.directory)
    assert one.is_running == running
    # A process that has logged something recently is not silent.
    (path / "metrics.jsonl").write_text("")
    assert one.is_running == (silent >= 0 and (alive or host != memo._HOST))


def test_an_earlier_process_with_the_number_of_this_one_has_ended(folder):
    """As in a container that is started again, where every process has the number 1."""
    path = work(folder).path
    (one,) = memo.partials(folder.directory)
    assert one.is_running
    name = f"{path.name.partition('.')[0]}.partial-{memo._HOST}-{os.getpid()}-ffffffff"
    path.rename(path.with_name(name))
    (one,) = memo.partials(folder.directory)
    assert not one.is_running


@pytest.mark.parametrize("name", ["x", "host-1", "host-x-00000000", "ho st-1-00000000", f"{memo._HOST}-1-0"])
def test_partial_folder_with_a_strange_name_counts_as_that_of_another_host(folder, name):
    path = work(folder).path
    moved = path.rename(path.with_name(f"{path.name.partition('.')[0]}.partial-{name}"))
    (one,) = memo.partials(folder.directory)
    assert one.is_running
    age(moved, memo.GONE_S + 60)
    assert not one.is_running


def test_process_that_leaves_a_batch_does_not_run(folder):
    place = work(folder)
    place.leave()
    (one,) = memo.partials(folder.directory)
    assert (one.is_running, one.error) == (False, "")
    place.leave("out of luck")
    assert (one.is_running, one.error) == (False, "out of luck")
    place.claim()
    assert (one.is_running, one.error) == (True, "")
    for content in ("{", "[]", '{"x": 1}', "[" * 10**5):
        (place.path / memo.ERROR_FILE).write_text(content)
        assert (one.is_running, one.error) == (False, "")
    shutil.rmtree(place.path)
    place.leave("nothing is written any more")
    assert not place.path.exists()


# The life of a batch.


def test_saved_states_replace_each_other_and_are_resumed(folder):
    place = work(folder)
    for number, value in ((1, 0.25), (2, 0.75)):
        save(place, value, step=number, wall_time_s=1.5)
        assert sorted(path.name for path in place.path.iterdir()) == [
            f"records-{number}.parquet",
            "run.json",
            f"state-{number}",
            f"tokens-{number}.parquet",
        ]
    again = work(folder)
    record, tables = again.resume()
    assert (record.step, record.wall_time_s, record.saved, record.finished) == (2, 1.5, 2, False)
    pd.testing.assert_frame_equal(tables["records"], tables_of(value=0.75)["records"])
    np.testing.assert_array_equal(again.restore(record, arrays_of())["p"], arrays_of(0.75)["p"])
    save(again, 1.0, finished=True)
    assert names(folder) == [record.key]
    assert sorted(path.name for path in again.final.iterdir()) == [
        "checkpoint",
        "records.parquet",
        "run.json",
        "tokens.parquet",
    ]
    finished = folder.finished()[record.key]
    assert finished.runs == record_of().runs
    assert finished.origin == ORIGIN
    assert folder.is_intact(record.key, finished)


def test_a_new_batch_has_no_state(folder):
    record, tables = work(folder).resume()
    assert record is None
    assert {name: table.empty for name, table in tables.items()} == {"records": True, "tokens": True}


def test_process_killed_while_saving_leaves_the_earlier_state(folder, monkeypatch):
    place = work(folder)
    save(place, 0.25)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batch_record, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            save(place, 0.75, step=2)
    again = Workplace(folder, record_of())
    record, _ = again.resume()
    assert record.step == 1
    np.testing.assert_array_equal(again.restore(record, arrays_of())["p"], arrays_of(0.25)["p"])
    save(again, 0.9, step=3)
    assert len(list(place.path.iterdir())) == 4


def test_state_of_a_killed_process_is_taken_over(folder, dead):
    place = work(folder)
    save(place, 0.25, step=7)
    path = given_to(place.path, dead)
    again = work(folder)
    assert [each.path for each in again.others()] == [path]
    record, _ = again.resume()
    assert record.step == 7
    assert not path.exists()
    assert names(folder) == [again.path.name]
    assert again.others() == []
    np.testing.assert_array_equal(again.restore(record, arrays_of())["p"], arrays_of(0.25)["p"])


def test_the_newest_intact_state_is_resumed(folder, dead):
    for number, (phase, step) in enumerate([(0, 9), (1, 3), (1, 2)]):
        place = work(folder)
        save(place, phase=phase, step=step)
        given_to(place.path, dead, token=str(number) * 8)
    again = work(folder)
    newest = next(each for each in again.others() if each.record.step == 3)
    (newest.path / "records-1.parquet").write_bytes(b"x")
    record, _ = again.resume()
    assert (record.phase, record.step) == (1, 2)
    (line,) = folder.warnings
    assert line.startswith(f"{newest.path}/records-1.parquet: damaged (")
    assert line.endswith("; starting from an earlier state")


def test_state_of_a_running_process_is_read_but_not_moved(folder):
    place = work(folder)
    save(place, 0.25, step=7)
    path = given_to(place.path, os.getppid())
    again = work(folder)
    record, _ = again.resume()
    assert record.step == 7
    assert path.exists()
    np.testing.assert_array_equal(again.restore(record, arrays_of())["p"], arrays_of(0.25)["p"])
    save(again, step=8)
    assert {each.record.step for each in memo.partials(folder.directory)} == {7, 8}


@pytest.mark.parametrize("name", ["run.json", "records-1.parquet", "tokens-1.parquet"])
def test_damaged_state_is_reported_and_forgotten(folder, name):
    place = work(folder)
    save(place)
    (place.path / name).write_bytes(b"x")
    again = work(folder)
    assert again.resume()[0] is None
    assert [line.partition(": ")[0] for line in folder.warnings] == [f"{place.path}/{name}"]
    assert batch_record.read_record(place.path, folder.directory) == record_of()
    assert again.resume()[0] is None
    assert len(folder.warnings) == 1
    save(again, finished=True)
    assert names(folder) == [record_of().key]


def test_damaged_arrays_are_reported_and_forgotten(folder):
    place = work(folder)
    save(place)
    shutil.rmtree(place.path / "state-1")
    again = work(folder)
    record, _ = again.resume()
    assert again.restore(record, arrays_of()) is None
    assert [f"{place.path}/state-1" in line for line in folder.warnings] == [True]
    assert again.resume()[0] is None
    assert len(folder.warnings) == 1
    save(again, step=2)
    assert again.resume()[0].step == 2


def test_damaged_arrays_of_another_batch_are_left_there(folder):
    final = finish(folder, (5,))
    source = folder.finished()[final.name]
    again = work(folder)
    tables = again.tables_of(final.name, source)
    assert tables["records"]["seed"].tolist() == [5]
    found = again.restore(source, arrays_of(seeds=(5,)), final.name)
    assert found["p"].shape == (1, 3)
    (final / "checkpoint" / "_METADATA").write_bytes(b"x")
    assert again.restore(source, arrays_of(seeds=(5,)), final.name) is None
    assert len(folder.warnings) == 1
    assert final.exists()
    assert again.path.exists()


def test_finished_state_of_a_killed_process_is_published(folder, dead, monkeypatch):
    place = work(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Workplace, "publish", lambda self: None)
        save(place, finished=True)
    given_to(place.path, dead)
    again = work(folder)
    record, _ = again.resume()
    assert record.finished
    again.publish()
    assert names(folder) == [record.key]
    assert folder.finished()[record.key] == record


def test_second_result_of_a_batch_is_discarded(folder, dead):
    final = finish(folder, value=0.25)
    assert Workplace(folder, record_of()).is_superseded()
    before = {path: path.read_bytes() for path in final.rglob("*") if path.is_file()}
    place = work(folder)
    given_to(work(folder).path, dead, token="1" * 8)
    place.claim()
    save(place, 0.75, finished=True)
    assert names(folder) == [final.name]
    assert {path: path.read_bytes() for path in final.rglob("*") if path.is_file()} == before


def test_damaged_result_of_a_batch_is_replaced(folder):
    final = finish(folder, value=0.25)
    (final / "records.parquet").write_bytes(b"x")
    assert not Workplace(folder, record_of()).is_superseded()
    save(work(folder), 0.75, finished=True)
    assert [name.partition(".damaged")[0] for name in names(folder)] == [final.name] * 2
    assert pd.read_parquet(final / "records.parquet")["value"].tolist() == [0.75] * 2


def test_partial_batch_of_a_running_process_is_kept_when_another_finishes(folder):
    path = given_to(work(folder).path, os.getppid())
    save(work(folder), finished=True)
    assert names(folder) == sorted([record_of().key, path.name])
    (path / memo.ERROR_FILE).write_text("{}")
    folder.delete_abandoned({record_of().key: record_of()})
    assert names(folder) == [record_of().key]


@pytest.mark.parametrize(("seeds", "is_kept"), [((1,), False), ((0,), False), ((1, 2), True)])
def test_partial_batch_with_runs_of_another_finished_batch_is_deleted(folder, dead, seeds, is_kept):
    place = work(folder, seeds)
    save(place)
    path = given_to(place.path, dead)
    final = finish(folder)
    assert path.exists() == is_kept
    folder.delete_abandoned(folder.finished())
    assert names(folder) == sorted([final.name] + [path.name] * is_kept)


def test_log_of_a_batch_is_in_its_folder_and_never_recreates_it(folder):
    place = work(folder)
    place.log({"x": 1})
    assert json.loads((place.path / "metrics.jsonl").read_text())["x"] == 1
    save(place)
    place.log({"x": 2})
    save(place, finished=True)
    place.log({"x": 3})
    lines = (place.final / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["x"] for line in lines] == [1, 2]
    assert not place.path.exists()


def test_forgotten_batch_starts_again(folder):
    place = work(folder)
    save(place, step=5)
    place.forget()
    assert names(folder) == []
    place.claim()
    assert place.resume()[0] is None
    save(place, step=1)
    assert place.record.saved == 1


def test_deleted_folder_is_not_created_again(folder):
    place = work(folder)
    shutil.rmtree(folder.directory)
    with pytest.raises(ja.RunError, match=rf"{folder.directory}: was deleted; run the same command again"):
        save(place)
    place.log({"x": 1})
    place.leave("gone")
    assert not folder.directory.exists()


# Batches that are not wanted.


def test_batches_without_a_wanted_run_are_listed_and_deleted(folder, dead):
    wanted, other, old = finish(folder), finish(folder, (5,)), finish(folder, (0,), "2" * 32)
    damaged = finish(folder, (6,))
    (damaged / "run.json").write_bytes(b"x")
    aside = finish(folder, (1,))
    (aside / "records.parquet").write_bytes(b"x")
    record = folder.finished()[aside.name]
    folder.is_intact(aside.name, record)
    folder.set_aside_damaged()
    running = work(folder, (7,))
    stopped = given_to(work(folder, (8,)).path, dead)
    needed = given_to(work(folder, (0, 9)).path, dead)
    for name in (".DS_Store", "notes.txt"):
        (folder.directory / "runs" / name).write_text("")
    found = dict(memo.unwanted(folder.directory))
    expected = {other.name, old.name, stopped.name}
    expected |= {name for name in names(folder) if ".damaged-" in name}
    assert found.keys() == expected
    assert len(expected) == 5
    assert found[other.name].runs == ((0, 5),)
    for name in found:
        memo.delete_batch(folder.directory, name)
    assert names(folder) == sorted([".DS_Store", "notes.txt", wanted.name, running.path.name, needed.name])


def test_batch_outside_the_folder_is_not_deleted(folder, tmp_path):
    shutil.copytree(finish(folder), tmp_path / "out")
    (folder.directory / "runs" / KEY).symlink_to(tmp_path / "out")
    for name in (KEY, "../../out"):
        with pytest.raises(ja.InputError, match="leads out of"):
            memo.delete_batch(folder.directory, name)
    assert (tmp_path / "out" / "run.json").exists()


def test_names_of_hosts_are_valid_parts_of_file_names():
    assert re.fullmatch(r"[\w.]{1,60}", memo._HOST)


def test_damaged_arrays_of_a_running_process_are_ignored_and_kept(folder):
    place = work(folder)
    save(place)
    shutil.rmtree(place.path / "state-1")
    path = given_to(place.path, os.getppid())
    again = work(folder)
    record, _ = again.resume()
    assert again.restore(record, arrays_of()) is None
    assert (path / "records-1.parquet").exists()
    assert again.resume()[0] is None
    assert len(folder.warnings) == 1
