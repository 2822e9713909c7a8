"""Factual recall: relations are learned first."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.more


def test_relations_are_learned_before_facts(run):
    """As in the paper, relations are known before any answer, and the initial loss is log K."""
    overrides = ("phases.train.steps=400", "phases.train.fresh=256", "data.test_sequences=512")
    at = run("factual_recall", "blocks=null", "seeds=1", "probes.every=400", *overrides)
    np.testing.assert_allclose(at("test_loss", 0), math.log(32), rtol=1e-4)
    assert at("relation_known", 0) < 0.5
    assert at("relation_known") == 1
    assert at("subject_known") < 0.4
    assert at("test_accuracy") < 0.4


def test_target_is_determined_by_subject_and_relation(read):
    data = read("factual_recall").dataset(0).train
    for ids, answer in zip(np.asarray(data.ids), np.asarray(data.targets), strict=True):
        (subject,) = (s for s in ids if s < 16)
        (relation,) = (s - 16 for s in ids if 16 <= s < 20)
        assert ids[-1] == 40
        assert answer == subject // 2 + 8 * relation


def test_attention_matches_a_loop_over_positions(read, code):
    """Outputs by a loop over positions, with and without a softmax."""
    data, rng = read("factual_recall", "data.sequences=5").dataset(1).train, np.random.default_rng(0)
    a, U = np.float32(rng.normal(size=41)), np.float32(rng.normal(size=(41, 32)))
    for softmax in (False, True):
        model = code("factual_recall", "LinearAttention")(softmax=softmax)
        ours = model.outputs(code("factual_recall", "Params")(a, U), data)
        for ids, logits in zip(np.asarray(data.ids), ours, strict=True):
            weight = np.exp(a[ids]) / np.exp(a[ids]).sum() if softmax else a[ids]
            total = sum(w * U[token] for w, token in zip(weight, ids, strict=True))
            np.testing.assert_allclose(logits, total, rtol=1e-4, atol=1e-5)
