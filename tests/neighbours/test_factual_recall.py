"""Factual recall: relations first."""

import math

import numpy as np


def test_facts_are_recalled_after_relations(run):
    """The relation is known when no answer is: the order of the paper, and log K at the start."""
    at = run("factual_recall", "phases.train.steps=400", "phases.train.fresh=256", "data.test_sequences=512")
    np.testing.assert_allclose(at("test_loss", 0), math.log(32), rtol=1e-4)
    assert at("relation_known", 0) < 0.5
    assert at("relation_known") == 1
    assert at("subject_known") < 0.3
    assert at("test_accuracy") < 0.3


def test_a_fact_is_its_subject_and_relation(read):
    """Answers by a loop over sequences of tokens."""
    data = read("factual_recall").dataset(0).train
    for ids, answer in zip(np.asarray(data.ids), np.asarray(data.targets), strict=True):
        (subject,) = (s for s in ids if s < 16)
        (relation,) = (s - 16 for s in ids if 16 <= s < 20)
        assert ids[-1] == 40
        assert answer == subject // 2 + 8 * relation
