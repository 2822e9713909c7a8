"""Planted corpora have the planted covers, and a short run follows the law."""

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab import books
from jaxattn.lab.study.import_paths import ImportPaths

FOLDER = Path(__file__).parents[2] / "sweeps" / "findings" / "which_cover"


@pytest.fixture
def code():
    return lambda name: ImportPaths(FOLDER).load(name)


@pytest.mark.more
@pytest.mark.parametrize(("narrow", "halving", "shortest", "greedy"), [(4, False, 4, 4), (3, True, 4, 6)])
def test_minimum_and_greedy_covers_of_planted_data_have_the_expected_sizes(
    code, narrow, halving, shortest, greedy
):
    planted = code("which_cover.py:planted")
    sizes = {"vocab_size": 20, "broad": 2, "narrow": narrow, "halving": halving, "sequences": 56}
    corpus = planted(jax.random.key(0), **sizes)
    ids, mask = (np.asarray(x) for x in ja.models.reference.padded_sequences(corpus))
    for row, real, y in zip(ids, mask, np.asarray(corpus.targets), strict=True):
        own = [s for s in row[real] if s < 2 * (2 + narrow)]
        assert sorted(s < 4 for s in own) == [False, True]
        assert all(s % 2 == (y + 1) // 2 for s in own)
    alpha = ja.data.average_signed_frequency(corpus)
    np.testing.assert_allclose(alpha[2 * (2 + narrow) :], 0, atol=1e-9)
    found = code("cover.py:minimum_cover")(corpus)
    assert found.size == found.bound == shortest
    assert code("cover.py:greedy_cover")(corpus).size == greedy


def test_agreement_with_the_alpha_order_matches_a_manual_calculation(code):
    """α is 1/4, -1/8, -1/8, 0: both lead by size; -α puts token 3 (α = 0) above token 0."""
    corpus = ja.data.from_sequences([[0, 3], [1, 3], [0, 3], [2, 3]], [1, -1, 1, -1], vocab_size=4)
    scores = np.array(
        [[2.0, 3.0, 4.0, 0.0], [0.0, 3.0, 3.0, 2.0], [2.0, 1.0, 1.0, 1.5], [0.0, 0.0, 0.0, 9.0]]
    )
    found = code("which_cover.py:follows")(scores, corpus)
    np.testing.assert_allclose(found["follows_size_of_alpha"], [1, 0.5, 0.5, 0])
    np.testing.assert_allclose(found["follows_alpha"], [0.5, 1, 1, 0.5])
    assert found["winner"].tolist() == [0, -1, 1, 0]


@pytest.mark.more
def test_cover_measures_are_computed_for_a_short_run(tmp_path):
    only = """blocks={ "one relevant" = {} }"""
    overrides = ["seeds=2", "phases.all.until_log_loss=-100", only]
    item = books.read_book(FOLDER.parent).item("which_cover")
    results = item.study("full", overrides=overrides).run(tmp_path / "run", quiet=True)
    assert results.failures.empty
    found, tables = item.measure({"study": results})
    shares = {finding.id: finding.value for finding in found}
    assert shares["covers"] == 1
    assert shares["not_smaller"] == 1
    assert len(tables["Every cell"]) == 7
