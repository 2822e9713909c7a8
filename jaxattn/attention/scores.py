"""Scores a = Φ p that are linear in the trained parameter p, with token values and bags of tokens."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxattn.base.model import Params
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import AnyArray, Brief, attributes
from jaxattn.data.corpus import Corpus, from_bags

# Relative size below which a second derivative, or a deviation from Φ p, counts as float64 rounding error.
_ROUNDING = 1e-9
# Number of random points at which a function is tested for linearity.
_POINTS = 3


@struct.dataclass(repr=False)
class Scores(Brief):
    """Scores a = Φ p of m tokens. A pytree.

        f(X) = Σ_{s ∈ X} q_s γ_s,   q = softmax of a over X

    `Scores(E, corpus)` represents the scores of the one-layer model. `from_vectors` and `from_query` treat
    each vector of each sequence as a separate token, and `linear` accepts any linear function.

    Attributes:
        keys: Φ, (m, D) float.
        corpus: bags of n sequences over the m tokens, with their labels.
        values: γ, (m,) for two classes and (m, K) for K > 2. None if only the scores are needed, as in
            `selection` and `max_margin`.
    """

    keys: AnyArray
    corpus: Corpus
    values: AnyArray | None = None


def one_layer(params: Params, corpus: Corpus) -> Scores:
    """Return the scores of the one-layer model in float64: Φ = E (not copied) and γ = E v.

    Args:
        params: E (V, d) and v (d,), or v (d, K) for K > 2 classes. Either may have a leading seed axis.
        corpus: n sequences over V tokens.

    Raises:
        InputError: the shapes do not match.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.Params(E=jnp.eye(3), p=jnp.zeros(3), v=jnp.array([3.0, -1.0, 1.0]))
        >>> ja.theory.scores.one_layer(params, corpus).values.tolist()
        [3.0, -1.0, 1.0]
    """
    params = attributes(params)
    classes, shape = corpus.num_classes, np.shape(params.v)
    axes = 1 if classes == 2 else 2
    seeds = len(np.shape(params.E)) - 2, len(shape) - axes
    fits = seeds[0] in (0, 1) and seeds[1] in (0, 1) and shape[-axes] == np.shape(params.E)[-1]
    if not fits or (classes > 2 and shape[-1] != classes):
        wanted = "v (d,)" if classes == 2 else f"v (d, {classes})"
        raise InputError(
            f"shapes do not match: got E {np.shape(params.E)}, v {shape} and {classes} classes; expected E "
            f"(V, d) and {wanted}"
        )
    with backend.float64():
        E, v = (jnp.asarray(x, jnp.float64) for x in (params.E, params.v))
        values = E @ v if classes > 2 else (E @ v[..., None])[..., 0]
    return Scores(params.E, corpus, values)


def from_vectors(
    X: Float[Array | np.ndarray, "n T d"],
    targets: Int[Array | np.ndarray, "..."],
    *,
    values: Float[Array | np.ndarray, "..."] | None = None,
    mask: Bool[Array | np.ndarray, "..."] | None = None,
    num_classes: int = 2,
) -> Scores:
    """Return the scores a_it = x_it·p of real-valued tokens, treating each vector as a separate token.

    Args:
        X: (n, T, d) float; the tokens of every sequence.
        targets: (n,) int; labels, -1 and +1 for two classes, 0 to K-1 for more.
        values: γ, (n, T), or (n, T, K) for K > 2 classes.
        mask: (n, T) bool; True for tokens, False for padding. Default: no padding.
        num_classes: K.

    Returns:
        Scores over m = n T tokens; token t of sequence i has index i T + t. Works under jit and vmap.

    Raises:
        InputError: the shapes do not match, or a sequence has no tokens (checked only outside jit).

    Example:
        >>> scores = ja.theory.scores.from_vectors(np.ones((2, 3, 4)), np.array([1, -1]))
        >>> scores.keys.shape
        (6, 4)
    """
    if np.ndim(X) != 3 or np.shape(targets) != np.shape(X)[:1]:
        raise InputError(
            f"X has shape {np.shape(X)} and targets {np.shape(targets)}; expected (n, T, d) and (n,)"
        )
    n, length, dim = np.shape(X)
    traced = any(isinstance(x, jax.core.Tracer) for x in (X, targets, values, mask))
    xp: Any = jnp if traced else np
    mask = xp.ones((n, length), bool) if mask is None else xp.asarray(mask)
    for name, x, axes in (("mask", mask, 2), ("values", values, 2 if num_classes == 2 else 3)):
        wanted = (n, length, num_classes)[:axes]
        if x is not None and np.shape(x) != wanted:
            raise InputError(f"{name}: shape {np.shape(x)}; expected {wanted}, one value per token in X")
    if not traced and not mask.any(axis=1).all():
        raise InputError(f"mask: sequence {int(np.argmin(mask.any(axis=1)))} has no tokens; remove it")
    corpus = from_bags(
        xp.repeat(xp.arange(n), length),
        xp.arange(n * length),
        mask.ravel().astype(np.uint8),
        xp.asarray(targets),
        vocab_size=n * length,
        num_classes=num_classes,
        longest_bag=length,
        max_occurrences=1,
    )
    if values is not None:
        values = xp.asarray(values).reshape(n * length, *np.shape(values)[2:])
    return Scores(xp.asarray(X).reshape(n * length, dim), jax.tree.map(jnp.asarray, corpus), values)


def from_query(
    X: Float[Array | np.ndarray, "n T d"],
    z: Float[Array | np.ndarray, "..."],
    targets: Int[Array | np.ndarray, "..."],
    *,
    values: Float[Array | np.ndarray, "..."] | None = None,
    mask: Bool[Array | np.ndarray, "..."] | None = None,
    num_classes: int = 2,
) -> Scores:
    """Return the scores a_it = x_itᵀ W z_i of real-valued tokens, with one query z_i per sequence.

        xᵀ W z = (x ⊗ z)·p,   p = vec W = W.reshape(-1)

    The keys have shape (n T, d e). If d exceeds the number of distinct tokens, or e the number of distinct
    queries, first express X and z in orthonormal bases of their spans, X = X' Q_xᵀ and z = z' Q_zᵀ. A
    solution W' of the smaller problem corresponds to W = Q_x W' Q_zᵀ.

    Args:
        X: (n, T, d) float; the tokens of every sequence.
        z: (n, e) float; the query of every sequence.
        targets: as in `from_vectors`.
        values: as in `from_vectors`.
        mask: as in `from_vectors`.
        num_classes: K.

    Returns:
        Scores over m = n T tokens, with D = d e.

    Raises:
        InputError: as in `from_vectors`.

    Example:
        >>> scores = ja.theory.scores.from_query(np.ones((2, 3, 4)), np.ones((2, 5)), np.array([1, -1]))
        >>> scores.keys.shape
        (6, 20)
    """
    if np.ndim(X) != 3 or np.ndim(z) != 2 or np.shape(z)[0] != np.shape(X)[0]:
        raise InputError(f"X has shape {np.shape(X)} and z {np.shape(z)}; expected (n, T, d) and (n, e)")
    n, length, _ = np.shape(X)
    traced = any(isinstance(x, jax.core.Tracer) for x in (X, z))
    xp: Any = jnp if traced else np
    keys = (xp.asarray(X)[:, :, :, None] * xp.asarray(z)[:, None, None, :]).reshape(n, length, -1)
    return from_vectors(keys, targets, values=values, mask=mask, num_classes=num_classes)


def linear(
    function: Callable[[PyTree], Float[Array, " m"]],
    like: PyTree,
    corpus: Corpus,
    *,
    values: Float[Array | np.ndarray, " m *K"] | None = None,
) -> Scores:
    """Return the scores a(p) = Φ p of a linear function in float64, with Φ = ∂a/∂p.

    Linearity is tested numerically: the function must be 0 at 0 and equal Φ p at random points, which rules
    out functions such as max(p, 0); and its second derivatives along random directions must be zero up to
    float64 rounding.

    Args:
        function: maps a parameter to the scores of m tokens, (m,); traceable by JAX.
        like: an array, or a pytree of arrays, with the shapes of the parameter. Its leaves are flattened and
            concatenated into p, (D,).
        corpus: n sequences over m tokens.
        values: γ, (m,) for two classes and (m, K) for K > 2.

    Raises:
        InputError: the function is not linear, or does not return one number per token.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.scores.linear(lambda p: 2 * p, jnp.zeros(3), corpus)
        >>> scores.keys.tolist()
        [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]
    """
    with backend.float64():
        flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float64), like))

        def at(p: Array) -> Array:
            return jnp.asarray(function(unravel(p)), jnp.float64)

        shape = jax.eval_shape(at, flat).shape
        if shape != (corpus.vocab_size,):
            raise InputError(f"scores: shape {shape}; expected ({corpus.vocab_size},), one score per token")
        # Use forward or reverse mode, whichever needs fewer passes.
        jacobian = jax.jacfwd if len(flat) <= shape[0] else jax.jacrev
        keys = jacobian(at)(jnp.zeros_like(flat))
        _require_linear(at, np.asarray(keys), len(flat))
    return Scores(keys, corpus, values)


def _require_linear(at: Callable[[Array], Array], keys: np.ndarray, size: int) -> None:
    rng = np.random.default_rng(0)
    remedy = "pass scores of the form a = Φ p, or use gradient descent"
    if (offset := float(jnp.abs(at(jnp.zeros(size))).max())) != 0:
        raise InputError(
            f"scores: not linear (up to {offset:.3g} in absolute value at p = 0, expected 0); {remedy}"
        )
    for p, u, w in rng.normal(size=(_POINTS, 3, size)):

        def slope(x: Array, u: Any = u) -> Array:
            return jax.jvp(at, (x,), (jnp.asarray(u),))[1]

        first, second = (np.asarray(x) for x in jax.jvp(slope, (jnp.asarray(p),), (jnp.asarray(w),)))
        largest = np.linalg.norm(keys, axis=1) * np.linalg.norm(u)
        scale = max(float(np.abs(first).max()), float(largest.max()), np.finfo(float).tiny)
        bent = float(np.abs(second).max()) / scale
        if not bent <= _ROUNDING:
            raise InputError(f"scores: not linear (relative second derivative {bent:.3g}); {remedy}")
        off = float(np.abs(np.asarray(at(jnp.asarray(p))) - keys @ p).max()) / scale
        if not off <= _ROUNDING:
            raise InputError(f"scores: not linear (relative deviation {off:.3g} from Φ p); {remedy}")


def require_values(scores: Scores) -> None:
    """Raise InputError if `scores.values` is None or inconsistent with the number of classes.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.theory.scores.require_values(ja.theory.Scores(np.eye(3), corpus, np.zeros(3)))
    """
    classes, tokens = scores.corpus.num_classes, scores.corpus.vocab_size
    wanted = (tokens,) if classes == 2 else (tokens, classes)
    shape = None if scores.values is None else np.shape(scores.values)
    if shape is None or shape[len(shape) - len(wanted) :] != wanted:
        given = "none" if shape is None else f"shape {shape}"
        raise InputError(
            f"scores.values: expected shape {wanted}, as in the result of one_layer, got {given}"
        )
