"""Checkpoints on a full disk: an error is raised, and orbax prints nothing."""

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from jaxattn.lab.storage import checkpoints

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
