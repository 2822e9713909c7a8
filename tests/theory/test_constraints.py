import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import Selection, constraints, selection_from_tokens
from jaxattn.theory.constraints import find_cycle


@pytest.fixture
def arbitrary(rng):
    """Corpora with arbitrary selections of at least one token in every sequence."""
    made = []
    for vocab, sequences in [(6, 3), (6, 8), (12, 5), (30, 12)] * 3:
        lists = [rng.integers(0, vocab, rng.integers(1, 7)).tolist() for _ in range(sequences)]
        corpus = ja.data.from_sequences(lists, [1] * sequences, vocab_size=vocab)
        present = np.asarray(corpus.bags.count) > 0
        mask = present & (rng.uniform(size=present.shape) < 0.3)
        mask[np.arange(sequences), rng.integers(0, present.sum(axis=1))] = True
        made.append((corpus, Selection(mask)))
    return made


def tie_classes(vocab, lists):
    """Return the smallest token of each token's class, by merging until nothing changes."""
    leader = list(range(vocab))
    changed = True
    while changed:
        changed = False
        for chosen in lists:
            smallest = min(leader[s] for s in chosen)
            for s in chosen:
                changed |= leader[s] != smallest
                leader = [smallest if x == leader[s] else x for x in leader]
    return leader


def has_circle(edges):
    """Remove tokens that outrank no other token until none or a cycle is left."""
    edges = set(edges)
    while edges:
        above = {a for a, _ in edges}
        fewer = {(a, b) for a, b in edges if b in above}
        if fewer == edges:
            return True
        edges = fewer
    return False


@pytest.mark.more
def test_constraints_match_a_loop(arbitrary, instances, loops):
    bags, selected = loops
    for corpus, chosen in arbitrary + [(x.corpus, x.selection) for x in instances[::5]]:
        lists = list(zip(bags(corpus), selected(corpus, chosen), strict=True))
        leader = tie_classes(corpus.vocab_size, [chosen for _, chosen in lists])
        allowed = {(s, t) for tokens, best in lists for s in best for t in tokens if t not in best}
        found = constraints(corpus, chosen)
        np.testing.assert_array_equal(found.leader, leader)
        # Every pair occurs in a sequence, and each class of pairs exactly once.
        pairs = list(zip(found.better.tolist(), found.worse.tolist(), strict=True))
        assert set(pairs) <= allowed
        keys = [(leader[s], leader[t]) for s, t in pairs]
        assert keys == sorted({(leader[s], leader[t]) for s, t in allowed})
        assert found.ties.tolist() == [[x, s] for s, x in enumerate(leader) if x != s]


def test_cycle_is_found_if_and_only_if_there_is_one(arbitrary):
    answers = []
    for corpus, chosen in arbitrary:
        found = constraints(corpus, chosen)
        leader = found.leader
        edges = list(zip(leader[found.better].tolist(), leader[found.worse].tolist(), strict=True))
        around = find_cycle(found)
        assert (len(around) > 0) == has_circle(edges)
        # Each token of the cycle outranks the next one.
        assert sorted(edges[k][0] for k in around) == sorted(edges[k][1] for k in around)
        answers.append(len(around))
    assert 0 in answers
    assert max(answers) > 1


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cycle_of_known_length_is_found(length):
    """A cycle of sequences (k, k+1) that select their first token, and chains outside of the cycle."""
    around = [[k, (k + 1) % length] for k in range(length)] if length > 1 else []
    lists = [*around, [5, 6], [6, 7], [0, 8]]
    corpus = ja.data.from_sequences(lists, [1] * len(lists), vocab_size=9)
    first = np.array([row[0] for row in lists])
    mask = np.asarray(corpus.bags.index) == first[:, None]
    assert len(find_cycle(constraints(corpus, Selection(mask)))) == (length if length > 1 else 0)


def test_two_tokens_that_are_tied_and_also_ordered_form_a_cycle():
    """Tokens 0 and 1 tie in one sequence, and 0 must outrank 1 in another."""
    corpus = ja.data.from_sequences([[0, 1], [0, 1]], [1, 1], vocab_size=2)
    found = constraints(corpus, Selection(np.array([[True, True], [True, False]])))
    assert found.ties.tolist() == [[0, 1]]
    assert find_cycle(found).tolist() == [0]


def test_repeated_sequences_and_tokens_add_no_constraints():
    once = ja.data.from_sequences([[0, 1, 2], [1, 3]], [1, -1], vocab_size=4)
    often = ja.data.from_sequences([[0, 1, 2], [3, 3, 1], [2, 1, 0, 0], [1, 3]], [1, -1, -1, 1], vocab_size=4)
    tokens = np.array([True, False, False, True])
    for one, other in zip(
        *(constraints(c, selection_from_tokens(tokens, c)) for c in (once, often)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_equivalent_pairs_keep_the_largest_required_margin():
    """Token 0 outranks 1 in both sequences, and 2, which has no tie."""
    corpus = ja.data.from_sequences([[0, 1], [0, 1, 2]], [1, -1], vocab_size=3)
    chosen = selection_from_tokens(np.array([True, False, False]), corpus)
    for required in (np.array([[9, 0.2, 9], [9, 0.7, 0]]), np.array([[9, 0.7, 9], [9, 0.2, 0]])):
        found = constraints(corpus, chosen, required)
        assert list(zip(found.better, found.worse, found.required, strict=True)) == [(0, 1, 0.7), (0, 2, 0.0)]
    np.testing.assert_array_equal(constraints(corpus, chosen).required, 1)


def test_a_cycle_without_required_margins_is_feasible():
    corpus = ja.data.from_sequences([[0, 1], [1, 0]], [1, 1], vocab_size=2)
    first = Selection(np.asarray(corpus.bags.index) == np.array([[0], [1]]))
    for required, size in ((np.zeros((2, 2)), 0), (np.array([[0, 0], [0.1, 0]]), 2)):
        assert len(find_cycle(constraints(corpus, first, required))) == size


def test_invalid_selections_are_rejected():
    corpus = ja.data.from_sequences([[0, 1], [2, 3]], [1, -1], vocab_size=4)
    with pytest.raises(ja.InputError, match="sequence 1 has no selected token"):
        constraints(corpus, selection_from_tokens(np.array([True, False, False, False]), corpus))
    with pytest.raises(ja.InputError, match="recompute the selection for this corpus"):
        constraints(corpus, Selection(np.ones((3, 2), bool)))


def test_distinct_tokens_follow_the_order_of_the_bags(ragged, loops):
    bags, _ = loops
    corpus = ragged(2)
    present, sequence, token = ja.theory.distinct_tokens(corpus)
    expected = [(x, s) for x, tokens in enumerate(bags(corpus)) for s in tokens]
    assert sorted(zip(sequence.tolist(), token.tolist(), strict=True)) == expected
    counts = np.asarray(corpus.bags.count)[present]
    totals = np.bincount(sequence, counts, corpus.num_examples)
    np.testing.assert_array_equal(totals, np.asarray(corpus.lengths))
