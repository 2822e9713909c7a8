"""Fixtures of probe contexts for any model, corpus and loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.base import Task
from jaxattn.data.corpus import shapes


def moving(train):
    return ja.dynamics.Descent(name="moving", train=train, optimizer="sgd", step_size=1.0, steps=1)


@pytest.fixture
def corpus(rng):
    """Return a function that makes a corpus of K classes: repeated tokens, a bag of two rows."""

    def make(classes=2):
        sequences = [[3], [3, 3], [0, 0, 1], [*range(11), *range(11), *range(11), 4]]
        sequences += [rng.integers(0, 11, length).tolist() for length in (2, 4, 8, 16)]
        drawn = rng.integers(0, classes, len(sequences))
        labels = (2 * drawn - 1 if classes == 2 else drawn).tolist()
        return ja.data.from_sequences(sequences, labels, vocab_size=12, num_classes=classes)

    return make


@pytest.fixture
def show():
    """Return a function that builds a probe context."""

    def make(model, params, corpus, train=("E", "p", "v"), per_sequence=ja.losses.DEFAULT, memory=None):
        return ja.probes.ProbeContext(
            params, Task(model, per_sequence, ja.data.Splits(corpus)), moving(train), memory
        )

    return make


@pytest.fixture
def measure():
    """Return a function that measures in one compiled program, as a run does."""

    def call(probe, shown):
        def compute(params, data, memory):
            task = Task(shown.model, shown.loss, data)
            return probe.measure(ja.probes.ProbeContext(params, task, shown.phase, memory))

        return jax.jit(compute)(shown.params, shown.data, shown.memory)

    return call


@pytest.fixture
def draw():
    """Return a function that samples parameters with NumPy, because JAX takes long to compile."""

    def make(model, corpus, seed=0):
        like = jax.eval_shape(lambda: model.init(jax.random.key(0), corpus, dtype=jnp.float64))
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / np.sqrt(like.E.shape[1])), like)

    return make


@pytest.fixture
def applies():
    """Return a function that checks whether a probe applies to a phase, or to a descent."""

    def tell(probe, model, loss, phase, data=None):
        data = shapes(vocab_size=3) if data is None else data
        phase = moving(phase) if isinstance(phase, tuple) else phase
        return probe.skip_reason(Task(model, loss, ja.data.Splits(data)), phase) is None

    return tell
