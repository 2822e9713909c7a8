"""Fixtures of the dynamics tests: a corpus of edge cases, its reference loss, and tasks of phases."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.data import Splits, token_statistics

# Tests import `dynamics.shapes`.
sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture
def corpus(rng):
    """Return sequences of one token, with repeated tokens and with two rows; one token never occurs."""
    sequences = [[3], [3, 3], [0, 1], [0, 0, 1], [2, 2, 2, 5, 7], [*range(40), 4, 4]]
    sequences += [rng.integers(0, 40, length).tolist() for length in (2, 4, 8, 8, 8, 16)]
    labels = [1, -1] * 6
    return ja.data.from_sequences(sequences, labels, vocab_size=44)


@pytest.fixture
def textbook():
    """Return the reference loss of scores and values, with a softmax over positions in a loop."""

    def loss(corpus, scores, values):
        ids, mask = ja.models.reference.padded_sequences(corpus)
        q = jax.nn.softmax(jnp.where(mask, scores[ids], -jnp.inf), axis=1)
        return jnp.log1p(jnp.exp(-corpus.targets * (q * values[ids]).sum(axis=1))).mean()

    return loss


@pytest.fixture
def task(ragged, x64):
    train = ragged(2)
    return Task(ja.models.OneLayer(dim=6), ja.losses.Classification(), Splits(train, token_statistics(train)))


@pytest.fixture
def params(task):
    return task.model.init(jax.random.key(1), task.data.train, dtype=jnp.float64)
