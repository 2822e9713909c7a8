"""Robustness of results folders: damage of any file, a full disk, deletion, a second process."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import programs, run, store
from jaxattn.lab.engine.monitor import Interrupted
from jaxattn.lab.engine.plan import plan_study
from jaxattn.lab.results import load
from jaxattn.lab.storage import batch_state, files, lock, manifest, run_log


@pytest.fixture
def copy(two_batches, tmp_path):
    return shutil.copytree(two_batches, tmp_path / "small", copy_function=shutil.copy2)


def flip(path):
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FIRST, SECOND = (f"cells-00000-00000-seeds-{seed:05d}-{seed:05d}" for seed in (0, 1))


@pytest.mark.parametrize(
    ("table", "damage"),
    [
        ("records", "truncated"),
        ("tokens", "flipped"),
        *(
            pytest.param(*case, marks=pytest.mark.more)
            for case in (
                ("tokens", "truncated"),
                ("records", "flipped"),
                ("tokens", "missing"),
                ("records", "missing"),
            )
        ),
    ],
)
def test_damaged_batch_is_moved_aside_and_recomputed(
    copy, two_batches, go, study, assert_same, table, damage
):
    (path,) = (copy / "parts").glob(f"{SECOND}.{table}.*.parquet")
    if damage == "flipped":
        flip(path)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    (other,) = (copy / "parts").glob(f"{FIRST}.{table}.*.parquet")
    before = other.stat().st_mtime_ns
    outcome, lines = go(copy, study(chunk=1))
    assert not outcome.already_finished
    (line,) = [line for line in lines if SECOND in line]
    assert line.startswith(f"{path}: ")
    aside = copy / "damaged" / SECOND
    assert f"moved to {aside}; computing {SECOND} again" in line
    assert (aside / path.name).exists() == (damage != "missing")
    assert other.stat().st_mtime_ns == before
    assert_same(copy, two_batches)


def test_damaged_commit_record_or_merged_table_is_rebuilt(copy, two_batches, go, study, assert_same):
    (copy / "parts" / f"{FIRST}.json").write_text("{")
    assert not go(copy, study(chunk=1))[0].already_finished
    assert_same(copy, two_batches)
    flip(copy / "records.parquet")
    outcome, lines = go(copy, study(chunk=1))
    assert not outcome.already_finished
    assert any("records.parquet: damaged" in line for line in lines)
    assert_same(copy, two_batches)
    assert go(copy, study(chunk=1))[0].already_finished


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, stop, study):
    """Return a run that was stopped in its second phase, which tests must not change."""
    return stop(tmp_path_factory.mktemp("stopped") / "small", study(), 5)


@pytest.mark.parametrize(
    "victim",
    ["checkpoint", *(pytest.param(x, marks=pytest.mark.more) for x in ("records", "mark", "tokens"))],
)
def test_damaged_checkpoint_is_moved_aside_and_its_batch_restarts(
    stopped, small_run, tmp_path, go, study, assert_same, victim
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (batch,) = store.Store(folder).batches()
    if victim == "checkpoint":
        files = [path for path in (folder / "checkpoints" / batch).rglob("*") if path.is_file()]
        damaged = max(files, key=lambda path: path.stat().st_size)
    elif victim == "mark":
        damaged = batch_state.path(folder, batch)
    else:
        (damaged,) = (folder / "parts").glob(f"{batch}.{victim}.*.parquet")
    flip(damaged)
    _, lines = go(folder, study())
    assert any(line.startswith(f"{damaged}: damaged") and "moved to" in line for line in lines)
    assert list((folder / "damaged").iterdir())
    assert_same(folder, small_run)


def test_batch_killed_before_commit_resumes_from_its_last_checkpoint(
    tmp_path, monkeypatch, go, study, every_step, small_run, assert_same
):
    write = batch_state.write_state

    def killed(directory, batch, mark):
        if mark.finished:
            raise KeyboardInterrupt
        write(directory, batch, mark)

    with monkeypatch.context() as patch:
        patch.setattr(batch_state, "write_state", killed)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "small", study(), intervals=every_step)
    restored = []
    restore = store.Store.restore
    monkeypatch.setattr(store.Store, "restore", lambda *given: restored.append(given[1]) or restore(*given))
    _, lines = go(tmp_path / "small", study())
    assert len(restored) == 1
    assert not any("anew" in line for line in lines)
    assert_same(tmp_path / "small", small_run)
    (batch,) = (tmp_path / "small" / "checkpoints").iterdir()
    assert len(list(batch.iterdir())) == 1
    assert len(list((tmp_path / "small" / "parts").iterdir())) == 3


def test_folder_without_results_accepts_a_different_config(tmp_path, monkeypatch, go, study, tables):
    data = tables()["data"]

    def stopped(*_):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(run, "run_batch", stopped)
        with pytest.raises(Interrupted):
            go(tmp_path / "small", study(data=data | {"relevant": 4}))
    assert (tmp_path / "small" / "manifest.json").exists()
    assert not go(tmp_path / "small", study())[0].already_finished
    with pytest.raises(InputError, match="contains results of a different config"):
        go(tmp_path / "small", study(data=data | {"relevant": 6}))


def test_lost_manifest_is_rebuilt_from_the_batches(copy, two_batches, go, study, assert_same):
    path = copy / "manifest.json"
    before = manifest.read_manifest(two_batches)
    parts = {part: part.stat().st_mtime_ns for part in (copy / "parts").iterdir()}
    for damage in (flip, Path.unlink):
        damage(path)
        outcome, (line,) = go(copy, study())
        assert line.startswith(f"{path}: ")
        assert line.endswith("; rebuilding the manifest from the batches in the folder")
        assert outcome.batches == 2
        again = manifest.read_manifest(copy)
        kept = ("cells", "seeds", "batches", "widths", "config_hash", "failures", "sha256", "status")
        assert {key: again[key] for key in kept} == {key: before[key] for key in kept}
        assert_same(copy, two_batches)
    assert parts == {part: part.stat().st_mtime_ns for part in (copy / "parts").iterdir()}


def test_lost_manifest_does_not_allow_a_different_config(copy, go, study, tables):
    data = tables()["data"]
    (copy / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"contains results of a different config \(cell 0\)"):
        go(copy, study(data=data | {"relevant": 4}))
    with pytest.raises(InputError, match="contains results of a different config"):
        plan_study(study(data=data | {"relevant": 4}), copy, quick=True)
    with pytest.raises(InputError, match=r"manifest\.json: missing; run the same sweep again in this"):
        load(copy)


def test_folder_with_batches_of_a_different_config_raises(copy, go, study):
    for path in (copy / "parts").glob("*.json"):
        mark = json.loads(path.read_bytes())
        mark["origin"]["cells"] = {"0": "0123456789abcdef"}
        path.write_bytes(files.sealed({key: x for key, x in mark.items() if key != files.SEAL}))
    with pytest.raises(InputError, match=r"contains results of a different config \(cell 0\)"):
        go(copy, study(chunk=1))


def test_folder_written_by_an_earlier_version_raises(copy, go, study):
    manifest.write_manifest(copy, manifest.read_manifest(copy) | {"format": 4})
    with pytest.raises(InputError, match="written by another version of jaxattn"):
        go(copy, study(chunk=1))


def test_failed_start_leaves_no_folder(tmp_path, go, study, tables, monkeypatch):
    wanted = study(data=tables()["data"])
    folder = tmp_path / "a" / "b" / "c"
    for stage in ("rehearse_groups", "run_batch"):
        with monkeypatch.context() as patch:

            def fail(*_, **__):
                raise InputError("data: nothing there")

            patch.setattr(run, stage, fail)
            with pytest.raises(InputError, match="nothing there"):
                go(folder, wanted)
        assert list(tmp_path.iterdir()) == []
        # An existing empty folder of the user is kept, and stays empty.
        folder.parent.mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setattr(run, stage, fail)
            with pytest.raises(InputError, match="nothing there"):
                go(folder.parent, wanted)
        assert list(folder.parent.iterdir()) == []
        shutil.rmtree(tmp_path / "a")


def test_deleting_the_folder_during_a_run_raises_a_one_line_error(tmp_path, go, study, monkeypatch):
    folder = tmp_path / "parent" / "run"
    load_corpora = programs.Programs.draw

    def delete(*given):
        shutil.rmtree(tmp_path / "parent")
        return load_corpora(*given)

    monkeypatch.setattr(programs.Programs, "draw", delete)
    with pytest.raises(RunError, match=f"{folder}: was deleted; run the same command again"):
        go(folder, study())
    assert not folder.exists()


def test_results_path_that_is_a_file_raises(tmp_path, study, go):
    (tmp_path / "x.py").write_text("")
    for place in (tmp_path / "x.py", tmp_path / "x.py" / "run"):
        with pytest.raises(InputError, match=r"x.py: is a file, not a folder; choose another results folder"):
            go(place, study())


@pytest.mark.skipif(sys.platform != "linux", reason="asks for /proc")
def test_folder_that_cannot_be_created_raises(study, go):
    with pytest.raises(RunError, match=f"/proc/run: cannot be written: {os.strerror(errno.ENOENT)}"):
        go(Path("/proc/run"), study())


@pytest.mark.parametrize(
    ("free", "said"), [(0, "the disk has no free inodes"), (7, r"the disk is full \(3 MiB left\)")]
)
def test_disk_without_free_inodes_is_reported(tmp_path, monkeypatch, free, said):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    state = os.statvfs(tmp_path)
    sizes = {"f_bavail": 3, "f_frsize": 2**20, "f_files": 9, "f_favail": free}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**sizes))
    monkeypatch.setattr(os, "fsync", full)
    assert state.f_frsize
    with pytest.raises(RunError, match=f"manifest.json: cannot be written: .*{said}"):
        store.Store(tmp_path).write_manifest({})


@pytest.mark.parametrize("victim", ["manifest.json", "records.parquet", "parts/mark", "parts/table"])
def test_unreadable_files_are_not_treated_as_damaged(copy, go, study, monkeypatch, victim):
    """Missing permission or too few file handles is one line, and nothing is moved or computed again."""
    name = victim.replace("parts/mark", f"{FIRST}.json").replace("parts/table", f"{FIRST}.records")
    original = open

    def refuse(path, *options, **named):
        if name in str(path):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return original(path, *options, **named)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match=f"{name}.*: cannot be read: Too many open files; fix this"):
        go(copy, study(chunk=1))
    assert not (copy / "damaged").exists()


@pytest.mark.parametrize("victim", ["records.parquet", f"parts/{FIRST}.json", "metrics.jsonl"])
def test_folder_in_place_of_a_file_raises_a_one_line_error(copy, go, study, victim):
    (copy / victim).unlink()
    (copy / victim).mkdir()
    named = rf"{copy / victim}: (cannot be written: Is a directory|is a folder, not a file)"
    asked = {"records.parquet": load, "metrics.jsonl": lambda path: go(path, study(chunk=1, seeds=3))}
    with pytest.raises((InputError, RunError), match=named):
        asked.get(victim, run_status)(copy)


@pytest.mark.more
def test_second_process_is_rejected_because_of_the_lock(tmp_path, go, study):
    folder = store.Store(tmp_path / "small")
    code = (
        "import sys; from pathlib import Path; from jaxattn.lab.engine.store import Store\n"
        "with Store(Path(sys.argv[1])).locked():\n    print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "small")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        with pytest.raises(RunError, match=rf"small: in use by process {process.pid} on .*; wait"):
            go(tmp_path / "small", study())
        process.kill()
    # A lock is released when its holder ends.
    with folder.locked():
        pass
    assert not go(tmp_path / "small", study())[0].failures
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["status"] == "finished"


def test_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    notes = []
    folder = store.Store(tmp_path / "small", notes.append)
    with folder.locked():
        folder.log({"x": 1})
    assert notes == [
        f"{tmp_path / 'small'}: this file system has no locks (No locks available); "
        "do not start a second run in this folder"
    ]
    assert not lock.is_locked(folder.directory)


def test_nothing_outside_the_folder_is_changed(copy, go, study, tmp_path):
    """The folder has a link with the name of the lock file, and one to a folder of old checkpoints."""
    home = tmp_path / "home"
    shutil.copytree(copy / "checkpoints" / FIRST, home)
    (home / "letters").mkdir()
    (home / "letters" / "a").write_text("kept")
    places = (copy / ".lock", copy / "metrics.jsonl", copy / "checkpoints" / FIRST, copy / "damaged")
    for place in places:
        kept = place.rename(tmp_path / "kept") if place.exists() else None
        place.symlink_to(home if place.name in (FIRST, "damaged") else home / "letters" / "a")
        with pytest.raises(InputError, match=rf"{place.name}: a link that leads out of"):
            go(copy, study(chunk=1))
        place.unlink()
        if kept:
            kept.rename(place)
    assert (home / "letters" / "a").read_text() == "kept"
    assert go(copy, study(chunk=1))[0].already_finished


def test_lock_file_that_is_a_symlink_raises(tmp_path):
    (tmp_path / "victim").write_text("kept")
    (tmp_path / ".lock").symlink_to("victim")
    with pytest.raises(OSError, match="symbolic links"), lock.locked(tmp_path):
        pass
    assert not lock.is_locked(tmp_path)
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_hard_link_raises(copy, go, study, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (copy / name).unlink(missing_ok=True)
    os.link(victim, copy / name)
    with pytest.raises(InputError, match=rf"{name}: a hard link, which other folders may share; remove it"):
        go(copy, study(chunk=1, seeds=3))
    assert victim.read_text() == "kept"
    assert not lock.is_locked(copy)
    (copy / name).unlink()
    assert not go(copy, study(chunk=1, seeds=3))[0].failures
    assert victim.read_text() == "kept"


def test_temporary_files_of_killed_runs_are_removed(copy, go, study):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (copy / "figures").mkdir(exist_ok=True)
    remaining = [copy / name / f".manifest.json.{ended.pid}" for name in ("", "parts", "figures")]
    for path in remaining:
        path.write_text("{")
    assert go(copy, study(chunk=1))[0].already_finished
    assert not any(path.exists() for path in remaining)


def test_unknown_log_lines_are_ignored(copy):
    lines = map(json.loads, (copy / "metrics.jsonl").read_text().splitlines())
    *_, line = (line for line in lines if "doing" not in line)
    line.pop(files.SEAL)
    wrong = [
        {},
        line | {"batch": 3},
        line | {"failures": [3]},
        line | {"share": "x"},
        line | {"wall_time_s": -1},
    ]
    (copy / "metrics.jsonl").write_bytes(b"".join(map(files.sealed, [*wrong, line])))
    (read,) = run_log.latest(copy)
    assert read == {key: line[key] for key in read if key != "doing"} | {"doing": ""}
    assert read["losses"]
    assert "finished" in run_status(copy)[1]
