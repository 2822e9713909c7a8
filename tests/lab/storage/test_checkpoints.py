"""Checkpoints on a full disk raise an error, orbax prints nothing, and the root logger is unchanged."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jaxattn.lab.storage import checkpoints
from jaxattn.lab.storage.files import Damaged

FILLS_UP = """
import resource, sys
from pathlib import Path
import numpy as np
from jaxattn.lab.storage import checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for n in range(30):  # How many of the arrays have failed when the first error is raised varies.
    try:
        checkpoints.save(Path(sys.argv[1]) / str(n + 1), {f"a{k}": np.random.rand(9_000) for k in range(9)})
    except (OSError, ValueError):
        print("raised")
"""


@pytest.mark.more
def test_orbax_prints_nothing_if_a_file_cannot_be_written(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FILLS_UP, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (30 * "raised\n", "", 0)


def test_full_disk_raises_before_anything_is_written(tmp_path, monkeypatch):
    free = SimpleNamespace(f_blocks=10**6, f_bavail=200, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda place: free)
    arrays = {"a": np.zeros(100_000)}
    with pytest.raises(OSError, match="No space left") as caught:
        checkpoints.save(tmp_path / "deep" / "1", arrays)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    free.f_blocks = 0  # The file system does not report its size.
    checkpoints.save(tmp_path / "1", arrays)
    free.f_blocks, free.f_bavail = 10**6, 1000
    checkpoints.save(tmp_path / "2", arrays)


def test_damage_is_noticed_early_except_inside_large_arrays(tmp_path):
    """Small files are compared with checksums, and large ones by size until they are read."""
    arrays = {"a": np.random.default_rng(0).normal(size=2**19), "b": np.zeros(3)}
    known = checkpoints.save(tmp_path / "x", arrays)
    checkpoints.check_files(tmp_path / "x", known, tmp_path)
    paths = [path for path in (tmp_path / "x").rglob("*") if path.is_file()]
    large = max(paths, key=lambda path: path.stat().st_size)
    assert large.stat().st_size > checkpoints.SMALL
    content = large.read_bytes()
    middle = len(content) // 2
    large.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    checkpoints.check_files(tmp_path / "x", known, tmp_path)
    with pytest.raises(Damaged, match=r"x: damaged \("):
        checkpoints.restore(tmp_path / "x", known, tmp_path)
    large.write_bytes(content[:-1])
    with pytest.raises(Damaged, match=r"damaged \(its size differs\)"):
        checkpoints.check_files(tmp_path / "x", known, tmp_path)
    large.write_bytes(content)
    for change in (lambda path: path.write_bytes(b"x"), Path.unlink):
        change(tmp_path / "x" / "_METADATA")
        with pytest.raises(Damaged, match=r"_METADATA: (damaged|missing)"):
            checkpoints.check_files(tmp_path / "x", known, tmp_path)


RUN = """
import logging
import sys
import jaxattn as ja
root = logging.getLogger()
before = root.level, [*root.handlers]
results = ja.Study.read(sys.argv[1]).run("results", quiet=True)
results.params(seed=0)
assert (root.level, root.handlers) == before, root.handlers
"""


@pytest.mark.more
def test_first_run_leaves_the_root_logger_unchanged(tmp_path):
    """Absl adds a handler to the root logger when orbax is imported and at every later message."""
    root = Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, "-c", RUN, str(root / "tests" / "sweeps" / "small.toml")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        check=True,
    )
