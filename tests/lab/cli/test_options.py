"""Options that commands share."""

import pytest

import jaxattn as ja
from jaxattn.lab.cli.options import read_folders, read_shard, read_size


def test_commands_that_read_results_require_a_folder(tmp_path):
    assert read_folders((tmp_path / "a", tmp_path / "b")) == [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(ja.InputError, match="expected at least one results folder"):
        read_folders(())


def test_shards_and_sizes_are_parsed():
    assert read_shard("2/11") == (2, 11)
    assert read_size("1.5GiB") == 3 * 2**29
    assert read_size(None) is None
    for read, text in ((read_shard, "2"), (read_shard, "a/b"), (read_size, "8"), (read_size, "8 X")):
        with pytest.raises(ja.InputError, match="expected"):
            read(text)
