"""Arrays round trip through files; invalid files give one-line errors."""

import json
import os
import re
import struct

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data.arrays import read_array


def write_safetensors(path, arrays, header=None):
    """Write the format from its specification: header size, JSON header, numbers."""
    kinds = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32"}
    described, content = {"__metadata__": {"format": "pt"}}, b""
    for name, x in arrays.items():
        ends = [len(content), len(content) + x.nbytes]
        described[name] = {"dtype": kinds[x.dtype.name], "shape": list(x.shape), "data_offsets": ends}
        content += x.tobytes()
    text = json.dumps(described if header is None else header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


def message(place):
    with pytest.raises(ja.InputError) as caught:
        read_array(place)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_npy_file_is_read(tmp_path, rng, dtype):
    x = rng.normal(size=(5, 3)).astype(dtype)
    np.save(tmp_path / "E.npy", x)
    found = read_array(tmp_path / "E.npy")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, x)


class Harm:
    """An object whose unpickling creates a folder."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_pickled_code_is_not_executed(tmp_path):
    place = tmp_path / "made"
    np.save(tmp_path / "E.npy", np.array([Harm(str(place))], dtype=object))
    assert "cannot be read" in message(tmp_path / "E.npy")
    assert not place.exists()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, jnp.bfloat16])
def test_safetensors_key_selects_an_array(tmp_path, rng, dtype):
    arrays = {"E": rng.normal(size=(5, 3)).astype(dtype), "layer.p": rng.normal(size=3).astype(dtype)}
    path = write_safetensors(tmp_path / "m.safetensors", arrays)
    for key, x in arrays.items():
        np.testing.assert_array_equal(read_array(f"{path}:{key}"), x)


def test_missing_file_or_key_is_rejected(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {"E": np.zeros(2), "ids": np.zeros(2, np.int32)})
    assert "no array 'p'; choose one of E, ids" in message(f"{path}:p")
    assert f"{path}:KEY, where KEY is one of E, ids" in message(path)
    assert "dtype I32" in message(f"{path}:ids")
    assert "no such file" in message(tmp_path / "E.npy")
    assert "no such file" in message(f"{tmp_path / 'x.safetensors'}:E")
    assert "expected FILE.npy" in message(tmp_path / "E.pt")


def test_damaged_files_are_rejected(tmp_path):
    for content in (b"", b"\x93NUMPY\x01\x00", b"{}"):
        (tmp_path / "E.npy").write_bytes(content)
        assert "E.npy" in message(tmp_path / "E.npy")
    np.save(tmp_path / "E.npy", np.arange(3))
    assert "dtype int64" in message(tmp_path / "E.npy")
    path = tmp_path / "m.safetensors"
    for content in (b"", b"\xff" * 40, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{x"):
        path.write_bytes(content)
        assert "m.safetensors" in message(f"{path}:E")


FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        FLOATS | {"data_offsets": [-8, 0]},
        FLOATS | {"data_offsets": [16, 8]},
        FLOATS | {"data_offsets": [8, 12]},
        FLOATS | {"data_offsets": [16, 24]},
        FLOATS | {"shape": [-1, -2]},
        FLOATS | {"shape": [2.0]},
        FLOATS | {"shape": [2**40, 2**40]},
        FLOATS | {"dtype": ["F32"]},
    ],
)
def test_invalid_safetensors_header_is_rejected(tmp_path, entry):
    path = write_safetensors(tmp_path / "m.safetensors", {"x": np.ones(4, np.float32)})
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    header = json.dumps({"x": FLOATS | {"data_offsets": [0, 8]}, "E": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + path.read_bytes()[8 + size :])
    assert "cannot be read" in message(f"{path}:E")
    header = json.dumps({"x": FLOATS | {"data_offsets": [0, 8]}, "E": FLOATS}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + path.read_bytes()[-16:])
    np.testing.assert_array_equal(read_array(f"{path}:E"), [1, 1])


@pytest.mark.parametrize(
    ("said", "instead", "why"),
    [
        ("(4, 6)", "(4, 5)", "contains extra data after the 160 bytes"),
        ("(4, 6)", "(-4, -6)", "cannot be read"),
        ("(4, 6)", f"({2**40}, {2**40})", "cannot be read"),
        ("'<f8'", "'|O'", "cannot be read"),
        ("'<f8'", "'<i8'", "dtype int64"),
        ("'<f8'", "nothing", "cannot be read"),
        ("{", "[" * 5000, "cannot be read"),
    ],
)
def test_invalid_npy_header_is_rejected(tmp_path, said, instead, why):
    np.save(tmp_path / "E.npy", np.ones((4, 6)))
    _, header, numbers = re.split(rb"(\{.*\n)", (tmp_path / "E.npy").read_bytes(), maxsplit=1)
    header = header.replace(said.encode(), instead.encode())
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    (tmp_path / "E.npy").write_bytes(start + header + numbers)
    assert re.search(why, message(tmp_path / "E.npy"))
