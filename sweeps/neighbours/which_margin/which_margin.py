"""Margins of p in ℓ₂ and ℓ_∞ under sign descent, Signum, Adam and normalised descent."""

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from lq_margin import lq_max_margin

import jaxattn as ja
from jaxattn.attention.scores import from_vectors
from jaxattn.data import Vectors

NORMS = {"l2": 2.0, "linf": math.inf}


def tokens(key: Array, *, dim: int = 10, length: int = 8, sequences: int = 6) -> Vectors:
    """Sample tokens uniformly on the unit sphere, and labels ±1 with equal probability."""
    token_key, label_key = jax.random.split(key)
    X = jax.random.normal(token_key, (sequences, length, dim))
    y = jax.random.rademacher(label_key, (sequences,), jnp.int32)
    return Vectors(targets=y, X=X / jnp.linalg.norm(X, axis=-1, keepdims=True), classes=2)


class Params(NamedTuple):
    """Query p and fixed head v."""

    p: Array  # (d,)
    v: Array  # (d,)


class Attention(ja.Model[Vectors]):
    """Attention f(X) = Σ_t q_t x_t·v with scores x_t·p, for a fixed unit vector v.

    f is computed relative to the top token, as γ_top + Σ_t q_t (γ_t - γ_top), so that gradients keep their
    precision when the attention on other tokens is below rounding error.
    """

    takes: ClassVar[type[Vectors]] = Vectors
    linear_in: ClassVar[str] = "p"

    scale: float = 0.1

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Sample the initial p and the head v for one seed."""
        query, head = jax.random.split(key)
        v = jax.random.normal(head, (like.dim,), dtype)
        return Params(self.scale * jax.random.normal(query, (like.dim,), dtype), v / jnp.linalg.norm(v))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        scores, values = data.dot(params.p), data.dot(params.v)
        top = scores.argmax(axis=1, keepdims=True)
        best = jnp.take_along_axis(values, top, axis=1)
        return best[:, 0] + (jax.nn.softmax(scores, axis=1) * (values - best)).sum(axis=1)

    def scores(self, params: Params, data: Vectors) -> ja.theory.Scores:
        """Return the scores as a linear function Φ p with Φ = x, and the values x·v."""
        return from_vectors(data.X, data.targets, values=data.dot(params.v))


class Margins(ja.PhaseProbe):
    """ℓ₂ and ℓ_∞ margins of p, relative to the maximum margins for the final selection."""

    metrics: ClassVar[tuple[str, ...]] = (
        *(f"{norm}_{what}" for norm in NORMS for what in ("margin_share", "gap", "largest_margin")),
        "l2_share_of_linf_direction",
        "linf_share_of_l2_direction",
    )

    def observe(self, phase: ja.Phase, state: Any) -> Array:
        """Return p for one seed as a (d,) array."""
        return phase.parameter(state, "p")

    def conclude(self, history: np.ndarray, params: Any, model: Any, loaded: Any) -> Any:
        """Solve the ℓ₂ and ℓ_∞ max-margin problems for each seed, and compare p with the solutions."""
        data = jax.device_get(loaded.splits.train)
        each = [compare(path, X, y) for path, X, y in zip(history, data.X, data.targets, strict=True)]
        return tuple(jax.tree.map(lambda *x: np.stack(x), *found) for found in zip(*each, strict=True))


def compare(path: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the relative margins along the path of one seed, and facts on both max-margin problems.

    The facts are the maximum margins, the duality gaps, and the relative margin of each solution in the other
    norm.
    """
    X, scores = np.asarray(X, float), from_vectors(X, y)
    chosen, top = ja.theory.selection(path[-1], scores), (X @ path[-1]).argmax(axis=1)
    best = {norm: lq_max_margin(scores, chosen, q=q) for norm, q in NORMS.items()}
    others = np.arange(X.shape[1]) != top[:, None]
    ahead = (np.take_along_axis(X, top[:, None, None], axis=1) - X)[others]

    def share(p: np.ndarray, norm: str) -> np.ndarray:
        return (p @ ahead.T).min(axis=-1) / np.linalg.norm(p, NORMS[norm], axis=-1) / best[norm].margin

    on_the_way = {f"{norm}_margin_share": share(path, norm) for norm in NORMS}
    facts = {f"{norm}_gap": best[norm].duality_gap for norm in NORMS}
    facts |= {f"{norm}_largest_margin": best[norm].margin for norm in NORMS}
    facts["l2_share_of_linf_direction"] = share(best["linf"].p, "l2")
    facts["linf_share_of_l2_direction"] = share(best["l2"].p, "linf")
    return on_the_way, {name: np.asarray(x, float) for name, x in facts.items()}
