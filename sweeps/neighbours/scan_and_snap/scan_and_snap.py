"""Scan and snap: next-token prediction by attention of the last token to the tokens before it."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences
from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge

COMMON, DISTINCT, LENGTH = 10, 10, 128  # common tokens, distinct tokens per next token, T


class Scanned(Sequences):
    """Sequences whose last token is the query; targets are next tokens, from the same vocabulary."""

    last: int = struct.field(pytree_node=False, kw_only=True)
    per_last: int = struct.field(pytree_node=False, kw_only=True)

    def chances(self) -> np.ndarray:
        """Return P(l|n), (N, V), for tokens l before the last one and each of N next tokens n."""
        N = self.last * self.per_last
        own = np.kron(np.eye(N), np.linspace(0.1, 1, DISTINCT))
        P = np.hstack([np.ones((N, COMMON)), own, np.zeros((N, self.last + N))])
        return P / P.sum(axis=1, keepdims=True)


def next_tokens(key: Array, *, sequences: int, last: int, per_last: int = 2) -> Scanned:
    """Sample a next token n; the last token is n // per_last, and the tokens before it follow P(l|n)."""
    asks = COMMON + last * per_last * DISTINCT  # ids are ordered: common, distinct, last, next
    V, mask = asks + last + last * per_last, jnp.ones((sequences, LENGTH), bool)
    made = Scanned(targets=None, ids=None, mask=mask, vocab_size=V, classes=V, last=last, per_last=per_last)
    next_key, token_key = jax.random.split(key)
    n = jax.random.randint(next_key, (sequences,), 0, last * per_last)
    sums = np.cumsum(made.chances(), axis=1)
    below = jnp.asarray(sums / sums[:, -1:], jnp.float32)[n, None]  # rows end at 1
    ids = (jax.random.uniform(token_key, (sequences, LENGTH, 1)) > below).sum(axis=2, dtype=jnp.int32)
    return made.replace(targets=asks + last + n, ids=ids.at[:, -1].set(asks + n // per_last))


class LastToken(ja.Model[Sequences]):
    """f(X) = Yᵀ u/‖u‖, u = Σ_{t<T} q_t x_t, q = softmax(z_{x_T}) over the one-hot tokens before the last."""

    takes: ClassVar[type[Sequences]] = Sequences
    spread: float = 1.0

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample Y and Z, (V, V) each, from U(-1, 1)/√V times `spread`; z_m is row m of Z."""
        drawn = jax.random.uniform(key, (2, V := like.vocab_size, V), dtype, -1, 1) * self.spread / V**0.5
        return {"Y": drawn[0], "Z": drawn[1]}

    def outputs(self, params: dict[str, Array], data: Sequences) -> Array:
        """Compute the logits of the next token, (n, V)."""
        counts = (data.ids[:, :-1, None] == jnp.arange(data.vocab_size)).sum(axis=1)
        u = jax.nn.softmax(params["Z"][data.ids[:, -1]], where=counts > 0) * counts
        return u / jnp.linalg.norm(u, axis=1, keepdims=True) @ params["Y"]


def two_rates(step_size: optax.Schedule, *, ratio: float = 1.0) -> optax.GradientTransformation:
    """Build descent with momentum 0.9 whose step size for Y is `ratio` times that for Z."""
    faster = optax.stateless(lambda slopes, _: slopes | {"Y": ratio * slopes["Y"]})
    return optax.chain(faster, optax.sgd(step_size, momentum=0.9))


def composition(params: dict[str, Array], data: Scanned) -> dict[str, Array]:
    """Compute means over n: entropy of c_n ∝ P(l|n) exp z_l, of its distinct part, and its common share."""
    asks = data.vocab_size - data.last * (data.per_last + 1) + np.arange(data.last).repeat(data.per_last)
    c = jnp.exp(params["Z"][asks]) * data.chances()
    c = c / c.sum(axis=1, keepdims=True)
    alone = c[:, COMMON:] / c[:, COMMON:].sum(axis=1, keepdims=True)
    entropy, distinct = (jax.scipy.special.entr(x).sum(axis=1).mean() for x in (c, alone))
    return {"entropy": entropy, "distinct_entropy": distinct, "common": c[:, :COMMON].sum(axis=1).mean()}


def figure_6(results, item, *, published: dict[str, list[list[float]]]) -> Measured:
    """Compare the entropy on distinct tokens with figure 6: rows η_Z, columns η_Y/η_Z, for each #last."""
    rows = results.with_axes(results.records)
    axes = ["data.last", "phases.train.step_size", "phases.train.ratio"]
    at = rows.pivot_table(index=axes, columns=["metric", "step", "seed"], values="value")
    table, found = at["distinct_entropy"][100].mean(axis=1).rename("measured").to_frame(), {}
    table["published"] = [x for last in at.index.levels[0] for row in published[f"{last:g}"] for x in row]
    for last, ours in at["distinct_entropy"][100].groupby(level=0):
        found[f"{last:g} last: measured - published"] = ours.sub(table["published"][[last]], axis=0).mean()
        found[f"{last:g} last: ratio 10 - ratio 1"] = (ours.xs(10, level=2) - ours.xs(1, level=2)).mean()
        found[f"{last:g} last: η_Z 3 - η_Z 0.5"] = (ours.xs(3, level=1) - ours.xs(0.5, level=1)).mean()
    for metric in ("entropy", "distinct_entropy", "common"):
        fall = at[metric][0] - at[metric][100]
        found[f"least fall of {metric.replace('_', ' ')} in a cell"] = fall.min()
    found["share of the fall of common after step 50"] = ((at[metric][50] - at[metric][100]) / fall).mean()
    for step in (10, 20, 40):
        four = rows[(rows["block"] == "figure 4") & (rows["metric"] == "loss") & (rows["step"] == step)]
        found[f"figure 4: loss at step {step}"] = four["value"]
    findings = [Finding(name, judge.mean(x), f"{len(x)} seeds") for name, x in found.items()]
    return Measured(findings, {"Entropy of attention on distinct tokens": table.reset_index()})
