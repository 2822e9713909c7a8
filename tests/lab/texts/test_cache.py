import os

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.texts import cache

ARRAYS = {"a": np.arange(50, dtype=np.uint16), "b": np.array([-1, 7])}


@pytest.fixture
def notes():
    return []


def same(left, right):
    return left.keys() == right.keys() and all(
        left[k].dtype == right[k].dtype and np.array_equal(left[k], right[k]) for k in right
    )


def test_digest_depends_only_on_contents_names_and_settings(tmp_path):
    def put(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return str(path)

    one, two = put("one", b"abc"), put("two", b"def")
    key = cache.source_digest({"x": one, "y": two}, b"s")
    assert key == cache.source_digest({"x": put("moved/elsewhere", b"abc"), "y": two}, b"s")
    others = [
        cache.source_digest({"x": one, "y": two}, b"t"),
        cache.source_digest({"x": two, "y": one}, b"s"),
        cache.source_digest({"x": one, "z": two}, b"s"),
        cache.source_digest({"x": one}, b"s"),
        cache.source_digest({"x": put("abx", b"abx"), "y": two}, b"s"),
    ]
    assert len({key, *others}) == 6
    early = cache.source_digest({"x": put("3", b"ab"), "y": put("4", b"\0y\0cd")}, b"s")
    late = cache.source_digest({"x": put("5", b"ab\0y\0"), "y": put("6", b"cd")}, b"s")
    assert early != late


def test_digest_of_a_missing_file_raises(tmp_path):
    with pytest.raises(ja.InputError, match=r"data: cannot read .*gone"):
        cache.source_digest({"x": str(tmp_path / "gone")}, b"")


def test_arrays_round_trip_through_the_cache(tmp_path, notes):
    path = tmp_path / "new" / "folders" / "x.npz"
    assert cache.read_cached(path, ARRAYS, notes.append) is None
    cache.write_cached(path, ARRAYS, notes.append)
    assert same(cache.read_cached(path, ARRAYS, notes.append), ARRAYS)
    assert os.listdir(path.parent) == ["x.npz"]
    assert notes == []


def test_flipped_bit_is_detected_or_harmless(tmp_path, notes):
    path = tmp_path / "x.npz"
    cache.write_cached(path, ARRAYS, notes.append)
    content = path.read_bytes()
    found = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        result = cache.read_cached(path, ARRAYS, notes.append)
        assert result is None or same(result, ARRAYS)
        if result is None:
            found += 1
            assert not path.exists()
            assert (tmp_path / "x.npz.damaged").read_bytes() == damaged
    assert found == len(notes) > len(content) / 3


@pytest.mark.parametrize("content", [b"", b"PK", b"some text"])
def test_cache_file_with_unrelated_contents_is_replaced(tmp_path, notes, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    assert cache.read_cached(path, ARRAYS, notes.append) is None
    assert len(notes) == 1
    assert "damaged" in notes[0]
    cache.write_cached(path, ARRAYS, notes.append)
    assert same(cache.read_cached(path, ARRAYS, notes.append), ARRAYS)


def test_missing_array_is_treated_as_damage(tmp_path, notes):
    path = tmp_path / "x.npz"
    cache.write_cached(path, {"a": ARRAYS["a"]}, notes.append)
    assert cache.read_cached(path, ARRAYS, notes.append) is None
    assert not path.exists()


def test_pickles_are_not_loaded(tmp_path, notes):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([{}], object))
    assert cache.read_cached(path, ["a"], notes.append) is None


def test_unwritable_cache_is_skipped(tmp_path, notes):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "x.npz"
    assert cache.read_cached(path, ARRAYS, notes.append) is None
    cache.write_cached(path, ARRAYS, notes.append)
    assert len(notes) == 1
    assert str(path.parent) in notes[0]
    assert "JAXATTN_CACHE" in notes[0]


def test_full_disk_leaves_no_partial_file(tmp_path, notes):
    resource = pytest.importorskip("resource")
    path = tmp_path / "x.npz"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        cache.write_cached(path, {"a": np.zeros(10_000)}, notes.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
    assert len(notes) == 1
    assert "nothing stored" in notes[0]
