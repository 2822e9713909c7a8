"""Shortest covers, compared with a search over all orders of tokens and with small examples."""

from itertools import permutations
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.study.import_paths import ImportPaths

FOLDER = Path(__file__).parents[2] / "sweeps" / "findings" / "which_cover"
greedy_cover, minimum_cover = (
    ImportPaths(FOLDER).load(f"cover.py:{name}") for name in ("greedy_cover", "minimum_cover")
)
TOKENS = 6


def made(sequences, labels, vocab_size=TOKENS, num_classes=2):
    return ja.data.from_sequences(sequences, labels, vocab_size=vocab_size, num_classes=num_classes)


def by_all_orders(sequences, labels):
    """Return the smallest number of top tokens over all orders of scores in which each has one label."""
    sizes = []
    for order in permutations(range(TOKENS)):
        rank = {s: k for k, s in enumerate(order)}
        top = [min(X, key=rank.__getitem__) for X in sequences]
        if len(set(zip(top, labels, strict=True))) == len(set(top)):
            sizes.append(len(set(top)))
    return min(sizes, default=None)


def decides(cover, sequences, labels):
    """Return True if the first token of the list in every sequence has the label of the sequence."""
    said = dict(zip(cover.tokens.tolist(), cover.labels.tolist(), strict=True))
    firsts = [next((s for s in said if s in X), None) for X in sequences]
    return [said.get(s) for s in firsts] == list(labels)


@pytest.mark.parametrize("classes", [2, 3])
def test_minimum_cover_matches_an_exhaustive_search_over_token_orders(rng, classes):
    seen = set()
    for _ in range(30):
        n, length = rng.integers(3, 12), rng.integers(1, 5)
        sequences = [rng.integers(0, TOKENS, length).tolist() for _ in range(n)]
        # Labels from a list of tokens, some of them changed: with and without a cover.
        order, says = rng.permutation(TOKENS), rng.integers(0, classes, TOKENS)
        said = [says[next(s for s in order if s in X)] for X in sequences]
        labels = np.where(rng.random(n) < 0.1, rng.integers(0, classes, n), said)
        labels = (2 * labels - 1 if classes == 2 else labels).tolist()
        corpus, expected = made(sequences, labels, num_classes=classes), by_all_orders(sequences, labels)
        found, greedy = minimum_cover(corpus), greedy_cover(corpus)
        if expected is None:
            assert found is None
            assert greedy is None
        else:
            assert found.size == found.bound == expected <= greedy.size
            assert decides(found, sequences, labels)
            assert decides(greedy, sequences, labels)
        seen.add((expected, expected is not None and greedy.size > expected))
    assert len(seen) > 3
    assert (None, False) in seen


def test_order_of_tokens_in_a_cover_matters():
    """Token 0 alone decides label 1, but only below token 1, with which it occurs under label -1."""
    sequences, labels = [[0], [0, 2], [0, 1], [1, 3]], [1, 1, -1, -1]
    found = minimum_cover(made(sequences, labels))
    assert (found.tokens.tolist(), found.labels.tolist()) == ([1, 0], [-1, 1])


def test_a_cover_contains_a_token_that_occurs_in_only_one_of_two_sequences():
    """Hitting sets of either label are {2} and {3}, but no order puts both on top of the common sequence."""
    sequences, labels = [[0, 2, 3], [1, 2, 3]], [1, -1]
    found = minimum_cover(made(sequences, labels))
    assert found.size == 2
    assert {0, 1} & set(found.tokens.tolist())


def test_greedy_cover_can_exceed_the_minimum():
    """In two rows of seven, greedy selects the columns of eight, four and two."""
    column = [0, 0, 0, 0, 1, 1, 2]
    sequences = [[3 + row, column[k]] for row in (0, 1) for k in range(7)]
    corpus = made([*sequences, [5]], [1] * 14 + [-1])
    assert sorted(minimum_cover(corpus).tokens.tolist()) == [3, 4, 5]
    assert greedy_cover(corpus).size == 4


def test_allowing_irrelevant_tokens_can_shorten_the_cover():
    corpus = ja.data.assumption1(jax.random.key(0), vocab_size=12, relevant=10, length=4, sequences=40)
    found = minimum_cover(corpus)
    relevant = found.tokens < 10
    assert found.size == found.bound == 7
    assert relevant.sum() == 5
    assert len(set(found.labels[relevant].tolist())) == 1


def test_equal_sequences_with_different_labels_have_no_cover():
    corpus = made([[0, 1], [1, 0, 0]], [1, -1])
    assert minimum_cover(corpus) is None
    assert greedy_cover(corpus) is None


def test_invalid_time_limit_is_rejected():
    with pytest.raises(ja.InputError, match=r"time_limit: 0\.0; give a positive number of seconds"):
        minimum_cover(made([[0]], [1]), time_limit=0.0)
