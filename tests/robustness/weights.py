"""Damaged .npy and .safetensors files: each raises one line, or is read as by an independent reader."""

import ast
import json
import math
import random
import struct
import tempfile
from collections import Counter
from functools import reduce
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaxattn as ja
from jaxattn.data.arrays import read_array

KINDS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
# Values that replace a dtype, a shape or an offset.
ODD = [None, True, -1, 0, 3, 4.0, 2**63, 10**30, "", "F32", "<f4", "x" * 10_000, [], [4, -3], [-4, -3], {}]


def attack(count: int, seed: int) -> dict[str, int]:
    """Read randomly damaged files of weights.

    Args:
        count: number of files.
        seed: seed of all random choices.

    Returns:
        Number of files that were rejected, and that were read.

    Raises:
        AssertionError: another exception than one line, or other numbers than the file contains.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            suffix = rng.choice(["npy", "safetensors"])
            content = (_npy if suffix == "npy" else _safetensors)(rng)
            for _ in range(rng.choice([0, 1, 1, 1, 2, 8])):
                content = _damaged(content, rng)
            path = Path(folder, f"weights.{suffix}")
            path.write_bytes(content)
            place = f"weights.attack(seed={seed}), file {number}"
            try:
                found = read_array(path if suffix == "npy" else f"{path}:E")
            except ja.InputError as error:
                if "\n" in str(error):
                    raise AssertionError(f"{place}: more than one line") from error
                outcomes["refused"] += 1
                continue
            except Exception as error:
                raise AssertionError(f"{place}: {error!r}") from error
            expected = (_read_npy if suffix == "npy" else _read_safetensors)(content)
            assert found.shape == expected.shape, f"{place}: shape {found.shape}, not {expected.shape}"
            assert found.tobytes() == expected.tobytes(), f"{place}: other numbers"
            outcomes["read"] += 1
    return dict(outcomes)


def _npy(rng: random.Random) -> bytes:
    said = {"descr": rng.choice(["<f4", "<f8", "<f2", ">f4"]), "fortran_order": rng.random() < 0.3}
    said["shape"] = rng.choice([(4, 3), (12,), (2, 2, 3), ()])
    body = _bytes(rng, math.prod(said["shape"]) * np.dtype(said["descr"]).itemsize)
    if rng.random() < 0.3:
        said[rng.choice([*said, "further"])] = rng.choice([*ODD, (4, -3), (2**40, 3), "O", "<i4", "V4"])
    text = f"{said}\n".encode()
    if rng.random() < 0.1:
        return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + body
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def _safetensors(rng: random.Random) -> bytes:
    entries, body = {"__metadata__": {"format": "pt"}}, b""
    for name in rng.sample(["E", "p", "layer.v"], 3):
        kind, shape = rng.choice(list(KINDS)), rng.choice([[4, 3], [12], [2, 2, 3], []])
        size = math.prod(shape) * np.dtype(KINDS[kind]).itemsize
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += _bytes(rng, size)
    if rng.random() < 0.4:
        rng.choice([entries["E"], entries])[rng.choice(["dtype", "shape", "data_offsets", "E"])] = rng.choice(
            ODD
        )
    if rng.random() < 0.3 and isinstance(entries["E"], dict):
        entries["E"]["data_offsets"] = [rng.choice([*ODD, 4, 48]), rng.choice([*ODD, 52, 96])]
    text = json.dumps(entries).encode()
    if rng.random() < 0.05:
        text = text[:-1] + b', "E": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    return struct.pack("<Q", len(text)) + text + body


def _bytes(rng: random.Random, size: int) -> bytes:
    return bytes(rng.randrange(256) for _ in range(size))


def _damaged(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    # Damage of headers has the most effects.
    place = min(place, rng.choice([12, 100, 300, len(content)]))
    bits = bytes([1 << rng.randrange(8)])
    return rng.choice(
        [
            content[:place],
            content[place:],
            content[:place] + content[place + 1 :],
            content[:place] + rng.choice([b"\0", b"-", b"9", b"[" * 5000, b"\xff\xfe"]) + content[place:],
            content[:place]
            + bytes(a ^ b for a, b in zip(content[place:], bits, strict=False))
            + content[place + 1 :],
            content[:place] + rng.choice([b"0", b"1", b"7", b"e"]) + content[place + 1 :],
            content + b"\0" * rng.choice([1, 4, 4096]),
            b"",
        ]
    )


def _read_npy(content: bytes) -> np.ndarray:
    wide = content[6] == 2
    (size,) = struct.unpack("<I" if wide else "<H", content[8 : 12 if wide else 10])
    start = (12 if wide else 10) + size
    said = ast.literal_eval(content[start - size : start].decode("latin1").lstrip())
    dtype = np.dtype(said["descr"])
    flat = np.frombuffer(content[start:], dtype).astype(dtype.newbyteorder("="))
    return flat.reshape(said["shape"], order="F" if said["fortran_order"] else "C")


def _read_safetensors(content: bytes) -> np.ndarray:
    (size,) = struct.unpack("<Q", content[:8])
    said = json.loads(content[8 : 8 + size])["E"]
    first, last = said["data_offsets"]
    flat = np.frombuffer(content[8 + size :][first:last], KINDS[said["dtype"]])
    return reduce(lambda x, shape: x.reshape(shape), [said["shape"]], flat)
