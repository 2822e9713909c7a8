"""Which cover: corpora with planted ones, and a probe that holds the tokens on top against other covers."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from cover import greedy_cover, minimum_cover
from jax import Array

import jaxattn as ja
from jaxattn.models.reference import padded_sequences

# α of irrelevant tokens is 0, that of others at least 1/(n T).
TIE = 1e-9


def planted(
    key: Array,
    *,
    vocab_size: int,
    broad: int,
    narrow: int,
    halving: bool = False,
    length: int = 4,
    sequences: int,
) -> ja.data.Corpus:
    """Give every sequence a broad and a narrow token of its class, and irrelevant ones it shares with a twin.

    The broad tokens of a class divide its sequences into equal parts, and are a cover. So do the narrow ones
    across them; with `halving` the first one has more than any broad token and every other half as many as
    the one before it: the token that holds most is in no shortest cover then.
    """
    pair = jnp.arange(sequences // 2)
    place = pair // broad
    period = 2**narrow - 1
    halved = narrow - 1 - jnp.floor(jnp.log2(period - place % period)).astype(jnp.int32)
    own = jnp.stack([pair % broad, broad + (halved if halving else place % narrow)], axis=1)
    shared = jax.random.randint(key, (len(pair), length - 2), 2 * (broad + narrow), vocab_size)
    both = [jnp.concatenate([2 * own + label, shared], axis=1) for label in (0, 1)]
    labels = jnp.repeat(jnp.array([-1, 1]), len(pair))
    return ja.data.from_draws(jnp.concatenate(both), labels, vocab_size=vocab_size, num_classes=2)


class Beside(ja.PhaseProbe):
    """The tokens on top at the end beside the shortest cover, the greedy one, and those of orders by α.

    At small starts E grows along α, and p along v: scores are then α or -α, and the winner is the label of
    the tokens that stand above all others. `variance_lead` is S = mean_X y_X Var_X(α), which pushes p
    along v, over the mean of Var_X(α), and `variance_sign` its sign; `start_sign` is that of p_0 on the
    direction that v and Eᵀα grow along.
    """

    rotation_invariant: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = (
        *("follows_size_of_alpha", "follows_alpha", "winner"),
        *("shortest_cover", "proven", "greedy_cover", "alpha_cover"),
        *("variance_lead", "variance_sign", "start_sign"),
    )
    labels: ClassVar[dict[str, str]] = {
        "shortest_cover": "tokens of the shortest cover",
        "proven": "the shortest cover is proven to be one",
        "greedy_cover": "tokens of the greedy cover",
        "alpha_cover": r"tokens on top by $|\alpha|$",
        "follows_size_of_alpha": r"sequences with the largest $|\alpha|$ on top",
        "follows_alpha": r"sequences in the order of $\alpha$ or $-\alpha$",
    }

    def why_not(self, task: Any, phase: ja.Phase) -> str | None:
        """Say that it wants a phase that moves all parameters."""
        return None if {"E", "p", "v"} <= set(phase.train) else "wants a phase that trains E, p and v"

    def observe(self, phase: ja.Phase, state: Any) -> Array:
        """Look up a = E p and p·v of one seed, (V + 1,)."""
        E, p, v = (phase.parameter(state, name) for name in ("E", "p", "v"))
        return jnp.append(E @ p, p @ v)

    def conclude(self, history: np.ndarray, params: Any, model: Any, loaded: Any) -> Any:
        """Compare every seed (S, k, V + 1)."""
        corpora = jax.device_get(loaded.splits.train)
        each = [
            (follows(path[:, :-1], own), _sizes(own) | signs(path[0], own))
            for seed, path in enumerate(history)
            for own in [jax.tree.map(lambda x, seed=seed: x[seed], corpora)]
        ]
        return tuple(
            {name: np.stack([x[name] for x in part]) for name in part[0]} for part in zip(*each, strict=False)
        )


def follows(scores: np.ndarray, corpus: ja.data.Corpus) -> dict[str, np.ndarray]:
    """Tell in which share of the sequences the token on top, scores (k, V), is first in an order by α."""
    ids, mask = (np.asarray(x) for x in padded_sequences(corpus))
    alpha = np.asarray(ja.data.average_signed_frequency(corpus))
    top = np.take_along_axis(ids[None], np.where(mask, scores[:, ids], -np.inf).argmax(2)[..., None], 2)

    def share(order: np.ndarray) -> np.ndarray:
        best = np.where(mask, order[ids], -np.inf).max(axis=1)
        return (order[top[..., 0]] >= best - TIE).mean(axis=1)

    up, down = share(alpha), share(-alpha)
    return {
        "follows_size_of_alpha": share(np.abs(alpha)),
        "follows_alpha": np.maximum(up, down),
        "winner": np.sign(up - down),
    }


def signs(start: np.ndarray, corpus: ja.data.Corpus) -> dict[str, float]:
    """Give what could tell the winner: S over the mean variance, and p·u from a and p·v (V + 1,)."""
    ids, mask = (np.asarray(x) for x in padded_sequences(corpus))
    alpha = np.asarray(ja.data.average_signed_frequency(corpus))
    spread = np.nanvar(np.where(mask, alpha[ids], np.nan), axis=1)
    largest = np.where(mask, np.abs(alpha)[ids], -1.0).argmax(axis=1)
    lead = float((np.asarray(corpus.targets) * spread).mean() / spread.mean())
    return {
        "alpha_cover": float(len(np.unique(ids[np.arange(len(ids)), largest]))),
        "variance_lead": lead,
        "variance_sign": float(np.sign(round(lead, 9))),
        "start_sign": float(np.sign(start[:-1] @ alpha / np.linalg.norm(alpha) + start[-1])),
    }


_KNOWN: dict[bytes, dict[str, float]] = {}


def _sizes(corpus: ja.data.Corpus) -> dict[str, float]:
    """Sizes of covers of a corpus, which cells of a study share; NaN where there is none."""
    key = b"".join(np.asarray(x).tobytes() for x in (corpus.bags.index, corpus.bags.count, corpus.targets))
    if key not in _KNOWN:
        shortest, greedy = minimum_cover(corpus), greedy_cover(corpus)
        _KNOWN[key] = {
            "shortest_cover": shortest.size if shortest else np.nan,
            "greedy_cover": greedy.size if greedy else np.nan,
            "proven": 1.0 if shortest is None else float(shortest.size == shortest.bound),
        }
    return _KNOWN[key]
