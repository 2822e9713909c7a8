"""Options that commands share."""

import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.cli.options import read_folders


@pytest.fixture
def begun(tmp_path):
    def make(*names):
        for name in names:
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "manifest.json").write_text("{}")
        return tmp_path

    return make


def test_folder_of_shards_is_expanded_into_its_shards(begun):
    root = begun("run", *(f"many/shard-{k}-of-11" for k in (1, 2, 10)))
    found, missing = read_folders((root / "many", root / "run"))
    assert [path.name for path in found] == ["shard-1-of-11", "shard-2-of-11", "shard-10-of-11", "run"]
    assert [path.name for path in missing] == [f"shard-{k}-of-11" for k in (3, 4, 5, 6, 7, 8, 9, 11)]


def test_run_folders_and_other_folders_are_not_expanded(begun):
    root = begun("both", "both/shard-1-of-2")
    assert read_folders((root / "both", root / "nosuch")) == ([root / "both", root / "nosuch"], [])
    with pytest.raises(InputError, match="expected at least one results folder"):
        read_folders(())
