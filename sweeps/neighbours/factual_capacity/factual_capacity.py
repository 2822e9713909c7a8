"""Number of facts that a matrix W stores: a pair (e_i, u_i) is recalled if j = i maximises u_j·W e_i."""

from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

import jaxattn as ja
from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge
from jaxattn.lab.results.fits import powers

RECALLED = 0.99


class Pairs(ja.Dataset):
    """N pairs of unit vectors; the class of pair i is i."""

    e: Array  # (N, d) subjects
    u: Array  # (N, d) answers

    @property
    def num_classes(self) -> int:
        """Number of pairs N."""
        return len(self.targets)


def number(load: float, dim: int) -> int:
    """Solve N log N = load · d² for N."""
    n = load * dim**2
    for _ in range(100):
        n = load * dim**2 / log(n)
    return round(n)


def pairs(key: Array, *, dim: int, load: ja.Static[float]) -> Pairs:
    """Sample pairs uniformly on the unit sphere; `load` determines their number."""
    facts = number(load, dim)
    drawn = jax.random.normal(key, (2, facts, dim))
    e, u = drawn / jnp.linalg.norm(drawn, axis=2, keepdims=True)
    return Pairs(targets=jnp.arange(facts, dtype=jnp.int32), e=e, u=u)


class Params(NamedTuple):
    """Parameters of the model."""

    W: Array  # (d, d)


class Memory(ja.Model[Pairs]):
    """Logits u_j·W e_i of the answers j to subject i; the entries of W are initially N(0, 1/d)."""

    def init(self, key: Array, like: Pairs, *, dtype: jnp.dtype) -> Params:
        """Sample the initial W."""
        d = like.e.shape[1]
        return Params(jax.random.normal(key, (d, d), dtype) / d**0.5)

    def outputs(self, params: Params, data: Pairs) -> Array:
        """Compute the logits, (N, N)."""
        return data.e @ params.W.T @ data.u.T


def capacity(results, item) -> Measured:
    """Find the largest load up to which at least 99 % of facts are recalled, for each seed and d."""
    records = results.with_axes(results.records[results.records["metric"] == "train_accuracy"])
    best = records.groupby(["data.dim", "data.load", "seed"])["value"].max().unstack("seed")
    rows = {}
    for d, table in best.groupby(level="data.dim"):
        loads = np.append(np.nan, table.index.get_level_values("data.load"))
        held = (table.to_numpy() >= RECALLED).cumprod(axis=0).sum(axis=0)
        rows[d] = np.where(held < len(loads) - 1, loads[held], np.nan)  # all facts recalled: grid too small
    d, load = np.array(list(rows), float), np.array(list(rows.values()))
    seeds = f"{load.shape[1]} seeds"
    findings = [
        Finding("power of d in N log N", judge.mean(2 + powers(d, load.T)), seeds),
        Finding(f"d²/(N log N) at d = {d[-1]:g}", judge.mean(1 / load[-1]), seeds),
    ]
    table = pd.DataFrame({"d": list(rows), "N log N / d²": np.nanmean(load, axis=1)})
    table["N"] = [number(x, d) for d, x in table.itertuples(index=False)]
    return Measured(findings, {"Capacity, mean over seeds": table})
