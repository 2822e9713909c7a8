"""How widely attention is spread: its entropy over the distinct tokens of a sequence."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.base import Phase, Probe, Task
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.probes.seen import Seen, wants_attention


@sequential_vmap_if_large
def attention_entropy(corpus: Corpus, scores: Float[Array, "V"]) -> Float[Array, "n"]:
    """Compute -Σ_s q_s log q_s, q_s = count_s exp(a_s) / Σ_r count_r exp(a_r), of every sequence.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,); any finite spread.

    Returns:
        (n,), in nats: 0 if attention rests on one token, however often it occurs.
    """
    bags = corpus.bags
    score = jnp.where(bags.count > 0, take(scores, bags.index.astype(jnp.int32)), -jnp.inf)
    top = bags.max(score)
    top = jnp.where(top == -jnp.inf, 0, top)  # a sequence without tokens, as padding may hold
    weight = bags.count.astype(scores.dtype) * jnp.exp(score - bags.spread(top))
    (normaliser,) = bags.sum(weight)
    q = weight / bags.spread(jnp.where(normaliser > 0, normaliser, 1))
    (entropy,) = bags.sum(-q * jnp.log(jnp.where(q > 0, q, 1)))
    return entropy


class AttentionEntropy(Probe, frozen=True, kw_only=True):
    """The mean entropy of attention over sequences, and its exponential, a number of tokens."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "attention_entropy": "attention entropy",
        "attended_tokens": "attended tokens",
    }

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants attention that is softmax over scores of the tokens of bags."""
        return wants_attention(task)

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure attention_entropy and attended_tokens on the training corpus."""
        entropy = attention_entropy(seen.data.train, seen.scores_and_values[0]).mean()
        return {"attention_entropy": entropy, "attended_tokens": jnp.exp(entropy)}
