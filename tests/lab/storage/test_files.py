"""Files that are whole or not there, and checksums that tell."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.storage import files
from jaxattn.lab.storage.files import Damaged

CONTENT = {"name": "α \udcff", "numbers": [1, 1.0, 1e-7, None], "nested": {"b": True, "a": {}}}


def test_a_file_is_replaced_as_a_whole_after_it_is_on_the_disk(tmp_path, monkeypatch):
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


def test_a_folder_that_is_gone_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.write_file(tmp_path / "gone" / "file", b"", tmp_path)
    assert not (tmp_path / "gone").exists()


def test_what_is_read_is_what_the_checksum_says(tmp_path):
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
        with pytest.raises(Damaged, match=f"{tmp_path}: a folder is in its place"):
            reading(tmp_path, tmp_path, sha256)
        with pytest.raises(Damaged, match=f"{path}/x: missing"):
            reading(path / "x", tmp_path, sha256)


def test_names_of_a_folder(tmp_path, monkeypatch):
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    assert files.file_names(tmp_path, tmp_path) == ["a", "b"]
    assert files.file_names(tmp_path / "none", tmp_path) == files.file_names(tmp_path / "a", tmp_path) == []

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be read: Permission denied"):
        files.file_names(tmp_path, tmp_path)


def test_what_cannot_be_read_is_not_damaged(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match="file: cannot be read: Permission denied; fix this") as caught:
        files.read_file(tmp_path / "file", tmp_path)
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("indent", [None, 2])
def test_any_flipped_bit_of_a_sealed_object_is_found(tmp_path, indent):
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
def test_what_is_not_sealed_is_damaged(tmp_path, text):
    path = tmp_path / "sealed.json"
    path.write_text(text)
    with pytest.raises(Damaged, match=r"sealed\.json: damaged \(") as caught:
        files.read_sealed(path, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ["absolute", "dots", "link", "linked folder", "device"])
def test_nothing_outside_a_folder_is_read_or_written(tmp_path, way):
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
    if way not in ("link", "device"):  # those are replaced, and what they lead to stays
        with pytest.raises(Damaged, match="leads out of"):
            files.write_file(path, b"changed", folder)
    with pytest.raises(Damaged, match="leads out of"):
        files.check_links(folder)
    assert secret.read_bytes() == b"secret"


def test_links_within_a_folder_and_a_folder_that_is_linked_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    files.write_file(tmp_path / "folder" / "a", b"a", tmp_path / "folder")
    (tmp_path / "real" / "b").symlink_to("a")
    assert files.read_file(tmp_path / "folder" / "b", tmp_path / "folder") == b"a"
    files.check_links(tmp_path / "folder")


def test_a_planted_link_under_the_temporary_name_is_not_written_through(tmp_path):
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / f".file.{os.getpid()}").symlink_to("victim")
    files.replace(tmp_path / "file", b"new")
    assert ((tmp_path / "victim").read_bytes(), (tmp_path / "file").read_bytes()) == (b"kept", b"new")
    (tmp_path / "log").symlink_to("victim")
    with pytest.raises(OSError, match="symbolic links"):
        files.append_bytes(tmp_path / "log", b"more")


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Damaged, match=r"fifo: not a regular file; remove it"):
        files.read_file(tmp_path / "fifo", tmp_path)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 2**40)
    with pytest.raises(Damaged, match=r"sparse: has 1,099,511,627,776 bytes; at most"):
        files.read_file(tmp_path / "sparse", tmp_path)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "[" * 101 + "]" * 101, "9" * 5000])
def test_json_without_end_is_damage(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(Damaged, match=r"x\.json: damaged \("):
        files.read_json(tmp_path / "x.json", tmp_path)
    assert files.parse_json(b"[" * 100 + b"]" * 100)


def test_the_cache_is_the_first_that_is_set(monkeypatch, tmp_path):
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
    (tmp_path / "parts").mkdir()
    gone = [f".manifest.json.{ended.pid}", f"parts/.a.json.{ended.pid}", f".x.{os.getpid()}", f".x.{10**30}"]
    kept = [
        f".manifest.json.{os.getppid()}",
        ".lock",
        "manifest.json",
        "parts/a.1.json",
        f"other.{ended.pid}",
    ]
    for name in [*gone, *kept]:
        (tmp_path / name).write_text("x")
    (tmp_path / f".folder.{ended.pid}").mkdir()
    files.remove_temporary(tmp_path, "parts", "figures")
    assert [name for name in [*gone, *kept] if (tmp_path / name).exists()] == kept


@pytest.mark.parametrize("name", ["a", "a/b.json", ".zarray", "a/.b", "..a", "x" * files.LONGEST_NAME])
def test_names_below_a_folder(name):
    assert files.is_below(name)


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "a/", "../a", "a/../b", "./a", "a\0", "é" * 101, "\udcff" * 90]
)
def test_names_that_lead_elsewhere_or_are_too_long(name):
    assert not files.is_below(name)


def test_a_path_that_a_file_names_outside_is_not_advised_to_be_removed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    with pytest.raises(Damaged, match=r"out/link/a: a link that leads out of .*; remove the link$"):
        files.read_file(tmp_path / "out" / "link" / "a", tmp_path / "out")
    with pytest.raises(Damaged, match=rf"^{tmp_path / 'out'}: refers to a path that leads out of") as caught:
        files.read_file(tmp_path / "out" / ".." / "secret", tmp_path / "out")
    assert "remove" not in str(caught.value)
    assert "secret" not in str(caught.value)
