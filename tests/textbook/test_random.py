"""Random small studies, compared with the textbook; `python -m tests.textbook 500` runs more of them."""

import pytest
from textbook import compare, generate, package

import jaxattn as ja


@pytest.mark.more
@pytest.mark.parametrize("seed", range(30))
def test_random_studies_match_the_textbook(seed, tmp_path):
    tables = generate.study(seed)
    results = package.run(ja.Study.of_tables(tables), tmp_path / "results")
    _, expected = compare.expected_records(results, tables)
    assert not compare.differences(package.records_of(results), expected)
