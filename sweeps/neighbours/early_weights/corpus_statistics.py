"""Comparison of trained weights with their leading terms, which are matrices of corpus statistics."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

COMPARED = ("output", "value", "score")


def statistics(data: Sequences, E: Array) -> dict[str, Array]:
    """Compute the leading terms of O, V and W as word-by-word matrices, up to powers of the step size.

    The terms are M B, M Φᵀ Bᵀ M and M Q M, where M = E Eᵀ, B = mean(x rᵀ) and Φ = mean(r x̄ᵀ). Here x are the
    one-hot words, x̄ their causal averages, and r the residuals, that is, the one-hot targets minus
    1/(number of words). Q is the mean gradient with respect to the scores, with M Φᵀ Bᵀ M B in place of V O.
    """
    n, T = data.ids.shape
    words, M = data.vocab_size, E @ E.T
    x = jax.nn.one_hot(data.ids, words, dtype=E.dtype)
    r = jax.nn.one_hot(data.targets, words, dtype=E.dtype) - 1 / words
    average = jnp.cumsum(x, axis=1) / jnp.arange(1, T + 1)[:, None]
    B = jnp.einsum("nti,ntj->ij", x, r) / (n * T)
    context = jnp.einsum("nti,ntj->ij", r, average) / (n * T)
    G = M @ context.T @ B.T @ M @ B
    each = jnp.einsum("nsw,ntw->nts", G[data.ids], r)
    uniform = data.causal / jnp.arange(1, T + 1)[:, None]
    pull = uniform * (each - (uniform * each).sum(axis=2, keepdims=True))
    Q = jnp.zeros((words, words), E.dtype).at[data.ids[:, :, None], data.ids[:, None, :]].add(pull)
    return {"output": M @ B, "value": M @ context.T @ B.T @ M, "score": M @ Q @ M / (n * T)}


def between_words(params: dict[str, Array]) -> dict[str, Array]:
    """Return the weights as matrices between words: E O, and E V Eᵀ and E W Eᵀ for each of the L layers.

    The array for O has shape (1, words, words). The arrays for V and W have shape (L, words, words).
    """
    E = params["E"]
    return {"output": (E @ params["O"])[None], "value": E @ params["V"] @ E.T, "score": E @ params["W"] @ E.T}


def without_frequencies(matrix: Array, data: Sequences) -> Array:
    """Return the matrix without its component along mean(x) mean(r)ᵀ.

    This component depends only on word frequencies.
    """
    x = jax.nn.one_hot(data.ids, data.vocab_size, dtype=matrix.dtype).mean(axis=(0, 1))
    r = jax.nn.one_hot(data.targets, data.vocab_size, dtype=matrix.dtype).mean(axis=(0, 1)) - 1 / len(x)
    part = jnp.outer(x, r)
    return matrix - jnp.vdot(matrix, part) / jnp.vdot(part, part) * part


def cosine(X: Array, Y: Array) -> Array:
    """Compute the cosine between two arrays, or 0 if one of them is 0."""
    norms = jnp.linalg.norm(X) * jnp.linalg.norm(Y)
    return jnp.vdot(X, Y) / jnp.where(norms == 0, 1, norms)


class ClosedForm(ja.Probe):
    """Comparison of trained weights with their leading terms, and of these terms with those for E = I."""

    labels: ClassVar = {f"cosine_{name}": f"cosine with the closed form: {name} matrix" for name in COMPARED}
    scales: ClassVar = {f"cosine_{name}": ja.probes.Scale(high=1) for name in COMPARED}

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its training data."""
        data, E = context.data.train, context.params["E"]
        terms, infinite = statistics(data, E), statistics(data, jnp.eye(len(E), dtype=E.dtype))
        found = {}
        for name, ours in between_words(context.params).items():
            term = jnp.broadcast_to(terms[name], ours.shape)
            found[f"cosine_{name}"] = cosine(ours, term)
            found[f"factor_{name}"] = jnp.vdot(ours, term) / (term**2).sum()
            gap = jnp.linalg.norm(terms[name] - infinite[name])
            found[f"width_{name}"] = gap / jnp.linalg.norm(infinite[name])
        bigrams = [
            without_frequencies(x, data)
            for x in (between_words(context.params)["output"][0], terms["output"])
        ]
        return found | {"cosine_bigrams": cosine(*bigrams)}


def width_law(words: int, dim: int) -> float:
    """Return √((words + 1)/dim), the root mean square of ‖(M - I) B‖/‖B‖ for M = E Eᵀ and normal E."""
    return ((words + 1) / dim) ** 0.5
