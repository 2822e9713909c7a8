"""Atomic writes and checked reads of files."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxattn as ja
from jaxattn.lab.storage import files
from jaxattn.lab.storage.files import Damaged

CONTENT = {"name": "α \udcff", "numbers": [1, 1.0, 1e-7, None], "nested": {"b": True, "a": {}}}


def test_files_are_replaced_atomically_and_durably(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    synced = []
    fsync = os.fsync

    def seen(handle):
        synced.append((os.readlink(f"/proc/self/fd/{handle}"), path.read_bytes()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", seen)
    files.write_file(path, b"new", tmp_path)
    (temporary, before), (folder, after) = synced
    assert temporary.startswith(f"{tmp_path}/.file.")
    assert (before, after, folder) == (b"old", b"new", str(tmp_path))

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_file(path, b"newer", tmp_path)
    assert [x.name for x in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"


def test_deleted_folder_is_not_recreated(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.write_file(tmp_path / "gone" / "file", b"", tmp_path)
    assert not (tmp_path / "gone").exists()


def test_checksum_mismatch_is_detected(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert files.digest(b"content") == sha256
    assert files.read_file(path, tmp_path) == files.read_file(path, tmp_path, sha256) == b"content"
    files.check_file(path, tmp_path, sha256)
    path.write_bytes(b"contens")
    for reading in (files.read_file, files.check_file):
        with pytest.raises(Damaged, match=f"{path}: damaged"):
            reading(path, tmp_path, sha256)
        with pytest.raises(Damaged, match=f"{tmp_path}: is a folder, not a file"):
            reading(tmp_path, tmp_path, sha256)
        with pytest.raises(Damaged, match=f"{path}/x: missing"):
            reading(path / "x", tmp_path, sha256)


def test_file_names_in_a_folder_are_sorted(tmp_path, monkeypatch):
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    assert files.file_names(tmp_path, tmp_path) == ["a", "b"]
    assert files.file_names(tmp_path / "none", tmp_path) == files.file_names(tmp_path / "a", tmp_path) == []

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ja.InputError, match=f"{tmp_path}: cannot be read: Permission denied"):
        files.file_names(tmp_path, tmp_path)


def test_unreadable_file_is_not_reported_as_damaged(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ja.InputError, match="file: cannot be read: Permission denied; fix this") as caught:
        files.read_file(tmp_path / "file", tmp_path)
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("indent", [None, 2])
def test_flipped_bits_in_a_checksummed_object_are_detected(tmp_path, indent):
    text = files.sealed(CONTENT, indent)
    path = tmp_path / "sealed.json"
    path.write_bytes(text)
    assert files.read_sealed(path, tmp_path) == CONTENT
    for bit in range(8 * len(text)):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = files.unsealed(json.loads(bytes(changed)))
        except ValueError:
            continue
        assert found == CONTENT, bit


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"a": 1}', "{"])
def test_content_without_a_checksum_counts_as_damaged(tmp_path, text):
    path = tmp_path / "sealed.json"
    path.write_text(text)
    with pytest.raises(Damaged, match=r"sealed\.json: damaged \(") as caught:
        files.read_sealed(path, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ["absolute", "dots", "link", "linked folder", "device"])
def test_files_outside_the_folder_are_rejected(tmp_path, way):
    folder, secret = tmp_path / "folder", tmp_path / "outside" / "secret"
    folder.mkdir()
    secret.parent.mkdir()
    secret.write_bytes(b"secret")
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(secret.parent)
    (folder / "device").symlink_to("/dev/zero")
    name = {"absolute": str(secret), "dots": "../outside/secret", "link": "link", "device": "device"}
    path = folder / name.get(way, "linked/secret")
    digest = files.digest(b"secret")
    readers = [
        files.read_file,
        files.read_json,
        files.read_sealed,
        lambda p, f: files.check_file(p, f, digest),
    ]
    for reading in readers:
        with pytest.raises(
            Damaged, match=f"leads out of {folder}; files outside it are neither read nor written"
        ):
            reading(path, folder)
    if way not in ("link", "device"):  # A link or device is replaced, and its target is unchanged.
        with pytest.raises(Damaged, match="leads out of"):
            files.write_file(path, b"changed", folder)
    with pytest.raises(Damaged, match="leads out of"):
        files.check_links(folder)
    assert secret.read_bytes() == b"secret"


def test_links_within_a_folder_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    files.write_file(tmp_path / "folder" / "a", b"a", tmp_path / "folder")
    (tmp_path / "real" / "b").symlink_to("a")
    assert files.read_file(tmp_path / "folder" / "b", tmp_path / "folder") == b"a"
    files.check_links(tmp_path / "folder")


def test_symlink_with_the_temporary_name_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / f".file.{files.HOST}-{os.getpid()}").symlink_to("victim")
    files.replace(tmp_path / "file", b"new")
    assert ((tmp_path / "victim").read_bytes(), (tmp_path / "file").read_bytes()) == (b"kept", b"new")
    (tmp_path / "log").symlink_to("victim")
    with pytest.raises(OSError, match="symbolic links"):
        files.append_bytes(tmp_path / "log", b"more")


def test_special_and_oversized_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Damaged, match=r"fifo: not a regular file; remove it"):
        files.read_file(tmp_path / "fifo", tmp_path)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 2**40)
    with pytest.raises(Damaged, match=r"sparse: too large: 1,099,511,627,776 bytes"):
        files.read_file(tmp_path / "sparse", tmp_path)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "[" * 101 + "]" * 101, "9" * 5000])
def test_deeply_nested_json_counts_as_damaged(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(Damaged, match=r"x\.json: damaged \("):
        files.read_json(tmp_path / "x.json", tmp_path)
    assert files.parse_json(b"[" * 100 + b"]" * 100)


def test_cache_folder_follows_the_precedence_of_its_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("JAXATTN_CACHE", raising=False)
    assert files.cache_folder() == Path("/home/someone/.cache/jaxattn")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert files.cache_folder() == Path("/xdg/jaxattn")
    monkeypatch.setenv("JAXATTN_CACHE", "~/mine")
    assert files.cache_folder() == Path("/home/someone/mine")
    assert files.cache_folder(tmp_path) == tmp_path


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "runs").mkdir()
    of = f"{files.HOST}-"
    gone = [f".study.json.{of}{ended.pid}", f"runs/.a.json.{of}{ended.pid}", f".x.{of}{os.getpid()}"]
    gone += [f".x.{of}{10**30}"]
    kept = [
        f".study.json.{of}{os.getppid()}",
        f".study.json.elsewhere-{ended.pid}",
        "study.json",
        "runs/a.1.json",
        f"other.{ended.pid}",
    ]
    for name in [*gone, *kept]:
        (tmp_path / name).write_text("x")
    (tmp_path / f".folder.{of}{ended.pid}").mkdir()
    files.remove_temporary(tmp_path, "runs", "figures")
    assert [name for name in [*gone, *kept] if (tmp_path / name).exists()] == kept


@pytest.mark.parametrize("name", ["a", "a/b.json", ".zarray", "a/.b", "..a", "x" * files.LONGEST_NAME])
def test_is_below_accepts_plain_relative_paths(name):
    assert files.is_below(name)


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "a/", "../a", "a/../b", "./a", "a\0", "é" * 101, "\udcff" * 90]
)
def test_is_below_rejects_absolute_unnormalised_and_invalid_paths(name):
    assert not files.is_below(name)


def test_message_does_not_suggest_removing_files_outside_the_folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    with pytest.raises(Damaged, match=r"out/link/a: a link that leads out of .*; remove the link$"):
        files.read_file(tmp_path / "out" / "link" / "a", tmp_path / "out")
    with pytest.raises(Damaged, match=rf"^{tmp_path / 'out'}: refers to a path that leads out of") as caught:
        files.read_file(tmp_path / "out" / ".." / "secret", tmp_path / "out")
    assert "remove" not in str(caught.value)
    assert "secret" not in str(caught.value)
