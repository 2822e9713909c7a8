"""Fixtures of the descent tests: a small corpus, its reference loss by position, and plain Descent phases."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics import Descent, Task

VOCAB, DIM, LENGTH, SEQUENCES = 12, 8, 5, 40


class Problem(NamedTuple):
    """Parameters in float64, a task with validation data, and token ids (n, T) of the training data."""

    params: Any
    task: Task
    ids: np.ndarray

    @property
    def corpus(self):
        return self.task.data.train


def _draw(rng):
    """Return token ids and labels; in half of the positions, the parity of the token is the label."""
    labels = np.where(np.arange(SEQUENCES) % 2, 1, -1)
    ids = rng.integers(0, VOCAB, (SEQUENCES, LENGTH))
    agrees = ids - ids % 2 + (labels[:, None] > 0)
    ids = np.where(rng.random(ids.shape) < 0.5, agrees, ids)
    return ids, ja.data.from_sequences(ids.tolist(), labels.tolist(), vocab_size=VOCAB)


@pytest.fixture(scope="session")
def problem():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        (ids, train), (_, validation) = _draw(rng), _draw(rng)
        shapes = {"E": (VOCAB, DIM), "p": DIM, "v": DIM}
        arrays = {name: jnp.asarray(rng.normal(size=s) / DIM**0.5) for name, s in shapes.items()}
        task = Task(data=ja.data.Splits(train, validation=validation))
        return Problem(ja.models.one_layer.Params(**arrays), task, ids)


@pytest.fixture(scope="session")
def by_position(problem):
    """Return the logits of sequences with the given token ids, with a softmax over positions."""

    def outputs(params, ids):
        tokens = params.E[ids]
        attention = jax.nn.softmax(tokens @ params.p, axis=1)
        return (attention * (tokens @ params.v)).sum(axis=1)

    return outputs


@pytest.fixture(scope="session")
def plain_gradient(problem, by_position):
    """Return a function (params, examples) -> loss and gradients of the mean logistic loss by position."""
    labels = np.asarray(problem.corpus.targets)

    @jax.jit
    @jax.value_and_grad
    def loss(params, ids, labels):
        return jnp.log1p(jnp.exp(-labels * by_position(params, ids))).mean()

    return lambda params, examples: loss(params, problem.ids[examples], labels[examples])


@pytest.fixture(scope="session")
def descent():
    """Make a phase; the step size is an array, so phases of different step sizes share a program."""

    def make(**changes):
        settings = {"name": "q", "train": ("E", "p", "v"), "optimizer": "sgd", "step_size": 0.5, "steps": 60}
        settings |= changes
        return Descent(**settings | {"step_size": jnp.asarray(settings["step_size"], float)})

    return make
