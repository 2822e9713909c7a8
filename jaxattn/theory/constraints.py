"""The distinct constraints of a selection: which token must outscore which, and which tokens tie."""

from typing import NamedTuple

import numpy as np

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.theory.selection import Selection


class Constraints(NamedTuple):
    """Constraints on scores a = E p: a[better] ≥ a[worse] + required and a[ties[:, 0]] = a[ties[:, 1]].

    Tied tokens form classes with one score; `ties` compares each token with the smallest of its class.
    Two pairs that differ by tied tokens only are one constraint and appear once, so there are never
    more pairs than (sequence, token) entries in the corpus.

    Attributes:
        better: (m,) int32; the selected token of each pair.
        worse: (m,) int32; the unselected token of each pair, from the same sequence.
        ties: (t, 2) int32; pairs of tied tokens.
        leader: (V,) int32; the smallest token of each token's tie class.
        required: (m,) float64 ≥ 0; by how much, 1 in the max-margin problem.
    """

    better: np.ndarray
    worse: np.ndarray
    ties: np.ndarray
    leader: np.ndarray
    required: np.ndarray


def constraints(corpus: Corpus, selection: Selection, required: np.ndarray | None = None) -> Constraints:
    """List the distinct constraints of a selection, on the host.

    Args:
        corpus: n sequences over V tokens.
        selection: selected tokens of each sequence, at least one.
        required: (R, W) ≥ 0; by how much each unselected entry of the bags has to be outscored, 1 by default.

    Returns:
        The constraints, the strongest where several are one, sorted by class of the better token, then by
        class of the worse.

    Raises:
        InputError: the selection is for another corpus, or a sequence has no selected token.
    """
    vocab, mask = corpus.vocab_size, np.asarray(selection.mask)
    if mask.shape != corpus.bags.index.shape:
        raise InputError(
            f"selection: made for bags {mask.shape}, not {corpus.bags.index.shape}; make it anew"
        )
    present, sequence, token = entries_of(corpus)
    token, chosen = token.astype(np.int32), mask[present]

    first = np.full(corpus.num_examples, vocab, np.int32)
    np.minimum.at(first, sequence[chosen], token[chosen])
    if (first == vocab).any():
        where = int(np.argmax(first == vocab))
        raise InputError(f"selection: sequence {where} has no selected token; select at least one in each")

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


def entries_of(corpus: Corpus) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the distinct tokens of all sequences, one after the other, on the host.

    Args:
        corpus: n sequences over V tokens.

    Returns:
        (R, W) bool, where they stand in the bags; the sequence and the token of each, (N,) int.
    """
    bags = corpus.bags
    present = np.asarray(bags.count) > 0
    sequence = np.broadcast_to(np.asarray(bags.owner)[:, None], present.shape)[present]
    return present, sequence, np.asarray(bags.index)[present].astype(int)


def circle(constraints: Constraints) -> np.ndarray:
    """Find pairs that contradict each other whatever the embeddings: a > b ≥ ... ≥ a up to ties.

    Args:
        constraints: the constraints.

    Returns:
        (k,) int; the numbers of the pairs around one circle, empty if there is none.
    """
    from scipy.sparse import coo_array, csr_array  # slow to import
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    leader = constraints.leader
    vocab = len(leader)
    tail, head = leader[constraints.better], leader[constraints.worse]
    if not np.isin(tail, head).any():
        return np.zeros(0, int)
    pair = np.arange(1, len(tail) + 1)  # from 1, since a sparse matrix drops zeros
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


def coinciding(E: np.ndarray, constraints: Constraints) -> int | None:
    """Find a pair of one embedding twice of which something is required: it contradicts itself.

    Args:
        E: (V, d) float64.
        constraints: the constraints.

    Returns:
        The number of one such pair, None if there is none.
    """
    better, worse, *_, required = constraints
    size = np.einsum("ij,ij->i", E, E)
    for pair in np.flatnonzero((size[better] == size[worse]) & (required > 0)):
        if (E[better[pair]] == E[worse[pair]]).all():
            return int(pair)
    return None


def tie_classes(one: np.ndarray, other: np.ndarray, vocab: int) -> np.ndarray:
    """Find the smallest token of each token's class, (V,), where tokens `one` tie with tokens `other`."""
    from scipy.sparse import coo_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(one), bool), (one, other)), shape=(vocab, vocab))
    group = connected_components(graph, directed=False)[1]
    smallest = np.full(vocab, vocab, np.int32)
    np.minimum.at(smallest, group, np.arange(vocab, dtype=np.int32))
    return smallest[group]
