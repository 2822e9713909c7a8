"""Effect of one gradient step on the embeddings in closed form, and the step size that follows from it."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxattn.attention import attend
from jaxattn.data.corpus import Corpus
from jaxattn.data.importance import average_signed_frequency


def predicted_values(
    corpus: Corpus, step_size: float | Array, alpha: Array | None = None
) -> Float[Array, " V"] | Float[Array, "V K"]:
    """Predict the change of the values E·v in one step: η0 α_s / 2, (V,), or η0 α_{s,k}, (V, K).

    Args:
        corpus: n sequences over V tokens.
        step_size: η0.
        alpha: α, (V,) or (V, K); recomputed by default.

    Source:
        Lemma 4.1 of arXiv 2505.17282; K classes from its public review thread.
    """
    alpha = average_signed_frequency(corpus) if alpha is None else alpha
    return step_size * alpha / 2 if corpus.num_classes == 2 else step_size * alpha


def one_step_error(
    change: Array, corpus: Corpus, step_size: float | Array, alpha: Array | None = None
) -> Float[Array, ""]:
    """Return the distance to the one-step law per unit of η0, max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0.

    It falls like d^(-1/2).

    Args:
        change: (E¹ - E⁰) v, (V,) or (V, K).
        corpus: the corpus that the step was taken on.
        step_size: η0.
        alpha: α, (V,) or (V, K); recomputed by default.

    Source:
        Lemma 4.1 of arXiv 2505.17282.
    """
    return jnp.abs(change - predicted_values(corpus, step_size, alpha)).max() / step_size


# If the signal is ten times the noise, the flow of p selects the relevant token of every sequence under
# Assumption 1, for d from 256 to 4,096: docs/notes/training_without_d.md.
CLEAR = 10.0


class Advice(NamedTuple):
    """Predicted effect of one step of size η0 on E·v, per unit of η0, and the recommended η0.

    Attributes:
        important: median of |E·v| over the important tokens.
        others: standard deviation of E·v over all other tokens.
        logits: root mean square of the logits, which are means of E·v at uniform attention.
        noise: standard deviation of E·v before the step, 1/√d; not per unit of η0.
        step_size: the recommended η0.
    """

    important: float
    others: float
    logits: float
    noise: float
    step_size: float

    @property
    def is_enough(self) -> bool:
        """True if a typical important token exceeds the spread of the other tokens at some η0."""
        return self.important > self.others

    def ratio(self, step_size: float) -> float:
        """Return |E·v| of a typical important token over the spread of the others, noise included."""
        return step_size * self.important / float(np.hypot(self.noise, step_size * self.others))


def advise(
    corpus: Corpus,
    alpha: Array | np.ndarray,
    important: Bool[Array | np.ndarray, " V"],
    occurs: Bool[Array | np.ndarray, " V"],
    dim: float,
) -> Advice | None:
    """Recommend the size of one step on E; None if α is 0 for all important tokens, or there are none.

        η0 = min(10 / (√d a), 1 / ℓ)

    At the first size important tokens exceed the noise. The second keeps the logits, of size ℓ η0, within the
    range of the linear law. By this law E·v changes by η0 α/2, for K classes by η0 α_k, from its initial
    value N(0, 1/d). a is the median of |α|/2 over the important tokens, and ℓ the root mean square of the
    mean of α/2 over each sequence. Attention distinguishes important tokens by their E·v alone. So if a is
    below the spread of α/2 over the other tokens, E·p is not U-shaped at any η0.

    Args:
        corpus: n sequences over V tokens.
        alpha: α, (V,) or (V, K).
        important: (V,) bool.
        occurs: (V,) bool; whether the token occurs in the corpus.
        dim: d, inf for orthonormal embeddings.

    Source:
        Lemma 4.1 of arXiv 2505.17282; the rule for η0 is this library's.
    """
    values = predicted_values(corpus, 1.0, jnp.asarray(alpha))
    means = np.asarray(attend(corpus, jnp.zeros(corpus.vocab_size), values), np.float64)
    size = np.asarray(values, np.float64).reshape(corpus.vocab_size, -1)
    chosen, rest = np.asarray(important), np.asarray(occurs) & ~np.asarray(important)
    typical = float(np.median(np.abs(size[chosen]).max(axis=1))) if chosen.any() else 0.0
    if typical == 0:
        return None
    spread = float(np.sqrt(size[rest].var(axis=0).mean())) if rest.any() else 0.0
    logits = float(np.sqrt(np.mean(means**2)))
    noise = 1 / float(np.sqrt(dim))
    # Without noise any smaller step works equally well.
    step_size = min(CLEAR * noise / typical or 0.1 / logits, 1 / logits)
    return Advice(typical, spread, logits, noise, step_size)
