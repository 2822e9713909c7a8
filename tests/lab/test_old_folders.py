"""A results folder that version 0.2.0 wrote loads, reports, aggregates and is topped up.

of_version_0_2.zip holds the folder and the sweep file that made it.
"""

import zipfile
from pathlib import Path

import pandas as pd
import pytest

import jaxattn as ja


@pytest.fixture
def old(tmp_path):
    with zipfile.ZipFile(Path(__file__).with_name("of_version_0_2.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "of_version_0_2"


def test_old_folder_loads_with_its_parameters(old):
    results = ja.load(old)
    assert results.finished
    assert set(results.records["seed"]) == {0, 1}
    assert results.params(seed=1).E.shape == (12, 8)


@pytest.mark.more
def test_old_folder_can_be_aggregated_reported_and_verified(old, call):
    status, printed, _ = call("aggregate", old)
    assert status == 0
    assert "loss" in printed
    assert call("report", old)[0] == 0
    assert (old / "report.html").is_file()
    assert call("status", old, "--verify")[0] == 0


@pytest.mark.more
def test_old_folder_accepts_more_seeds_and_keeps_its_results(old):
    before = ja.load(old).records
    after = ja.Study.read(old.with_suffix(".toml"), ["seeds=3"]).run(old, quiet=True).records
    assert set(after["seed"]) == {0, 1, 2}
    kept = after[after["seed"] < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before.reset_index(drop=True))


def test_old_folder_rejects_different_settings(old):
    with pytest.raises(ja.InputError, match=r"model\.dim: 8 -> 9"):
        ja.Study.read(old.with_suffix(".toml"), ["model.dim=9"]).run(old, quiet=True)
