"""Results folders of runs: damage of any file, foreign files, a full disk, and other processes."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import missing, programs, queue
from jaxattn.lab.engine.monitor import RunMonitor
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import batch_record, checkpoints, files, memo, study_file
from jaxattn.lab.storage.memo import Memo
from jaxattn.lab.storage.workplace import Workplace


@pytest.fixture
def copy(two_batches, tmp_path):
    return shutil.copytree(two_batches, tmp_path / "small", copy_function=shutil.copy2)


@pytest.fixture
def damage(flip):
    """Return a function that damages a file or a checkpoint."""

    def change(path, how):
        if path.is_dir():
            path = max((x for x in path.rglob("*") if x.is_file()), key=lambda x: x.stat().st_size)
        if how == "flipped":
            flip(path)
        elif how == "truncated":
            path.write_bytes(path.read_bytes()[:-20])
        elif how == "emptied":
            path.write_bytes(b"")
        else:
            path.unlink()
        return path

    return change


FILES = ("records.parquet", "tokens.parquet", "run.json", "checkpoint")
WAYS = ("flipped", "truncated", "emptied", "missing")
USUAL = (("records.parquet", "flipped"), ("run.json", "flipped"), ("checkpoint", "missing"))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=[[pytest.mark.more], []][(name, how) in USUAL])
        for name in FILES
        for how in WAYS
    ],
)
def test_damaged_batch_is_set_aside_and_computed_again(
    copy, two_batches, go, study, assert_same, damage, counted, contents, listed, name, how
):
    first, second = listed(copy).finished
    path = damage(copy / "runs" / first / name, how)
    before = contents(copy / "runs" / second)
    outcome, lines = go(copy, study(chunk=1))
    assert outcome.batches == len(counted) == 1
    (line,) = lines
    assert line.startswith(f"{path}: ")
    assert line.endswith("; its runs are computed again where they are wanted")
    assert listed(copy).finished == [first, second]
    assert [each.partition(".damaged-")[0] for each in listed(copy).others] == [first]
    assert contents(copy / "runs" / second) == before
    assert_same(copy, two_batches)
    assert verify(copy) == []
    again, lines = go(copy, study(chunk=1))
    assert (again.already_finished, lines) == (True, [])


@pytest.mark.parametrize("name", ["records.parquet", pytest.param("run.json", marks=pytest.mark.more)])
def test_damaged_batch_can_be_computed_again_in_other_batches(
    small_run, two_batches, tmp_path, go, study, damage, listed, assert_same, name
):
    folder = shutil.copytree(small_run, tmp_path / "small")
    (batch,) = listed(folder).finished
    damage(folder / "runs" / batch / name, "flipped")
    with pytest.raises(ja.InputError, match=rf"{batch}/{name}: damaged .*; run the same sweep again into"):
        ja.load(folder)
    assert len(verify(folder)) >= 1
    _, lines = go(folder, study(chunk=1))
    assert [batch in line for line in lines] == [True]
    assert_same(folder, two_batches)
    assert verify(folder) == []
    assert go(folder, study(chunk=1))[1] == []


def test_damaged_batch_that_is_not_wanted_is_left_alone(copy, go, study, damage, listed, contents, read):
    """Damaged tables of a batch are noticed only if its runs are wanted."""
    (record,) = [name for name in listed(copy).finished if _seeds(copy, name) == [1]]
    damage(copy / "runs" / record / "records.parquet", "flipped")
    before = contents(copy / "runs")
    outcome, lines = go(copy, study(seeds=1, chunk=1))
    assert (outcome.already_finished, lines) == (True, [])
    assert contents(copy / "runs") == before
    assert set(read(copy)[0]["seed"]) == {0}


def _seeds(folder, name):
    record = batch_record.read_record(folder / "runs" / name, folder)
    return [seed for _, seed in record.runs]


@pytest.mark.more
def test_damaged_large_array_is_computed_again_after_the_remedy(
    copy, two_batches, go, study, damage, assert_same, monkeypatch
):
    # Large files are those of any size here, so that runs do not read them.
    monkeypatch.setattr(checkpoints, "SMALL", 0)
    first = copy / "runs" / min(path.name for path in (copy / "runs").iterdir())
    record = batch_record.read_record(first, copy)
    listed = {name: (size, None) for name, (size, _) in record.checkpoint.files.items()}
    checkpoint = msgspec.structs.replace(record.checkpoint, files=listed)
    batch_record.write_record(first, msgspec.structs.replace(record, checkpoint=checkpoint), copy)
    damage(first / "checkpoint", "flipped")
    assert go(copy, study(chunk=1))[0].already_finished
    (line,) = verify(copy)
    assert f"; delete {first / 'checkpoint'}; run the same sweep again" in line
    shutil.rmtree(first / "checkpoint")
    assert go(copy, study(chunk=1))[0].batches == 1
    assert_same(copy, two_batches)


@pytest.mark.more
def test_renamed_and_swapped_batches_are_detected(copy, two_batches, go, study, listed, assert_same, counted):
    first, second = listed(copy).finished
    runs = copy / "runs"
    (runs / first).rename(runs / "aside")
    (runs / second).rename(runs / first)
    (runs / "aside").rename(runs / second)
    with pytest.raises(ja.InputError, match=r"run\.json: is the record of another batch; run the same sweep"):
        ja.load(copy)
    _, lines = go(copy, study(chunk=1))
    assert sorted(line.partition(": ")[0] for line in lines) == [
        f"{runs / name}/run.json" for name in (first, second)
    ]
    assert all("is the record of another batch" in line for line in lines)
    assert len(counted) == 2
    assert_same(copy, two_batches)


@pytest.mark.parametrize("name", ["records.parquet", "checkpoint", "run.json"])
@pytest.mark.more
def test_swapped_files_of_batches_are_detected(
    copy, two_batches, go, study, listed, assert_same, counted, name
):
    one, other = (copy / "runs" / batch / name for batch in listed(copy).finished)
    one.rename(copy / "aside")
    other.rename(one)
    (copy / "aside").rename(other)
    _, lines = go(copy, study(chunk=1))
    assert len(lines) == len(counted) == 2
    assert_same(copy, two_batches)


def test_batch_of_another_version_is_ignored_and_kept(copy, two_batches, go, study, listed, assert_same):
    first = listed(copy).finished[0]
    path = copy / "runs" / first / "run.json"
    content = files.unsealed(json.loads(path.read_bytes()))
    path.write_bytes(files.sealed(content | {"format": batch_record.FORMAT - 1}))
    old = (copy / "runs" / first).rename(copy / "runs" / "0123456789abcdef0123456789abcdef")
    before = (old / "run.json").read_bytes()
    outcome, lines = go(copy, study(chunk=1))
    assert outcome.batches == 1
    assert lines == [f"{copy}: has 1 batch of another version of jaxattn, which this version does not use"]
    assert (old / "run.json").read_bytes() == before
    assert_same(copy, two_batches)
    assert verify(copy) == []


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, stop, study):
    """Return a run that was stopped in its second phase, which tests must not change."""
    return stop(tmp_path_factory.mktemp("stopped") / "small", study(), 5)


@pytest.mark.parametrize("name", ["state-1", "records-1.parquet", "tokens-1.parquet", "run.json"])
@pytest.mark.parametrize("how", ["flipped", pytest.param("missing", marks=pytest.mark.more)])
def test_damaged_partial_batch_is_started_again(
    stopped, small_run, tmp_path, go, study, assert_same, damage, counted, listed, name, how
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (batch,) = listed(folder).partial
    assert (folder / "runs" / batch / name).exists()
    path = damage(folder / "runs" / batch / name, how)
    _, lines = go(folder, study())
    # Without a record, it is a folder that a process has only just created.
    assert len(lines) == ((name, how) != ("run.json", "missing"))
    assert all(line.startswith(f"{path}: ") or "state-1: damaged" in line for line in lines)
    assert all(line.endswith("; starting from an earlier state") for line in lines)
    assert counted == [[[(0, 0), (0, 1)], 21]]
    assert [len(names) for names in listed(folder)] == [1, 0, 0]
    assert_same(folder, small_run)


@pytest.mark.parametrize("name", ["state-1", "records-1.parquet", "run.json"])
@pytest.mark.more
def test_damaged_partial_batch_of_a_killed_process_is_started_again(
    stopped, small_run, tmp_path, go, study, assert_same, damage, counted, listed, abandon, name
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (partial,) = abandon(folder)
    damage(partial / name, "flipped")
    _, lines = go(folder, study())
    assert len([line for line in lines if partial.name in line or batch_of(partial) in line]) == 1
    assert len(lines) == 1
    assert counted == [[[(0, 0), (0, 1)], 21]]
    assert [len(names) for names in listed(folder)] == [1, 0, 0]
    assert_same(folder, small_run)


def batch_of(partial):
    return partial.name.partition(".")[0]


def test_batch_killed_before_it_is_published_is_not_computed_again(
    tmp_path, monkeypatch, go, study, every_step, small_run, assert_same, counted, listed
):
    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Workplace, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "small", study(), intervals=every_step)
    assert [len(names) for names in listed(tmp_path / "small")] == [0, 1, 0]
    counted.clear()
    _, lines = go(tmp_path / "small", study())
    assert (counted, lines) == ([[[(0, 0), (0, 1)], 0]], [])
    assert [len(names) for names in listed(tmp_path / "small")] == [1, 0, 0]
    assert_same(tmp_path / "small", small_run)


def test_partial_batch_of_a_killed_process_is_taken_over(
    stopped, small_run, tmp_path, go, study, assert_same, counted, listed, abandon
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (partial,) = abandon(folder)
    assert not memo.partials(folder)[0].is_running
    go(folder, study())
    assert counted[0][1] < 21
    assert not partial.exists()
    assert [len(names) for names in listed(folder)] == [1, 0, 0]
    assert_same(folder, small_run)


def test_batch_of_a_running_process_is_postponed_and_not_computed_again(
    stopped, two_batches, tmp_path, go, study, assert_same, counted, listed, abandon, monkeypatch
):
    """Another process computes the first of two batches, and finishes it while this one waits."""
    wanted = study(chunk=1)
    folder = tmp_path / "small"
    Memo(folder).write_study(study_file.read_study(two_batches))
    first, second = (name for name in listed(two_batches).finished)
    theirs = first if _seeds(two_batches, first) == [0] else second
    shutil.copytree(two_batches / "runs" / theirs, folder / "runs" / f"{theirs}.partial-x-1-00000000")
    path = folder / "runs" / f"{theirs}.partial-x-1-00000000"
    record = batch_record.read_record(path, folder)
    unfinished = {"finished": False, "tables": {}, "checkpoint": None}
    batch_record.write_record(path, msgspec.structs.replace(record, **unfinished), folder)
    (partial,) = abandon(folder, os.getppid())
    assert memo.partials(folder)[0].is_running
    waits = []

    def wait(self, seconds):
        waits.append(seconds)
        if len(waits) == 2:
            # The other process finishes.
            batch_record.write_record(partial, record, folder)
            partial.rename(folder / "runs" / theirs)

    monkeypatch.setattr(RunMonitor, "wait", wait)
    outcome, lines = go(folder, wanted)
    assert waits == [queue.LOOK_S] * 2
    assert ([runs for runs, _ in counted], lines) == ([[(0, 1)]], [])
    assert outcome.batches == 2
    assert listed(folder).finished == [first, second]
    assert_same(folder, two_batches)


def test_batch_that_a_running_process_has_left_is_taken_over_at_once(
    tmp_path, stop, study, go, small_run, assert_same, abandon, monkeypatch
):
    """A notebook whose run was interrupted, or failed, stays alive."""
    folder = stop(tmp_path / "small", study(), 5)
    (path,) = (folder / "runs").iterdir()
    left = (path / memo.ERROR_FILE).read_bytes()
    (partial,) = abandon(folder, os.getppid())
    assert memo.partials(folder)[0].is_running
    (partial / memo.ERROR_FILE).write_bytes(left)
    assert not memo.partials(folder)[0].is_running
    assert memo.partials(folder)[0].error == ""
    monkeypatch.setattr(RunMonitor, "wait", None)
    go(folder, study())
    assert_same(folder, small_run)


def test_second_process_that_finishes_a_batch_discards_its_result(
    small_run, tmp_path, go, study, assert_same, listed, contents, monkeypatch
):
    folder = tmp_path / "small"
    publish, before = Workplace.publish, []

    def late(self):
        # Another process finishes the same batch first.
        shutil.copytree(small_run / "runs" / self.final.name, self.final)
        before.append(contents(self.final))
        publish(self)

    monkeypatch.setattr(Workplace, "publish", late)
    go(folder, study())
    assert [len(names) for names in listed(folder)] == [1, 0, 0]
    assert [contents(folder / "runs" / listed(folder).finished[0])] == before
    assert_same(folder, small_run)


def test_damaged_result_of_another_process_is_replaced(
    small_run, tmp_path, go, study, assert_same, listed, flip, monkeypatch
):
    publish = Workplace.publish

    def late(self):
        shutil.copytree(small_run / "runs" / self.final.name, self.final)
        flip(self.final / "records.parquet")
        publish(self)

    monkeypatch.setattr(Workplace, "publish", late)
    go(tmp_path / "small", study())
    assert [len(names) for names in listed(tmp_path / "small")] == [1, 0, 1]
    assert_same(tmp_path / "small", small_run)


# The study of each process is read from a file.
CHILD = """
import sys
from pathlib import Path
from jaxattn import Study
from jaxattn.lab.engine.monitor import Intervals
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run_study import run_study
path, directory, shard, of = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with Reporter(quiet=True) as reporter:
    outcome = run_study(
        Study.read(path), Path(directory), command="test", reporter=reporter,
        shard=(int(shard), int(of)), intervals=Intervals(block_s=0.0, checkpoint_s=0.0),
    )
print(outcome.batches, outcome.errors, outcome.failures)
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a process with a study, as soon as it is told to."""
    started = []

    def make(wanted, directory, shard=(1, 1)):
        path = wanted.write(tmp_path / f"{len(started)}.toml")
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, path, directory, *map(str, shard)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


def together(processes):
    """Let processes run at the same time, and return what they print."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found


@pytest.mark.more
def test_two_processes_share_the_batches_of_a_folder(tmp_path, start, study, go, listed, assert_same):
    wanted = study(seeds=4, chunk=1)
    folder = tmp_path / "shared"
    printed = together([start(wanted, folder), start(wanted, folder)])
    assert all(text.endswith("[] []\n") for text in printed)
    assert [len(names) for names in listed(folder)] == [4, 0, 0]
    go(tmp_path / "alone", wanted)
    assert_same(folder, tmp_path / "alone")
    assert verify(folder) == []
    assert go(folder, wanted)[0].already_finished


@pytest.mark.more
def test_processes_with_different_seeds_share_a_folder(tmp_path, start, study, go, listed, read, two_batches):
    folder = tmp_path / "shared"
    one, other = study(seeds=3, chunk=1), study(seeds="1:4", chunk=1)
    together([start(one, folder), start(other, folder)])
    assert [len(names) for names in listed(folder)] == [4, 0, 0]
    for wanted in (one, other):
        assert go(folder, wanted)[0].already_finished
    assert go(folder, study(chunk=1))[0].already_finished
    pd.testing.assert_frame_equal(read(folder)[0], read(two_batches)[0], check_exact=True)


@pytest.mark.more
def test_shards_at_the_same_time_complete_a_folder(tmp_path, start, study, go, listed, assert_same):
    wanted = study(axes={"phases.query.step_size": [0.1, 0.2]}, chunk=1)
    folder = tmp_path / "shards"
    printed = together([start(wanted, folder, (which, 2)) for which in (1, 2)])
    assert [text.split()[0] for text in printed] == ["2", "2"]
    assert [len(names) for names in listed(folder)] == [4, 0, 0]
    go(tmp_path / "whole", wanted)
    assert_same(folder, tmp_path / "whole")
    assert ja.load(folder).finished


def test_lost_or_damaged_study_file_is_written_again(
    copy, two_batches, go, study, assert_same, flip, counted
):
    path = copy / "study.json"
    for damaged in (flip, Path.unlink, lambda path: path.write_text("{")):
        damaged(path)
        outcome, lines = go(copy, study(chunk=1))
        assert (outcome.already_finished, outcome.renewed, lines, counted) == (True, True, [], [])
        assert_same(copy, two_batches)
    assert study_file.read_study(copy) == study_file.read_study(two_batches)


@pytest.mark.parametrize("name", [".DS_Store", ".nfs0012"])
def test_foreign_files_are_ignored(copy, two_batches, go, study, assert_same, contents, name):
    for folder in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        (folder / name).write_bytes(b"\0")
    before = contents(copy)
    outcome, lines = go(copy, study(chunk=1))
    assert (outcome.already_finished, lines) == (True, [])
    assert contents(copy) == before
    assert_same(copy, two_batches)
    assert ja.load(copy).params(seed=1).E.shape == (20, 16)
    assert verify(copy) == []
    assert list(memo.unwanted(copy)) == []


@pytest.mark.more
def test_foreign_files_in_an_unfinished_batch_are_ignored(
    stopped, small_run, tmp_path, go, study, assert_same
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        (place / ".DS_Store").write_bytes(b"\0")
    assert go(folder, study())[1] == []
    assert_same(folder, small_run)


def test_folder_with_unrelated_files_is_refused(tmp_path, go, study):
    (tmp_path / "thesis.txt").write_text("my life's work")
    with pytest.raises(ja.InputError, match="neither empty nor a results folder; choose another folder with"):
        go(tmp_path, study())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_full_disk_raises_a_one_line_error_and_keeps_results(
    tmp_path, monkeypatch, go, study, two_batches, assert_same, counted
):
    to_parquet, written = pd.DataFrame.to_parquet, []

    def full(*arguments, **options):
        written.append(1)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        return to_parquet(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_parquet", full)
        with pytest.raises(ja.RunError, match=r"the disk is full .* run the same command again"):
            go(tmp_path / "small", study(chunk=1))
    assert set(ja.load(tmp_path / "small").records["seed"]) == {0}
    assert ja.load(tmp_path / "small").manifest["status"] == "stopped"
    counted.clear()
    assert not go(tmp_path / "small", study(chunk=1))[0].errors
    assert [runs for runs, _ in counted] == [[(0, 1)]]
    assert_same(tmp_path / "small", two_batches)


def test_failed_start_leaves_no_folder(tmp_path, go, study, tables, monkeypatch):
    wanted = study(data=tables()["data"])
    folder = tmp_path / "a" / "b" / "c"

    def fail(*_, **__):
        raise ja.InputError("data: nothing there")

    monkeypatch.setattr(missing, "rehearse_groups", fail)
    with pytest.raises(ja.InputError, match="nothing there"):
        go(folder, wanted)
    assert list(tmp_path.iterdir()) == []
    # An existing empty folder of the user is kept, and stays empty.
    folder.parent.mkdir(parents=True)
    with pytest.raises(ja.InputError, match="nothing there"):
        go(folder.parent, wanted)
    assert list(folder.parent.iterdir()) == []


def test_deleting_the_folder_during_a_run_raises_a_one_line_error(tmp_path, go, study, monkeypatch):
    folder = tmp_path / "parent" / "run"
    load_corpora = programs.Programs.draw

    def delete(*given):
        shutil.rmtree(tmp_path / "parent")
        return load_corpora(*given)

    monkeypatch.setattr(programs.Programs, "draw", delete)
    with pytest.raises(ja.RunError, match=f"{folder}: was deleted; run the same command again"):
        go(folder, study())
    assert not folder.exists()


def test_deleting_one_batch_during_a_run_starts_it_again(tmp_path, go, study, monkeypatch, two_batches):
    """Only the partial folder is deleted, for example by `jaxattn clean` on another machine."""
    start = programs.Programs.start

    def delete(*given):
        for path in (tmp_path / "small" / "runs").glob("*.partial-*"):
            shutil.rmtree(path)
        return start(*given)

    monkeypatch.setattr(programs.Programs, "start", delete)
    assert not go(tmp_path / "small", study(chunk=1))[0].errors
    assert ja.load(tmp_path / "small").finished


def test_results_path_that_is_a_file_raises(tmp_path, study, go):
    (tmp_path / "x.py").write_text("")
    for place in (tmp_path / "x.py", tmp_path / "x.py" / "run"):
        with pytest.raises(
            ja.InputError, match=r"x.py: is a file, not a folder; choose another results folder"
        ):
            go(place, study())


@pytest.mark.skipif(sys.platform != "linux", reason="asks for /proc")
def test_folder_that_cannot_be_created_raises(study, go):
    with pytest.raises(ja.RunError, match=f"/proc/run: cannot be written: {os.strerror(errno.ENOENT)}"):
        go(Path("/proc/run"), study())


@pytest.mark.parametrize(
    ("free", "said"), [(0, "the disk has no free inodes"), (7, r"the disk is full \(3 MiB left\)")]
)
def test_disk_without_free_inodes_is_reported(tmp_path, monkeypatch, free, said):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    sizes = {"f_bavail": 3, "f_frsize": 2**20, "f_files": 9, "f_favail": free}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**sizes))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ja.RunError, match=f"study.json: cannot be written: .*{said}"):
        Memo(tmp_path).write_study({})


@pytest.mark.parametrize("victim", ["run.json", "records.parquet", "_METADATA"])
def test_unreadable_files_are_not_treated_as_damaged(copy, go, study, monkeypatch, contents, victim):
    """Missing permission or too few file handles is one line, and nothing is moved or computed again."""
    before, original = contents(copy), open

    def refuse(path, *options, **named):
        if victim in str(path):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return original(path, *options, **named)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(ja.InputError, match=f"{victim}: cannot be read: Too many open files; fix this"):
            go(copy, study(chunk=1))
    assert contents(copy) == before


def test_folder_in_place_of_a_file_raises_a_one_line_error(copy, go, study, listed, two_batches, assert_same):
    path = copy / "runs" / listed(copy).finished[0] / "records.parquet"
    path.unlink()
    path.mkdir()
    with pytest.raises(ja.InputError, match=rf"{path}: is a folder, not a file; run the same sweep again"):
        ja.load(copy)
    go(copy, study(chunk=1))
    assert_same(copy, two_batches)
    (copy / "study.json").unlink()
    (copy / "study.json").mkdir()
    with pytest.raises(ja.InputError, match=r"study\.json: is a folder, not a file"):
        run_status(copy)
    with pytest.raises(ja.RunError, match=r"study\.json: cannot be written: Is a directory"):
        go(copy, study(chunk=1))


def test_nothing_outside_the_folder_is_changed(copy, go, study, tmp_path, listed, contents):
    home = tmp_path / "home"
    first = listed(copy).finished[0]
    shutil.copytree(copy / "runs", home / "runs")
    before = contents(home)
    for place, leads in (
        (copy / "runs", home / "runs"),
        (copy / "runs" / first, home / "runs" / first),
        (copy / "runs" / f"{first}.partial-host-1-00000000", home / "runs" / first),
        (copy / "figures", home),
        (copy / "study.json", home / "runs" / first / "run.json"),
    ):
        kept = place.rename(tmp_path / "kept") if place.exists() else None
        place.symlink_to(leads)
        with pytest.raises(ja.InputError, match=rf"{place.name}: a link that leads out of"):
            go(copy, study(chunk=1))
        place.unlink()
        if kept:
            kept.rename(place)
    assert contents(home) == before
    assert go(copy, study(chunk=1))[0].already_finished


def test_hard_link_in_place_of_the_log_raises(stopped, go, study, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "small")
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (partial,) = (folder / "runs").iterdir()
    (partial / "metrics.jsonl").unlink()
    os.link(victim, partial / "metrics.jsonl")
    with pytest.raises(
        ja.InputError, match=r"metrics\.jsonl: a hard link, which other folders may share; remove it"
    ):
        go(folder, study())
    assert victim.read_text() == "kept"
    (partial / "metrics.jsonl").unlink()
    assert not go(folder, study())[0].failures
    assert victim.read_text() == "kept"


def test_temporary_files_of_killed_runs_are_removed(stopped, go, study, tmp_path, dead):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (partial,) = (folder / "runs").iterdir()
    writer = f"{files.HOST}-{dead}"
    remaining = [folder / f".study.json.{writer}", partial / f".run.json.{writer}"]
    for path in remaining:
        path.write_text("{")
    go(folder, study(seeds=[0, 1], description="changed"))
    assert [path.name for path in folder.rglob(f".*.{writer}")] == []
