"""Number of facts that a matrix W stores. Fact i is recalled if u_j·W e_i is largest for j = i."""

from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja

RECALLED = 0.99


class Pairs(ja.Dataset):
    """N pairs of unit vectors (e_i, u_i). The target of pair i is class i."""

    e: Array  # (N, d) subjects
    u: Array  # (N, d) answers

    @property
    def num_classes(self) -> int:
        """Number of pairs N."""
        return len(self.targets)


def number(load: float, dim: int) -> int:
    """Solve N log N = load · d² for N, and round the solution to an integer."""
    n = load * dim**2
    for _ in range(100):
        n = load * dim**2 / log(n)
    return round(n)


def pairs(key: Array, *, dim: int, load: ja.Static[float]) -> Pairs:
    """Sample pairs of vectors uniformly on the unit sphere. `load` determines the number of pairs."""
    facts = number(load, dim)
    drawn = jax.random.normal(key, (2, facts, dim))
    e, u = drawn / jnp.linalg.norm(drawn, axis=2, keepdims=True)
    return Pairs(targets=jnp.arange(facts, dtype=jnp.int32), e=e, u=u)


class Params(NamedTuple):
    """Matrix W that stores the facts."""

    W: Array  # (d, d)


class Memory(ja.Model[Pairs]):
    """Linear model with logit u_j·W e_i for answer j to subject i."""

    def init(self, key: Array, like: Pairs, *, dtype: jnp.dtype) -> Params:
        """Sample the entries of the initial W from N(0, 1/d)."""
        d = like.e.shape[1]
        return Params(jax.random.normal(key, (d, d), dtype) / d**0.5)

    def outputs(self, params: Params, data: Pairs) -> Array:
        """Compute the logits as an (N, N) array."""
        return data.e @ params.W.T @ data.u.T
