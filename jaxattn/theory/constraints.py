"""Distinct constraints imposed by a selection: pairs with a required score difference, and ties."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.theory.selection import Selection


class Constraints(NamedTuple):
    """Constraints on scores a = Φ p: a[better] ≥ a[worse] + required and a[ties[:, 0]] = a[ties[:, 1]].

    `constraints` builds the constraints for a selection. For other constraints, compute `leader` with
    `tie_classes`. Tied tokens form groups with equal scores, and `ties` pairs each token with the smallest
    token in its group. Pairs that differ only by tied tokens are the same constraint and appear once, so
    there are no more pairs than (sequence, token) entries in the corpus.

    Attributes:
        better: (m,) int32; the selected token in each pair.
        worse: (m,) int32; the unselected token in each pair, from the same sequence.
        ties: (t, 2) int32; pairs of tied tokens.
        leader: (V,) int32; the smallest token in each token's group.
        required: (m,) float64 ≥ 0; the required score difference, 1 in the max-margin problem.
    """

    better: np.ndarray
    worse: np.ndarray
    ties: np.ndarray
    leader: np.ndarray
    required: np.ndarray


def constraints(corpus: Corpus, selection: Selection, required: np.ndarray | None = None) -> Constraints:
    """Return the distinct constraints that a selection imposes on the scores a, as NumPy arrays.

        a_s ≥ a_s' + required,   a_s = a_s''   for all X, s, s'' ∈ S_X, and s' ∈ X with s' ∉ S_X.

    Args:
        corpus: n sequences over V tokens.
        selection: the selected tokens S_X in each sequence X, at least one.
        required: float ≥ 0, with the shape (R, W) of the bags; the required margin for each unselected
            entry, 1 by default.

    Returns:
        The constraints, sorted by the group of the better token, then by the group of the worse token.
        Constraints that are equal up to ties appear once, with the largest required margin.

    Raises:
        InputError: the selection is for another corpus, or a sequence has no selected token.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> ja.theory.constraints(corpus, chosen).better.tolist()
        [0, 1]
    """
    vocab, mask = corpus.vocab_size, np.asarray(selection.mask)
    if mask.shape != corpus.bags.index.shape:
        raise InputError(
            f"selection: has shape {mask.shape}, "
            f"but the bags have shape {corpus.bags.index.shape}; recompute the "
            "selection for this corpus"
        )
    present, sequence, token = distinct_tokens(corpus)
    token, chosen = token.astype(np.int32), mask[present]

    first = np.full(corpus.num_examples, vocab, np.int32)
    np.minimum.at(first, sequence[chosen], token[chosen])
    if (first == vocab).any():
        where = int(np.argmax(first == vocab))
        raise InputError(
            f"selection: sequence {where} has no selected token; select at least one token per sequence"
        )

    leader = tie_classes(first[sequence[chosen]], token[chosen], vocab)
    tied = np.flatnonzero(leader != np.arange(vocab)).astype(np.int32)
    key = leader[first[sequence[~chosen]]].astype(np.int64) * vocab + leader[token[~chosen]]
    height = np.ones(len(key)) if required is None else np.asarray(required, float)[present][~chosen]
    order = np.argsort(-height, kind="stable")
    distinct = order[np.unique(key[order], return_index=True)[1]]
    return Constraints(
        better=first[sequence[~chosen]][distinct],
        worse=token[~chosen][distinct],
        ties=np.stack([leader[tied], tied], axis=1),
        leader=leader,
        required=height[distinct],
    )


def distinct_tokens(
    corpus: Corpus,
) -> tuple[Bool[np.ndarray, "R W"], Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Return the distinct tokens in each sequence as flat NumPy arrays.

    Args:
        corpus: n sequences over V tokens, with bags of shape (R, W).

    Returns:
        A mask of the N bag entries that contain a token, (R, W) bool; the sequence of each such entry, (N,)
        int; and its token, (N,) int. The order is the order of Boolean indexing with the mask, as in
        `corpus.bags.count[present]`.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2, 2], [1]], labels=[1, -1], vocab_size=3)
        >>> [x.tolist() for x in ja.theory.distinct_tokens(corpus)]
        [[[True, True], [True, False]], [0, 0, 1], [0, 2, 1]]
    """
    bags = corpus.bags
    present = np.asarray(bags.count) > 0
    sequence = np.broadcast_to(np.asarray(bags.owner)[:, None], present.shape)[present]
    return present, sequence, np.asarray(bags.index)[present].astype(int)


def find_cycle(constraints: Constraints) -> np.ndarray:
    """Find constraints that form a cycle a > b ≥ ... ≥ a, treating tied tokens as equal.

    No embeddings satisfy such constraints. Return the indices of the constraints, (k,), or an empty array if
    there is no cycle.
    """
    from scipy.sparse import coo_array, csr_array  # slow to import
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    leader = constraints.leader
    vocab = len(leader)
    tail, head = leader[constraints.better], leader[constraints.worse]
    if not np.isin(tail, head).any():
        return np.zeros(0, int)
    pair = np.arange(1, len(tail) + 1)  # numbered from 1, because sparse matrices drop zeros
    graph = csr_array(coo_array((pair, (tail, head)), shape=(vocab, vocab)))
    component = connected_components(graph, directed=True, connection="strong")[1]
    inside = np.flatnonzero((component[tail] == component[head]) & (constraints.required > 0))
    if len(inside) == 0:
        return inside
    closing = inside[0]
    before = breadth_first_order(graph, head[closing], directed=True)[1]
    around, node = [closing], tail[closing]
    while node != head[closing]:
        around.append(graph[before[node], node] - 1)
        node = before[node]
    return np.array(around)


def find_equal_keys(E: np.ndarray, constraints: Constraints) -> int | None:
    """Return the index of a pair that is infeasible on its own, or None if there is no such pair.

    The two tokens in such a pair have equal embeddings but a positive required margin.
    """
    better, worse, *_, required = constraints
    size = np.einsum("ij,ij->i", E, E)
    for pair in np.flatnonzero((size[better] == size[worse]) & (required > 0)):
        if (E[better[pair]] == E[worse[pair]]).all():
            return int(pair)
    return None


def near_ties(
    E: Float[np.ndarray, "V d"], leader: Int[np.ndarray, " V"]
) -> tuple[Int[np.ndarray, "t 2"], Float[np.ndarray, "k t"]]:
    """Join each tied token to a nearby one by Prim's algorithm, a minimum spanning tree in each group.

    Differences along these edges preserve short distances between tied tokens, which rounding would remove
    from differences to a common token that is farther away.

    Args:
        E: (V, d) float64; the keys.
        leader: (V,) int; the smallest token in each token's group.

    Returns:
        The edges (parent, child), and a row for each of the k tied tokens in order, with 1 for the edges that
        lead from the smallest token in its group to it, and 0 for all others.
    """
    tokens = np.flatnonzero(np.bincount(leader, minlength=len(leader))[leader] > 1)
    edges: list[tuple[int, int]] = []
    joins = np.zeros((len(tokens), len(tokens)))
    for first in np.unique(leader[tokens]):
        group = np.flatnonzero(leader[tokens] == first)
        keys = E[tokens[group]]
        parent, outside = np.zeros(len(group), int), np.arange(len(group)) > 0
        nearest = np.linalg.norm(keys - keys[0], axis=1)
        for _ in range(len(group) - 1):
            child = int(np.where(outside, nearest, np.inf).argmin())
            joins[group[child]] = joins[group[parent[child]]]
            joins[group[child], len(edges)] = 1.0
            edges.append((tokens[group[parent[child]]], tokens[group[child]]))
            outside[child] = False
            distance = np.linalg.norm(keys - keys[child], axis=1)
            parent, nearest = np.where(distance < nearest, child, parent), np.minimum(distance, nearest)
    return np.array(edges, np.int32).reshape(-1, 2), joins[:, : len(edges)]


def tie_classes(
    one: Int[np.ndarray, " t"], other: Int[np.ndarray, " t"], vocab_size: int
) -> Int[np.ndarray, " V"]:
    """Return the smallest token in each token's group of tied tokens, (V,) int32.

    A token that is not tied forms its own group.

    Args:
        one: (t,) int; first token in each tie.
        other: (t,) int; second token in each tie.
        vocab_size: V.

    Example:
        >>> ja.theory.tie_classes(np.array([0, 3]), np.array([3, 2]), vocab_size=5).tolist()
        [0, 1, 0, 0, 4]
    """
    from scipy.sparse import coo_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(one), bool), (one, other)), shape=(vocab_size, vocab_size))
    group = connected_components(graph, directed=False)[1]
    smallest = np.full(vocab_size, vocab_size, np.int32)
    np.minimum.at(smallest, group, np.arange(vocab_size, dtype=np.int32))
    return smallest[group]
