"""Token selections, margins of directions, and angles, with 1 - cos computed without cancellation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.attention.scores import Scores
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import AnyArray, Brief, PathArray
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take

TIE = 1e-9
"""Score difference, relative to the spread of all scores, up to which two tokens tie in double precision.

It is ten times the change in scores caused by an error of 1e-10 in the direction. `tie_tolerance` returns the
tolerance in any precision.
"""


def tie_tolerance(dtype: DTypeLike) -> float:
    """Return the default tolerance for ties in `selection`: the larger of `TIE` and 64 machine epsilons.

    Two tokens of a sequence tie if their scores differ by at most this fraction of the spread of all scores.

    Args:
        dtype: floating-point dtype of p, or of the scores for `selection_from_scores`.

    Example:
        >>> ja.theory.tie_tolerance(jnp.float64), ja.theory.tie_tolerance(jnp.float32)
        (1e-09, 7.62939453125e-06)
    """
    return max(TIE, 64 * float(jnp.finfo(dtype).eps))


@struct.dataclass(repr=False)
class Selection(Brief):
    """Selected tokens S_X in each sequence X of a corpus. A pytree.

    Attributes:
        mask: (R, W) bool, the shape of the bags; True for selected entries, False for all others,
            including padding.
    """

    mask: AnyArray

    def counts(self, corpus: Corpus) -> Int[Array, " n"]:
        """Count the distinct selected tokens in each sequence, (n,) int32."""
        return _count(corpus, self.mask)

    def important_counts(self, corpus: Corpus, important: Bool[Array | np.ndarray, " V"]) -> Int[Array, " n"]:
        """Count the distinct tokens in each sequence that are both selected and important, (n,) int32.

        Args:
            corpus: the corpus to which the selection belongs.
            important: (V,) bool; True for important tokens.
        """
        return _count(corpus, self.mask, jnp.asarray(important))

    def selects(
        self, corpus: Corpus, important: Bool[Array | np.ndarray, " V"]
    ) -> tuple[Bool[Array, " n"], Bool[Array, " n"]]:
        """Return masks of the sequences that select an important token, and of the sequences with a tie.

        A sequence selects an important token if all tokens in S_X are important and S_X ≠ X. It has a tie if
        S_X contains both important and other tokens, or if S_X contains important tokens and S_X = X. The two
        masks are disjoint.

        Args:
            corpus: the corpus to which the selection belongs.
            important: (V,) bool; True for important tokens.

        Returns:
            Two (n,) bool masks: sequences that select an important token, and sequences with a tie.
        """
        on_top = self.important_counts(corpus, important)
        alone = (on_top > 0) & (on_top == self.counts(corpus)) & self.decided(corpus)
        return alone, (on_top > 0) & ~alone

    def decided(self, corpus: Corpus) -> Bool[Array, " n"]:
        """Return a mask of the sequences with at least one unselected token, S_X ≠ X, (n,) bool."""
        return self.counts(corpus) < _count(corpus, corpus.bags.count > 0)

    def tokens(self, corpus: Corpus) -> Bool[Array | np.ndarray, " V"]:
        """Return a mask of the tokens that are selected in at least one sequence, (V,) bool."""
        nowhere = jnp.zeros(corpus.vocab_size, bool)
        return nowhere.at[corpus.bags.index.astype(jnp.int32)].max(self.mask)


def selection(
    p: Float[Array | np.ndarray, " D"],
    scores: Scores,
    *,
    tie: float | Array | None = None,
) -> Selection:
    """Select the tokens with the highest score in each sequence: S_X(p) = argmax_{s ∈ X} p·Φ_s.

    A token ties with the highest-scoring token if its score is lower by at most `tie` times the spread of all
    scores, which is max - min over the tokens of the corpus. The selection is therefore invariant under
    positive scaling of p and under adding a constant to all scores. If p = 0, every token is selected.

    The default `tie` is `tie_tolerance` of the dtype of p: 1e-9 in double precision and 8e-6 in single
    precision, far below the gaps between tokens that do not tie. On a gradient-flow path, the scores of
    tokens that tie in the limit differ by O(1/‖p‖) relative to the spread. Pass a `tie` of this size to
    obtain the selection in the limit.

    Works under jit and vmap. Outside of both, scores are computed in float64 even if x64 is disabled in JAX.

    Args:
        p: (D,) float; the parameter or its direction, with any norm.
        scores: keys Φ (m, D), and bags of n sequences; `Scores(E, corpus)` for embeddings.
        tie: tolerance for ties, relative to the spread of the scores.

    Raises:
        InputError: p or Φ contains NaN or inf, the shapes do not match, or `tie` is negative (not checked
            under jit or vmap).

    Source: Wu et al. 2025 (arXiv 2505.17282), §4, the set S_X(p).

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(jnp.eye(3), corpus)
        >>> chosen = ja.theory.selection(jnp.array([1.0, 1.0, 0.0]), scores)
        >>> chosen.counts(corpus).tolist()
        [1, 1]
    """
    keys, corpus = scores.keys, scores.corpus
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((p, keys, corpus, tie)))
    require_keys(keys, corpus)
    if np.shape(p) != np.shape(keys)[1:]:
        raise InputError(
            f"p: expected shape ({np.shape(keys)[1]},) for keys of shape {np.shape(keys)}, got {np.shape(p)}"
        )
    if tie is not None and not traced and not tie >= 0:
        raise InputError(f"tie: must be at least 0, got {tie}")
    if traced:
        of_tokens = jnp.matmul(keys, p, precision="highest")
        return _select(corpus, of_tokens, tie_tolerance(of_tokens.dtype) if tie is None else tie, 0.0)
    resolution = tie_tolerance(np.asarray(p).dtype) if tie is None else tie
    require_finite(p=p, keys=keys)
    with backend.float64():
        of_tokens = jnp.asarray(np.asarray(keys, np.float64) @ np.asarray(p, np.float64))
        return _select(corpus, of_tokens, resolution, 0.0)


def selection_from_scores(
    scores: Float[Array | np.ndarray, " V"],
    corpus: Corpus,
    *,
    tie: float | Array | None = None,
    nats: float | Array = 0.0,
) -> Selection:
    """Select the tokens with the highest score in each sequence, given token scores from any model.

    Args:
        scores: (V,) float; one score per token.
        corpus: n sequences over V tokens.
        tie: tolerance for ties, relative to the spread of the scores; default `tie_tolerance` of their dtype.
        nats: absolute tolerance in addition to `tie`, in nats.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.theory.selection_from_scores(jnp.zeros(3), corpus).counts(corpus).tolist()
        [2, 2]
    """
    scores = jnp.asarray(scores)
    return _select(corpus, scores, tie_tolerance(scores.dtype) if tie is None else tie, nats)


def selection_from_tokens(tokens: Bool[Array | np.ndarray, " V"], corpus: Corpus) -> Selection:
    """Select all occurrences of the given tokens, such as the important tokens.

    No token is selected in a sequence that contains none of the given tokens.

    Args:
        tokens: (V,) bool; True for tokens to select.
        corpus: n sequences over V tokens.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, False, False]), corpus)
        >>> chosen.counts(corpus).tolist()
        [1, 0]
    """
    chosen = take(jnp.asarray(tokens), corpus.bags.index.astype(jnp.int32))
    return Selection(chosen & (corpus.bags.count > 0))


def require_keys(keys: AnyArray, corpus: Corpus) -> None:
    """Raise InputError unless there is one key per token."""
    if np.ndim(keys) != 2 or np.shape(keys)[0] != corpus.vocab_size:
        raise InputError(
            f"keys: expected shape ({corpus.vocab_size}, D), one row per token, got {np.shape(keys)}"
        )


def require_finite(**arrays: AnyArray | None) -> None:
    """Raise InputError if any array contains NaN or inf. The message names the first such array."""
    for name, x in arrays.items():
        if x is not None and not np.isfinite(x).all():
            raise InputError(f"{name} contains NaN or inf; lower the step size or exclude this run")


@jax.jit
@sequential_vmap_if_large
def _select(corpus: Corpus, scores: Array, tie: float | Array, nats: float | Array) -> Selection:
    bags = corpus.bags
    present = bags.count > 0
    entries = take(scores, bags.index.astype(jnp.int32))
    highest = bags.max(jnp.where(present, entries, -jnp.inf))
    lowest = jnp.min(jnp.where(present, entries, jnp.inf))
    spread = jnp.max(highest) - lowest
    return Selection(present & (bags.spread(highest) - entries <= tie * spread + nats))


@jax.jit
@sequential_vmap_if_large
def _count(corpus: Corpus, mask: Array, tokens: Array | None = None) -> Array:
    chosen = mask if tokens is None else mask & take(tokens, corpus.bags.index.astype(jnp.int32))
    return corpus.bags.sum(chosen.astype(jnp.int32))[0]


def cosine(a: ArrayLike, b: ArrayLike) -> PathArray:
    """Return the cosine of the angle between two vectors, a·b / (‖a‖ ‖b‖).

    Args:
        a: (..., d) float.
        b: (..., d) float, broadcast against `a`.

    Returns:
        A float64 NumPy array (...), or a JAX array if traced, with values in [-1, 1]; NaN where a vector is
        zero.

    Example:
        >>> float(ja.theory.cosine([3.0, 0.0], [1.0, 1.0]).round(4))
        0.7071
    """
    return 1.0 - one_minus_cosine(a, b)


def one_minus_cosine(a: ArrayLike, b: ArrayLike) -> PathArray:
    """Return 1 - cos with full relative precision for small angles: ½ ‖a/‖a‖ - b/‖b‖‖².

    Args:
        a: (..., d) float.
        b: (..., d) float, broadcast against `a`.

    Returns:
        A float64 NumPy array (...), or a JAX array if traced, with values in [0, 2]; NaN where a vector is
        zero.

    Example:
        >>> float(ja.theory.one_minus_cosine([1.0, 0.0], [1.0, 1e-9]))
        5e-19
    """
    difference = _unit(a) - _unit(b)
    # For opposite vectors, rounding could make the result slightly larger than 2.
    found: PathArray = (0.5 * (difference**2).sum(-1)).clip(max=2)
    return found


def margin(p: Float[Array, " D"], scores: Scores, selection: Selection) -> Float[Array, ""]:
    """Return the margin of a direction: the smallest score difference between selected and other tokens.

        min over X, s ∈ S_X, and s' ∈ X with s' ∉ S_X, of  p·(Φ_s - Φ_s') / ‖p‖

    The max-margin direction has the largest margin. The margin is negative if p does not separate the
    selected tokens.

    Args:
        p: (D,) float.
        scores: keys Φ (m, D), and bags of n sequences.
        selection: the selected tokens S_X in each sequence, for example those in the limit of p.

    Returns:
        () float; inf if no sequence has both selected and other tokens, NaN if p = 0.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(jnp.eye(3), corpus)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> print(ja.theory.margin(jnp.array([3.0, 4.0, 0.0]), scores, chosen).round(3))
        0.6
    """
    bags = scores.corpus.bags
    entries = take(jnp.matmul(scores.keys, p, precision="highest"), bags.index.astype(jnp.int32))
    others = (bags.count > 0) & ~selection.mask
    lowest = -bags.max(jnp.where(selection.mask, -entries, -jnp.inf))
    highest = bags.max(jnp.where(others, entries, -jnp.inf))
    return (lowest - highest).min() / jnp.linalg.norm(p)


def _unit(x: Any) -> Any:
    # Use float64 even if x64 is disabled in JAX: float32 cannot resolve angles below 1e-4.
    traced = isinstance(x, jax.core.Tracer)
    x = jnp.asarray(x) if traced else np.asarray(x, np.float64)
    xp = jnp if traced else np
    # Divide by the largest entry first, because the squares would underflow in a vector of norm 1e-200.
    largest = xp.abs(x).max(-1, keepdims=True)
    x = x / xp.where(largest > 0, largest, xp.nan)
    return x / xp.sqrt((x**2).sum(-1, keepdims=True))
