"""Random small studies, compared with the textbook; `python -m tests.textbook 500` runs more of them."""

import pytest
from textbook import compare, generate, package

import jaxattn as ja


# A study takes 10 to 15 s, almost all of it for compilation.
@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(seed, marks=pytest.mark.more) for seed in range(4)),
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(4, 30)),
    ],
)
def test_random_studies_match_the_textbook(seed, tmp_path):
    tables = generate.study(seed)
    results = package.run(ja.Study.from_tables(tables), tmp_path / "results")
    _, expected = compare.expected_records(results, tables)
    assert not compare.differences(package.records_of(results), expected)
