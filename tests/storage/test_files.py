"""Files that are whole or not there, and checksums that tell."""

import errno
import hashlib
import json
import os

import pytest

from jaxattn.errors import InputError
from jaxattn.storage import files
from jaxattn.storage.files import Damaged

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
    files.write(path, b"new")
    (temporary, before), (folder, after) = synced
    assert temporary.startswith(f"{tmp_path}/.file.")
    assert (before, after, folder) == (b"old", b"new", str(tmp_path))

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, b"newer")
    assert [x.name for x in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"


def test_a_folder_that_is_gone_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "gone" / "file", b"")
    assert not (tmp_path / "gone").exists()


def test_what_is_read_is_what_the_checksum_says(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert files.digest(b"content") == sha256
    assert files.read(path) == files.read(path, sha256) == b"content"
    files.check(path, sha256)
    path.write_bytes(b"contens")
    for reading in (files.read, files.check):
        with pytest.raises(Damaged, match=f"{path}: damaged"):
            reading(path, sha256)
        with pytest.raises(Damaged, match=f"{tmp_path}: a folder is in its place"):
            reading(tmp_path, sha256)
        with pytest.raises(Damaged, match=f"{path}/x: missing"):
            reading(path / "x", sha256)


def test_names_of_a_folder(tmp_path, monkeypatch):
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    assert files.names(tmp_path) == ["a", "b"]
    assert files.names(tmp_path / "none") == files.names(tmp_path / "a") == []

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be read: Permission denied"):
        files.names(tmp_path)


def test_what_cannot_be_read_is_not_damaged(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match="file: cannot be read: Permission denied; mend this") as caught:
        files.read(tmp_path / "file")
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("indent", [None, 2])
def test_any_flipped_bit_of_a_sealed_object_is_found(tmp_path, indent):
    text = files.sealed(CONTENT, indent)
    path = tmp_path / "sealed.json"
    path.write_bytes(text)
    assert files.read_sealed(path) == CONTENT
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
        files.read_sealed(path)
    assert "\n" not in str(caught.value)
