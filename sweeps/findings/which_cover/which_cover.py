"""Corpora with planted covers, and a probe that compares the final top tokens with covers."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from cover import greedy_cover, minimum_cover
from jax import Array

import jaxattn as ja
from jaxattn.models.reference import padded_sequences

# Tolerance for treating values of |α| as equal: |α| is 0 for irrelevant tokens, and at least 1/(n T) for
# relevant tokens.
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
    """Sample a corpus in which each sequence contains a broad and a narrow token of its class.

    Sequences come in pairs, one of each class, which share their irrelevant tokens. The broad tokens of a
    class divide its sequences into equal parts, and form a cover. The narrow tokens divide the sequences
    differently, and also form a cover. With `halving`, the first narrow token occurs in more sequences than
    any broad token, and each further narrow token occurs in half as many sequences as the previous one. In
    this case, no shortest cover contains the most frequent token.
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
    """Comparison of the final top tokens with the shortest cover, the greedy cover, and covers ordered by α.

    For small initialisations, E grows along α and p along v, so the scores have the order of α or -α.
    `winner` is the label whose tokens score above all others. `variance_lead` is S divided by the mean of
    Var_X(α), where S = mean_X (y_X Var_X(α)) moves p along v. `variance_sign` is the sign of S. `start_sign`
    is the sign of the component of p_0 along the direction in which v and Eᵀα grow.
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

    def skip_reason(self, task: Any, phase: ja.Phase) -> str | None:
        """Return a reason to skip a phase that does not train all parameters, else None."""
        return None if {"E", "p", "v"} <= set(phase.train) else "requires a phase that trains E, p and v"

    def observe(self, phase: ja.Phase, state: Any) -> Array:
        """Return a = E p and p·v for one seed as a (V + 1,) array."""
        E, p, v = (phase.parameter(state, name) for name in ("E", "p", "v"))
        return jnp.append(E @ p, p @ v)

    def conclude(self, history: np.ndarray, params: Any, model: Any, loaded: Any) -> Any:
        """Compare the path of each seed with the covers of its corpus.

        `history` has shape (S, k, V + 1), with k points on the path of each of S seeds.
        """
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
    """Compare the top token of each sequence with the order of its tokens by α.

    Returns the fraction of sequences whose top token has the largest |α|, the larger of the fractions for the
    largest α and the largest -α, and the winning label.
    """
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
    """Return the size of the cover by |α|, and predictors of the winning label.

    `start` is a (V + 1,) array with the initial scores a and p·v.
    """
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
    """Return the sizes of the minimum cover and the greedy cover, or NaN if there is no cover.

    Also returns whether the minimum is proven. Results are cached.
    """
    key = b"".join(np.asarray(x).tobytes() for x in (corpus.bags.index, corpus.bags.count, corpus.targets))
    if key not in _KNOWN:
        shortest, greedy = minimum_cover(corpus), greedy_cover(corpus)
        _KNOWN[key] = {
            "shortest_cover": shortest.size if shortest else np.nan,
            "greedy_cover": greedy.size if greedy else np.nan,
            "proven": 1.0 if shortest is None else float(shortest.size == shortest.bound),
        }
    return _KNOWN[key]
