"""AND of two words: labels and outputs match loops, and values are learned first."""

import numpy as np
import pytest

pytestmark = pytest.mark.more


@pytest.mark.parametrize("rule", ["and", "xor"])
def test_labels_follow_the_logical_rule(read, rule):
    data = read("and_of_words", "axes=null", f"data.rule={rule}").dataset(1).train
    counts = {}
    for ids, label in zip(np.asarray(data.ids), np.asarray(data.targets), strict=True):
        first, second = 0 in ids, 1 in ids
        assert 2 in ids
        assert label == (1 if (first and second if rule == "and" else first != second) else -1)
        counts[first, second] = counts.get((first, second), 0) + 1
    assert counts == {(True, True): 30, (True, False): 10, (False, True): 10, (False, False): 10}


def test_outputs_match_a_loop(read, code):
    study = read("and_of_words", "axes=null", "data.sequences=6")
    data, rng = study.dataset(0).train, np.random.default_rng(0)
    K, Q, V = rng.normal(size=(3, 8, 64)) / 4
    W, a = rng.normal(size=(16, 8)) / 4, rng.choice([-1.0, 1.0], 16)
    params = code("and_of_words", "Params")(*(np.float32(x) for x in (K, Q, V, W, a)))
    ours = code("and_of_words", "Transformer")().outputs(params, data)
    for ids, f in zip(np.asarray(data.ids), ours, strict=True):
        X, total = np.eye(64)[:, ids], 0.0
        for x in X.T:
            weight = np.exp(X.T @ K.T @ Q @ x / np.sqrt(8))
            total += a @ W @ V @ X @ (weight / weight.sum())
        np.testing.assert_allclose(f, total, rtol=1e-4, atol=1e-5)


def test_values_are_learned_before_attention(run):
    """All sentences are correct within 400 steps; only the values of the two words are positive then."""
    at = run("and_of_words", "axes=null", "seeds=3", "phases.train.steps=400")
    assert (at("train_accuracy") == 1).all()
    assert (at("value_1") > 0).all()
    assert (at("value_2") > 0).all()
    assert (at("value_3") < 0).all()
    assert (at("moved") < 0.05).all()
