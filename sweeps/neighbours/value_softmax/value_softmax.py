"""Value-softmax on one sequence that contains each token once.

With E = I, the entries of p are the scores, and the entries of v are the values.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxattn as ja


def one_sequence(*, length: int = 8) -> ja.data.Corpus:
    """Return one sequence of `length` different tokens with label +1."""
    return ja.data.from_sequences([list(range(length))], labels=[1], vocab_size=length)


def identity(key: Array, drawn: Array) -> Array:
    """Return the identity matrix as the initial E."""
    return jnp.eye(*drawn.shape, dtype=drawn.dtype)


def published(key: Array, drawn: Array) -> Array:
    """Return initial values Vᵀβ, sampled with random seed 123 of NumPy.

    V has entries 0.1 · N(0, 1), and β is uniform on the unit sphere.
    """
    length = len(drawn)
    V, _, beta = np.split(np.random.RandomState(123).randn(length**2 + 2 * length), [length**2, -length])
    return jnp.asarray(0.1 * V.reshape(length, length).T @ beta / np.linalg.norm(beta), drawn.dtype)


def normal(key: Array, drawn: Array, *, scale: float = 0.1) -> Array:
    """Sample initial values from N(0, scale²), the distribution of Vᵀβ."""
    return scale * jax.random.normal(key, drawn.shape, drawn.dtype)


class Polarisation(ja.Probe):
    """Largest attention, attention on all other tokens, entropy, and direction of p."""

    def measure(self, seen: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed.

        The max-margin direction is known in closed form: p_mm = e_k - 1/T for the top token k.
        """
        scores, values = seen.scores_and_values
        log_q, top = jax.nn.log_softmax(scores), scores.argmax()
        limit = jax.nn.one_hot(top, len(scores), dtype=scores.dtype) - 1 / len(scores)
        return {
            "largest_attention": jnp.exp(log_q[top]),
            "attention_left": jnp.exp(log_q).at[top].set(0).sum(),
            "entropy": -(jnp.exp(log_q) * log_q).sum(),
            "p_one_minus_cosine": ja.theory.one_minus_cosine(scores, limit),
            "top_score": top.astype(scores.dtype),
            "top_value": values.argmax().astype(scores.dtype),
        }
