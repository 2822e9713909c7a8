"""A query on its way, held against the max-margin direction of the selection it ends with."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.study.corpora import Loaded
from jaxattn.theory import (
    MaxMargin,
    Selection,
    margin,
    max_margin,
    max_margin_batch,
    one_minus_cosine,
    selection,
)

AT_PROBES = ("one_minus_cosine", "margin_ratio")
AT_END = ("feasible", "max_margin", "duality_gap", "primal_residual", "support_pairs")
LIMIT_METRICS = (*AT_PROBES, *AT_END)

Metrics = dict[str, np.ndarray]


def against_limit(trail: np.ndarray, E: Any, loaded: Loaded) -> tuple[Metrics, Metrics]:
    """Find the max-margin direction of every seed's last selection and compare.

    Args:
        trail: (S, k, d) float64; p of every seed at k probes.
        E: (S, V, d); the embeddings, which did not move meanwhile.
        loaded: corpora, shared by the seeds or one for each.

    Returns:
        What every probe is worth, (S, k) each: 1 - cos to the max-margin direction, and the margin on the
        last selection relative to the largest one. What the max-margin problem says, (S,) each. NaN where
        no direction separates the selection.
    """
    # On one device: the solver is not written for arrays that lie on several.
    E, corpus = jax.device_get((E, loaded.corpora.train))
    with jax.enable_x64(True):
        E = jnp.asarray(E, jnp.float64)
        if loaded.shared and corpus.bags.is_large:
            seeds = [_one(p, own, corpus) for p, own in zip(trail, E, strict=True)]
            away, ratio, *facts = (np.stack(x) for x in zip(*seeds, strict=True))
            return _named(away, ratio, *facts)
        axis = None if loaded.shared else 0
        chosen = jax.jit(jax.vmap(selection, in_axes=(0, 0, axis)))(jnp.asarray(trail[:, -1]), E, corpus)
        mm = max_margin_batch(E, corpus, chosen)
        margins = jax.jit(jax.vmap(_margins, in_axes=(0, 0, axis, 0)))(jnp.asarray(trail), E, corpus, chosen)
    away = one_minus_cosine(trail, mm.p[:, None])
    return _named(away, _relative(margins, mm.margin[:, None]), *_facts(mm))


def _one(trail: np.ndarray, E: Any, corpus: Any) -> tuple[np.ndarray, ...]:
    if not np.isfinite(trail[-1]).all():
        missing = np.full(len(trail), np.nan)
        return missing, missing, *np.full(5, np.nan)
    chosen = selection(trail[-1], E, corpus)
    mm = max_margin(E, corpus, chosen)
    margins = jax.jit(_margins)(jnp.asarray(trail), E, corpus, chosen)
    return one_minus_cosine(trail, mm.p), _relative(margins, mm.margin), *_facts(mm)


def _margins(trail: Any, E: Any, corpus: Any, chosen: Selection) -> Any:
    return jax.lax.map(lambda p: margin(p, E, corpus, chosen), trail)


def _relative(margins: Any, largest: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(margins) / np.where(largest > 0, largest, np.nan)


def _facts(mm: MaxMargin) -> tuple[Any, ...]:
    support = (mm.multipliers > 0).sum(axis=-1)
    return np.asarray(mm.feasible, float), mm.margin, mm.duality_gap, mm.primal_residual, 1.0 * support


def _named(away: Any, ratio: Any, *facts: Any) -> tuple[Metrics, Metrics]:
    probes = zip(AT_PROBES, (away, ratio), strict=True)
    return {name: np.asarray(x) for name, x in probes}, {
        name: np.asarray(x) for name, x in zip(AT_END, facts, strict=True)
    }
