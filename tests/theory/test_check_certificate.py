"""Forged certificates: the checker refuses each of them at once and in one line."""

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import (
    Scores,
    certify_exactly,
    check_certificate,
    exact_certificate,
    max_margin,
    selection_from_tokens,
    write_certificate,
)

# Numbers that are not written in one of the accepted forms, or too long to be built.
TEXTS = (
    *(
        "1e400000000",
        "1e-400000000",
        "1e99999",
        "1E+10000",
        "1_0",
        "1e1_0",
        "NaN",
        "Infinity",
        "-1",
        "1/0",
        "0x10",
    ),
    *(" 1", "1 ", "١", "", "1/2/3", "1e", "1.e5", ".5", "9" * 10**6, "1/" + "3" * 10**5, "0." + "1" * 10**5),
    *("+1", "1e5/3", "inf", "1\n"),
)
# Values in JSON that are not positive integers of an acceptable length.
VALUES = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1.5",
        "1e400",
        "1e400000000",
        "9" * 10**6,
        "-" + "9" * 10**6,
        "-1",
        "0",
    ),
    *('"1"', "null", "true", "[1]", "{}", "1_000", "01", "[" * 10**5 + "]" * 10**5, "[" * 10**5),
)
# Complete files that are not certificates.
FILES = (
    *(
        b"",
        b"[]",
        b"null",
        b"5",
        b'"data"',
        b"{}",
        b"\xff\xfe{",
        b"\xef\xbb\xbf{}",
        b"[" * 10**5,
        b'{"data":' * 10**5,
    ),
    *(
        b"[" * 10**5 + b"]" * 10**5,
        b"9" * 10**7,
        b'{"data": 5}',
        b'{"data": ["a.bin"]}',
        b'{"data": null}',
        b" " * 2**25,
    ),
)
# Names of data files that are missing, not regular, too large or in another folder.
NAMES = (
    *(
        "missing.bin",
        "",
        ".",
        "..",
        "/dev/zero",
        "../a.bin",
        "pipe",
        "folder",
        "zeros",
        "sparse",
        "a\0b",
        "x" * 5000,
    ),
    *("a.json",),
)
# Headers of the data: tokens, dimension, sequences.
SIZES = (
    *((2**62, 2, 2), (4, 2**62, 2), (4, 2, 2**62), (-4, 2, 2), (4, -2, 2), (-4, -2, 2), (0, 2, 2), (4, 0, 2)),
    *(
        (2**31, 2**31, 1),
        (10**9, 1, 2),
        (3, 2, 2),
        (5, 2, 2),
        (4, 1, 2),
        (4, 2, 1),
        (4, 2, 3),
        (2**63 - 1, 2, 2),
    ),
)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """Write a certificate for two sequences, and files that must not be read."""
    folder = tmp_path_factory.mktemp("certificates")
    corpus = ja.data.from_sequences([[0, 2], [1, 3]], [1, -1], vocab_size=4)
    scores = Scores(np.array([[1.0, 0.25], [-0.5, 1.0], [0.0, 0.0], [0.125, 0.0]]), corpus)
    chosen = selection_from_tokens(np.array([True, True, False, False]), corpus)
    write_certificate(folder / "a.json", scores, chosen, max_margin(scores, chosen))
    (folder / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
        (folder / "zeros").symlink_to("/dev/zero")
    with open(folder / "sparse", "wb") as file:
        file.truncate(2**40)
    return folder


def run(path):
    """Return the exit status and the messages of the checker."""
    call = [sys.executable, "-I", "-S", check_certificate.__file__, str(path)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=20, cwd=path.parent)
    return done.returncode, done.stdout, done.stderr


def replaced(claim, key, text, rng):
    """Return the certificate with one number replaced by a text of JSON."""
    claim = json.loads(json.dumps(claim))
    if key == "p":
        claim["p"][rng.randrange(2)] = "@"
    else:
        claim["multipliers"][rng.randrange(2)][rng.randrange(3)] = "@"
    return json.dumps(claim).replace('"@"', text).encode()


def with_data(path, claim, data):
    """Write data, and a certificate with its checksum."""
    path.with_suffix(".bin").write_bytes(data)
    claim = claim | {"data": path.with_suffix(".bin").name, "sha256": hashlib.sha256(data).hexdigest()}
    path.write_bytes(json.dumps(claim).encode())


def forge(folder, number):
    """Write a forged certificate; return its path."""
    rng, path = random.Random(number), folder / f"{number}.json"
    claim, data = json.loads((folder / "a.json").read_text()), (folder / "a.bin").read_bytes()
    kind, each = number % 8, number // 8
    if kind == 0:
        path.write_bytes(
            json.dumps(claim | {rng.choice(["scale", "gap"]): TEXTS[each % len(TEXTS)]}).encode()
        )
    elif kind == 1:
        text = VALUES[each % len(VALUES)]
        key = "multipliers" if text in ("0", "-1") else rng.choice(["p", "multipliers"])
        path.write_bytes(replaced(claim, key, "-7" if text == "0" else text, rng))
    elif kind == 2:
        path.write_bytes(FILES[each % len(FILES)])
    elif kind == 3:
        path.write_bytes(json.dumps(claim | {"data": NAMES[each % len(NAMES)]}).encode())
    elif kind == 4:
        with_data(path, claim, data[:8] + struct.pack("<3q", *SIZES[each % len(SIZES)]) + data[32:])
    elif kind == 5:
        key = struct.pack("<d", rng.choice([np.nan, np.inf, -np.inf, 1e308, 5e-324]))
        place = 32 + 8 * rng.randrange(4)  # an entry of a selected token
        with_data(path, claim, data[:place] + key + data[place + 8 :])
    elif kind == 6:
        entry = struct.pack("<i", rng.choice([2**31 - 1, -(2**31), 10**6, -(10**6), 7]))
        place = rng.randrange(32 + 64, len(data), 4)
        with_data(path, claim, data[:place] + entry + data[place + 4 :])
    else:
        cut = rng.randrange(len(data))
        with_data(path, claim, data[:cut] + bytes(rng.randrange(256) for _ in range(rng.randrange(3))))
    return path


def refused(path):
    """Return whether the checker refuses a certificate as it should: at once and in one short line."""
    status, out, message = run(path)
    good = message.startswith("refused: ") and message.count("\n") == 1 and len(message) < 400
    return status == 1 and out == "" and good, (path.name, status, out[:200], message[:400])


@pytest.mark.parametrize("number", [40, pytest.param(800, marks=pytest.mark.exhaustive)])
def test_forged_certificates_are_refused_at_once(valid, number):
    assert run(valid / "a.json")[0] == 0
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(refused, [forge(valid, each) for each in range(number)]))
    assert [each for good, each in found if not good] == []


@pytest.mark.parametrize("name", ["pipe", "folder", "zeros", "sparse", "missing"])
def test_only_regular_files_of_acceptable_size_are_read(valid, name):
    good, found = refused(valid / name)
    assert good, found


def test_any_truncated_certificate_is_refused(valid):
    text = (valid / "a.json").read_bytes()
    for number, cut in enumerate(range(1, len(text) - 1, 17)):
        with pytest.raises((ValueError, TypeError, KeyError)):
            check_certificate.check(check_certificate.parse(text[:cut]), b"")
        assert number < 100


def test_certificates_of_another_scale_keep_their_gap(rng):
    """The proven gap of keys whose lengths differ by 2^100 is that of the solver, up to its own rounding."""
    for _ in range(3):
        E = rng.normal(size=(16, 10)) * 2.0 ** rng.integers(-50, 51, size=(16, 1))
        corpus = ja.data.from_sequences([[k, 15 - k] for k in range(6)], [1] * 6, vocab_size=16)
        scores, chosen = Scores(E, corpus), selection_from_tokens(np.arange(16) < 6, corpus)
        solution = max_margin(scores, chosen)
        assert solution.feasible
        gap = certify_exactly(scores, chosen, solution).gap
        assert gap <= solution.duality_gap + 1e-12


def test_multipliers_with_too_many_digits_are_refused_before_a_file_is_written(tmp_path, rng, monkeypatch):
    """20 differences in 19 dimensions; the limit is lowered, because longer multipliers take a minute."""
    rows = rng.normal(size=(20, 19))
    # The only multipliers with a sum of zero, up to a factor, become positive.
    rows *= np.sign(np.linalg.svd(rows.T)[2][-1])[:, None]
    E = np.concatenate([rows, np.zeros((1, 19))])
    corpus = ja.data.from_sequences([[k, 20] for k in range(20)], [1] * 20, vocab_size=21)
    scores, chosen = Scores(E, corpus), selection_from_tokens(np.arange(21) < 20, corpus)
    solution = max_margin(scores, chosen)
    assert solution.infeasible
    longest = max(len(str(x)) for *_, x in certify_exactly(scores, chosen, solution).claim["multipliers"])
    assert 100 < longest < 4000
    monkeypatch.setattr(exact_certificate, "_DIGITS", 100)
    with pytest.raises(ja.InputError, match=f"have {longest} digits, more than 100"):
        write_certificate(tmp_path / "a.json", scores, chosen, solution)
    assert list(tmp_path.iterdir()) == []
