"""Softmax head trained on a teacher with a peaked output distribution, as in the paper's public code."""

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors

VOCABULARY, DIM = 128, 32


def teacher(key: Array, task_key: Array, *, temperature: float, sequences: int) -> Vectors:
    """Sample inputs of norm √d. The targets are the log-probabilities of a random linear teacher.

    The logits of the teacher are divided by `temperature`. All data of one seed have the same teacher.
    """
    X = jax.random.normal(key, (sequences, DIM))
    X = X / jnp.sqrt(jnp.mean(X**2, axis=1, keepdims=True))
    W = jax.random.uniform(task_key, (VOCABULARY, DIM), minval=-1, maxval=1) / jnp.sqrt(DIM)
    return Vectors(targets=jax.nn.log_softmax(X @ W.T / temperature), X=X[:, None])


class Head(ja.Model[Vectors]):
    """Linear head with logits W x, where W is initialised to 0."""

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return W = 0."""
        return {"W": jnp.zeros((VOCABULARY, DIM), dtype)}

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute the logits as an (n, 128) array."""
        return data.X[:, 0] @ params["W"].T


def divergence(outputs: Array, log_probabilities: Array) -> Array:
    """Compute KL(teacher‖student) for each example as an (n,) array."""
    away = log_probabilities - jax.nn.log_softmax(outputs)
    return jnp.sum(jnp.exp(log_probabilities) * away, axis=-1)
