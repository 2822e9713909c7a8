"""What a probe is shown, for any model, corpus and loss."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jaxattn as ja
from jaxattn.dynamics import loss_and_gradients


@pytest.fixture
def corpus(rng):
    """Make a corpus of K classes: repeated tokens, a bag of two rows, a token that occurs nowhere."""

    def make(classes=2):
        sequences = [[3], [3, 3], [0, 0, 1], [*range(11), *range(11), *range(11), 4]]
        sequences += [rng.integers(0, 11, length).tolist() for length in (2, 4, 8, 16)]
        drawn = rng.integers(0, classes, len(sequences))
        labels = (2 * drawn - 1 if classes == 2 else drawn).tolist()
        return ja.data.from_sequences(sequences, labels, vocab_size=12, num_classes=classes)

    return make


@pytest.fixture
def show():
    """Put together what a probe sees."""

    def make(model, params, corpus, train=("E", "p", "v"), per_sequence=ja.losses.DEFAULT, memory=None):
        return SimpleNamespace(
            params=params,
            model=model,
            corpora=SimpleNamespace(train=corpus),
            scores_and_values=model.scores_and_values(params),
            loss_and_gradients=loss_and_gradients(
                params, corpus, train, model.logits, per_sequence=per_sequence
            ),
            per_sequence=per_sequence,
            train=train,
            memory=memory,
        )

    return make


@pytest.fixture
def draw():
    """Draw a model's parameters for a corpus, in float64."""

    def make(model, corpus, seed=0):
        return model.init(
            jax.random.key(seed),
            vocab_size=corpus.vocab_size,
            num_classes=corpus.num_classes,
            dtype=jnp.float64,
        )

    return make
