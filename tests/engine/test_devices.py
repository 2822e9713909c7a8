"""A run that goes on on other devices says that last digits may differ."""

import shutil

import pytest

from jaxattn.engine import devices
from jaxattn.storage import manifest


@pytest.mark.parametrize(
    ("begun", "words"),
    [
        ({"platform": "gpu", "kind": "H100", "count": 1}, "1 × H100"),
        pytest.param({"platform": "cpu", "kind": "cpu", "count": 64}, "64 × cpu", marks=pytest.mark.more),
    ],
)
def test_a_run_that_goes_on_on_other_devices_says_so_once(two_batches, study, go, tmp_path, begun, words):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    manifest.write(folder, manifest.read(folder) | {"device": begun})
    lines = [go(folder, study(chunk=1, seeds=n))[1] for n in (3, 4)]
    here = devices.here()
    told = f"begun on {words}, going on on {here['count']} × cpu: numbers may differ in their last digits"
    assert lines == [[told], []]
    assert manifest.read(folder)["continued_on"] == [here]


def test_a_run_that_goes_on_where_it_was_begun_says_nothing(two_batches, study, go, tmp_path):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    assert go(folder, study(chunk=1, seeds=3))[1] == []
    assert manifest.read(folder)["continued_on"] == []
