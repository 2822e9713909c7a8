"""Two steps suffice: a signal token and a noise token; two steps of gradient descent on p and v from zero."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors
from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge, power_law


def signal_and_noise(key: Array, *, dim: int, sequences: int, ratio: float) -> Vectors:
    """Sample X = {μ_y, ξ}: μ_± = ρ e_1, ρ e_2 with ρ = ratio √d, and ξ ~ N(0, I) orthogonal to both."""
    label_key, noise_key = jax.random.split(key)
    y = jax.random.rademacher(label_key, (sequences,), jnp.int32)
    signal = ratio * dim**0.5 * jax.nn.one_hot((1 - y) // 2, dim)
    noise = jax.random.normal(noise_key, (sequences, dim)).at[:, :2].set(0)
    return Vectors(targets=y, X=jnp.stack([signal, noise], axis=1), classes=2)


class Params(NamedTuple):
    """Query and head."""

    p: Array  # (d,)
    v: Array  # (d,)


class Attention(ja.Model[Vectors]):
    """f(X) = Σ_t q_t x_t·v with q = softmax over t of x_t·p; both start at 0."""

    takes: ClassVar[type[Vectors]] = Vectors

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Return zeros."""
        return Params(jnp.zeros(like.dim, dtype), jnp.zeros(like.dim, dtype))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f of each sequence, (n,)."""
        return (jax.nn.softmax(data.dot(params.p), axis=1) * data.dot(params.v)).sum(axis=1)


def thresholds(results: ja.Results, item: object, *, level: float, axes: Sequence[str]) -> Measured:
    """Find each seed's largest ρ/√d that fits noisy labels, and the smallest one that generalises.

    Args:
        results: a run that varies data.ratio, and one of `axes` in each block.
        item: not used.
        level: minimum accuracy at which a run counts as fitting training data or generalising to test data.
        axes: keys, of which each block varies one.
    """
    records = results.with_axes(results.records.query("step == 2"))
    findings, benign = [], []
    for key in axes:
        rows, letter = records.dropna(subset=key), {"data.sequences": "n", "data.dim": "d"}[key]
        fitted = _edge(rows[rows["metric"] == "train_accuracy"], key, lambda x: x < level)
        general = _edge(rows[rows["metric"] == "test_accuracy"], key, lambda x: x >= level)
        for words, edge in (
            ("largest ratio that is fitted", fitted),
            ("least ratio that tests well", general),
        ):
            fit = power_law(edge.index.to_numpy(float), edge.to_numpy(float))
            findings.append(Finding(f"power of {letter} in the {words}", fit.estimate, f"{fit.seeds} seeds"))
        if letter == "n":
            scaled = (fitted.mul(np.sqrt(fitted.index), axis=0)).mean()
            over = f"{len(scaled)} seeds"
            findings.append(Finding("largest ratio that is fitted, times √n", judge.mean(scaled), over))
        benign.append((general < fitted).where(fitted.notna()).mean())
    share = judge.mean((benign[0] + benign[1]) / 2, (0, 1))
    findings.append(Finding("share of sizes with a benign range", share, f"{len(benign[0])} seeds"))
    return Measured(findings, {})


def _edge(rows: object, key: str, crossed: object) -> object:
    """Return the geometric mean of the ratios around a crossing, by key and seed; NaN without a crossing."""

    def edge(one: object) -> float:
        one = one.sort_values("data.ratio")
        ratios, over = one["data.ratio"].to_numpy(float), crossed(one["value"].to_numpy())
        place = int(over.argmax())
        return np.sqrt(ratios[place - 1] * ratios[place]) if over.any() and place else np.nan

    return rows.groupby([key, "seed"])[["data.ratio", "value"]].apply(edge).unstack()
