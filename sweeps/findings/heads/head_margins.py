"""Margins of attention heads relative to the certified maximum margin, compared with null baselines."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformer import Layer

import jaxattn as ja
from jaxattn.lab.results.correlations import Floats

MarginSpace = Literal["query", "frobenius", "nuclear"]
Null = Literal["none", "shuffled", "covariance", "matched", "untrained"]
# Relative distance below which a token's vector counts as equal to that of the selected token.
_EQUAL = 1e-9


class SelectingSequences(NamedTuple):
    """Sequences in which a head selects one token, with the selected tokens and the query features.

    Attributes:
        rows: (k,) int; indices of the sequences.
        top: (k,) int; position of the selected token in each sequence.
        query: (k, b); query features z of each sequence; b is d, or d + 1 if the query has a bias.
    """

    rows: NDArray[np.int64]
    top: NDArray[np.int64]
    query: Floats

    def group(self, number: int, size: int) -> "SelectingSequences":
        """Split the sequences into groups of `size` and return group `number`."""
        chosen = slice(number * size, (number + 1) * size)
        return SelectingSequences(self.rows[chosen], self.top[chosen], self.query[chosen])


class Ratio(NamedTuple):
    """Margin of a head over a group of sequences, divided by the certified maximum margin.

    The matrix W of the head is restricted to the span of the queries z.

    Attributes:
        ratio: margin of the head, divided by `margin_bound` of the max-margin problem; at most 1.
        cosine: cosine between W and the max-margin matrix.
        margin: margin of the head, min uᵀ W z / ‖W‖, where u is the vector of the selected token minus the
            vector of another token.
        largest: the certified maximum margin.
        gap: relative duality gap.
        status: status of the max-margin problem.
    """

    ratio: float
    cosine: float
    margin: float
    largest: float
    gap: float
    status: ja.theory.Status


def margin_ratio(
    layer: Layer, head: int, chosen: SelectingSequences, space: MarginSpace, keys: Floats | None = None
) -> Ratio:
    """Compare the matrix W of a head with the max-margin matrix for the tokens that the head selects.

    W is restricted to the span of the queries z: other directions do not affect the scores in these
    sequences, and gradient descent from zero leaves W zero along them. The space determines W, the vectors
    that represent the tokens, and the norm:

        space       W                    tokens            norm
        query       (W_Q, b_Q)           keys of the head  Frobenius
        frobenius   W_Kᵀ (W_Q, b_Q)      inputs            Frobenius
        nuclear     W_Kᵀ (W_Q, b_Q)      inputs            nuclear

    Args:
        layer: the layer.
        head: index of the head.
        chosen: the sequences in which the head selects one token, with these tokens.
        space: the space; with rotary embeddings only "query" is defined, because W depends on positions.
        keys: (n, T, c); keys of the head; computed if omitted.
    """
    norm: Literal["frobenius", "nuclear"] = "nuclear" if space == "nuclear" else "frobenius"
    W = layer.query_matrix(head)
    if space == "query":
        tokens = layer.keys(head) if keys is None else keys
    else:
        tokens, W = layer.inputs, layer.W_K[head].T @ W
    u, sequence = _differences(tokens, layer.visible, chosen)
    best = ja.theory.bilinear_max_margin(u, chosen.query, sequence, norm=norm)
    basis = _span(chosen.query)
    W = W @ basis @ basis.T
    values = np.einsum("ca,ca->c", u, (chosen.query @ W.T)[sequence])
    margin = float(values.min(initial=np.inf)) / np.linalg.norm(W, norm[:3])
    length = np.linalg.norm(W) * np.linalg.norm(best.matrix)
    cosine = float((W * best.matrix).sum() / length) if length > 0 else np.nan
    ratio = margin / best.margin_bound if best.margin > 0 else np.nan
    return Ratio(float(ratio), cosine, margin, best.margin, best.duality_gap, best.status)


def _span(z: Floats) -> Floats:
    """Return an orthonormal basis (in columns) for the row span of z, whose rows must not all be zero."""
    _, size, vt = np.linalg.svd(z / np.abs(z).max(), full_matrices=False)
    return vt[size > 1e-13 * size[0]].T


def _differences(
    tokens: Floats, visible: NDArray[np.bool_], chosen: SelectingSequences
) -> tuple[Floats, NDArray[np.int64]]:
    """Return the vector of the selected token minus the vectors of other tokens, with indices of sequences.

    The indices refer to `chosen.rows`. Tokens with the same vector as the selected token are omitted.
    """
    best = tokens[chosen.rows, chosen.top]
    u = best[:, None] - tokens[chosen.rows]
    others = visible[chosen.rows] & (
        np.linalg.norm(u, axis=2) > _EQUAL * np.linalg.norm(best, axis=1, keepdims=True)
    )
    return u[others], np.repeat(np.arange(len(chosen.rows)), others.sum(axis=1))


def selecting_sequences(layer: Layer, scores: Floats, share: float) -> SelectingSequences:
    """Return the sequences in which one token receives at least the fraction `share` of the attention."""
    rows = np.flatnonzero(attention(scores).max(axis=1) >= share)
    return SelectingSequences(rows, scores[rows].argmax(axis=1), layer.query_features()[rows])


def attention(scores: Floats) -> Floats:
    """Return the softmax over tokens of scores with shape (n, T)."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def gaps(scores: Floats) -> Floats:
    """Return the gap between the two largest scores of each sequence, or inf for T = 1, as an (n,) array."""
    top = np.sort(scores, axis=1)[:, -2:]
    return top[:, 1] - top[:, 0] if top.shape[1] == 2 else np.full(len(top), np.inf)


def null_selections(
    layer: Layer, head: int, keys: Floats, number: int, null: Null, draws: int, rng: np.random.Generator
) -> Iterator[SelectingSequences]:
    """Yield the sequences and selected tokens of a head under null queries z.

    Every null baseline keeps W_Q, the keys and the number of sequences. It uses the sequences in which the
    gap between the two highest scores is largest. The baselines differ in the queries:

        shuffled     the z of another sequence, by a random cyclic permutation
        covariance   z ~ N(mean, covariance of the inputs over all positions), for each sequence
        matched      one sample as in covariance, plus the deviation of each query from the mean query
        none         the unchanged z, for an untrained model

    Args:
        layer: the layer.
        head: index of the head.
        keys: (n, T, c); keys of the head.
        number: number of sequences.
        null: kind of null baseline.
        draws: number of samples from the null baseline.
        rng: random number generator.
    """
    for _ in range(draws):
        z = layer.with_bias(_null_inputs(layer, null, rng))
        scores = layer.scores(head, keys, z @ layer.query_matrix(head).T)
        rows = np.sort(np.argsort(-gaps(scores), kind="stable")[:number])
        yield SelectingSequences(rows, scores[rows].argmax(axis=1), z[rows])


def _null_inputs(layer: Layer, null: Null, rng: np.random.Generator) -> Floats:
    z = layer.query
    if null == "none":
        return z
    if null == "shuffled":
        order = rng.permutation(len(z))
        shuffled = np.empty_like(z)
        shuffled[order] = z[np.roll(order, 1)]
        return shuffled
    inputs = layer.inputs[layer.visible]
    mean = inputs.mean(axis=0)
    factor = np.linalg.qr(inputs - mean, mode="r") / np.sqrt(max(len(inputs) - 1, 1))
    normal = rng.standard_normal((1 if null == "matched" else len(z), len(factor)))
    sampled = mean + normal @ factor
    return sampled + z - z.mean(axis=0) if null == "matched" else sampled
