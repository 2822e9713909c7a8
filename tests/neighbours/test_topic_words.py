"""Topic words: the norm of an embedding is a function of its score."""

import numpy as np
import pytest

from jaxattn.lab.study import seed

pytestmark = pytest.mark.more


def loop(index, count, targets, E, q, W, steps, step_size):
    """Descend on keys and embeddings in NumPy, with a matrix of counts for the sentences."""
    counts = np.zeros((len(targets), len(E)))
    for row, (tokens, times) in enumerate(zip(index, count, strict=True)):
        np.add.at(counts[row], tokens, times)
    K = np.zeros_like(E)
    for _ in range(steps):
        weight = counts * np.exp(K @ q)
        a = weight / weight.sum(axis=1, keepdims=True)
        logits = a @ E @ W
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = p / p.sum(axis=1, keepdims=True) - np.eye(W.shape[1])[targets]
        back = error @ W.T / len(targets)
        spread = a * (back @ E.T)
        slope = (spread - a * spread.sum(axis=1, keepdims=True)).sum(axis=0)
        K, E = K - step_size * np.outer(slope, q), E - step_size * a.T @ back
    return K @ q, np.linalg.norm(E, axis=1) * np.linalg.norm(q)


def test_scores_and_norms_match_a_loop_and_the_published_relation(run, read):
    """Scores and norms match a loop; ‖e‖‖q‖ is the published function of the score."""
    sizes = ("data.others=300", "data.sequences=150", "data.test_sequences=100", "blocks.trained head=null")
    overrides = ("seeds=1", *sizes, "phases.train.steps=150", "phases.train.step_size=2.0")
    at, study = run("topic_words", *overrides), read("topic_words", *overrides)
    drawn = study.dataset(0)
    params = seed.initial_params(study.cells[0].setting, drawn, seed.keys(0)[1], ())
    bags, targets = drawn.train.bags, drawn.train.targets
    assert len(bags.index) == len(targets)
    facts = (np.asarray(x) for x in (bags.index, bags.count, targets, params.E, params.q, params.W))
    scores, lengths = loop(*facts, steps=150, step_size=2.0)
    np.testing.assert_allclose(at("topic_score"), scores[:8].mean(), rtol=1e-3)
    np.testing.assert_allclose(at("topic_norm"), lengths[:8].mean(), rtol=1e-3)
    assert at("topic_score") > 0.5
    assert at("off_by") < 0.05
    assert at("test_accuracy") > 0.95
