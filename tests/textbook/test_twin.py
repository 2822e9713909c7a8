"""Every number that a study records, compared with the textbook: NumPy loops written from the documents."""

import tomllib
from pathlib import Path

import pytest
from textbook import compare, package

import jaxattn as ja

STUDIES = Path(__file__).parent / "studies"


@pytest.fixture(scope="module", params=sorted(path.stem for path in STUDIES.glob("*.toml")))
def twins(request, tmp_path_factory):
    """Return the results of a study, and the settings and records of the textbook."""
    path = STUDIES / f"{request.param}.toml"
    results = package.run(ja.Study.read(path), tmp_path_factory.mktemp(request.param) / "results")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return results, *compare.expected_records(results, tables)


def test_cells_have_the_settings_of_the_sweep_file(twins):
    results, settings, _ = twins
    assert [cell["settings"] for cell in results.manifest["cells"]] == settings


def test_every_record_matches_the_textbook(twins):
    results, _, expected = twins
    assert len(expected) > 1000
    assert not compare.differences(package.records_of(results), expected)
