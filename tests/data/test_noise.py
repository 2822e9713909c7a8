import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja


def draw(classes):
    labels = np.arange(12_000) % classes
    tokens = (np.arange(12_000) % 7)[:, None].tolist()
    signs = (2 * labels - 1 if classes == 2 else labels).tolist()
    return ja.data.from_sequences(tokens, signs, vocab_size=7, num_classes=classes)


@pytest.mark.parametrize("classes", [2, 3])
def test_no_noise_changes_no_bit(classes):
    corpus = draw(classes)
    again = ja.data.flip_labels(jax.random.key(1), corpus, 0.0)
    for left, right in zip(jax.tree.leaves(corpus), jax.tree.leaves(again), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("noise", [0.05, 0.3, 0.5])
def test_the_share_of_other_labels_is_that_of_a_binomial(classes, noise):
    corpus = draw(classes)
    noisy = ja.data.flip_labels(jax.random.key(2), corpus, noise)
    before, after = np.asarray(corpus.class_index), np.asarray(noisy.class_index)
    assert set(np.asarray(noisy.targets).tolist()) == set(np.asarray(corpus.targets).tolist())
    number = 12_000 // classes
    for k in range(classes):
        for other in range(classes):
            expected = 1 - noise if k == other else noise / (classes - 1)
            share = (after[before == k] == other).mean()
            # Of the 87 shares of all cases together, one passes 4.5 deviations by chance in 1,700 runs.
            assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / number)
    for part in ("bags", "occurrences", "occurrence_to_bag", "lengths"):
        assert getattr(corpus, part) is getattr(noisy, part)


def test_certain_noise_leaves_no_label():
    corpus = draw(3)
    noisy = ja.data.flip_labels(jax.random.key(2), corpus, 1.0)
    assert (noisy.targets != corpus.targets).all()


def test_more_noise_changes_the_labels_that_less_noise_changed_and_lanes_may_differ():
    corpus = draw(3)
    noise = jnp.array([0.0, 0.1, 0.4])
    lanes = jax.vmap(lambda x: ja.data.flip_labels(jax.random.key(3), corpus, x).targets)(noise)
    for row, x in zip(lanes, (0.0, 0.1, 0.4), strict=True):
        alone = ja.data.flip_labels(jax.random.key(3), corpus, x).targets
        np.testing.assert_array_equal(row, alone)
    changed = np.asarray(lanes != corpus.targets)
    assert (changed[1] <= changed[2]).all()
