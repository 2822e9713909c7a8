"""Tables as files, which are there as a whole or as they were."""

import resource
import signal

import pandas as pd
import pytest

from jaxattn.core.errors import RunError
from jaxattn.results import tables

TABLE = pd.DataFrame({"metric": ["loss"] * 5000, "mean": range(5000)})


@pytest.mark.parametrize("suffix", [".csv", ".md", ".tex", ".parquet"])
def test_a_full_disk_leaves_what_was_there(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    path.write_bytes(b"as it was")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(RunError, match=r"table\.\w+: cannot be written: File too large"):
            tables.write(TABLE, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [(x.name, x.read_bytes()) for x in tmp_path.iterdir()] == [(path.name, b"as it was")]
    tables.write(TABLE, path)
    assert path.stat().st_size > 2000


def test_a_linked_file_of_the_users_own_stays_a_link(tmp_path):
    (tmp_path / "link.csv").symlink_to("real.csv")
    tables.write(TABLE, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "real.csv"), TABLE)
