"""Closed-form effect of one gradient step on the embeddings, and the resulting recommended step size."""

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
    """Predict the change in the values E·v after one step on E: η0 α_s / 2, (V,), or η0 α_{s,k}, (V, K).

    α_s is the average signed frequency of token s.

    Args:
        corpus: n sequences over V tokens.
        step_size: η0.
        alpha: α, (V,) or (V, K); computed from the corpus by default.

    Source:
        Lemma 4.1 of arXiv 2505.17282; for K classes, its public review thread.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.theory.predicted_values(corpus, step_size=8.0).tolist()
        [1.0, -1.0, 0.0]
    """
    alpha = average_signed_frequency(corpus) if alpha is None else alpha
    return step_size * alpha / 2 if corpus.num_classes == 2 else step_size * alpha


def one_step_error(
    change: Array, corpus: Corpus, step_size: float | Array, alpha: Array | None = None
) -> Float[Array, ""]:
    """Return the deviation from the one-step law, max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0.

    E_s⁰ and E_s¹ are the embeddings of token s before and after the step, and α_s is its average signed
    frequency. The deviation decreases like d^(-1/2).

    Args:
        change: (E¹ - E⁰) v, (V,) or (V, K).
        corpus: the corpus used for the step.
        step_size: η0.
        alpha: α, (V,) or (V, K); computed from the corpus by default.

    Source:
        Lemma 4.1 of arXiv 2505.17282.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> change = ja.theory.predicted_values(corpus, step_size=8.0)
        >>> float(ja.theory.one_step_error(change, corpus, step_size=8.0))
        0.0
    """
    return jnp.abs(change - predicted_values(corpus, step_size, alpha)).max() / step_size


# If the signal is ten times the noise, the flow of p selects the relevant token in every sequence under
# Assumption 1, for d from 256 to 4,096. See docs/notes/training_without_d.md.
CLEAR = 10.0


class Advice(NamedTuple):
    """Predicted change in E·v after one step on E, per unit of step size η0, and the recommended η0.

    Attributes:
        important: median over the important tokens of the absolute change.
        others: standard deviation of the change over all other tokens.
        logits: root mean square over sequences of the mean change, which is the logit under uniform
            attention.
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
        """Whether some η0 raises |E·v| of a typical important token above the spread of the other tokens."""
        return self.important > self.others

    def ratio(self, step_size: float) -> float:
        """Return |E·v| of a typical important token, divided by the spread of E·v over the other tokens.

        Both are predictions for one step of size `step_size`. The spread includes the noise before the step.
        """
        return step_size * self.important / float(np.hypot(self.noise, step_size * self.others))


def advise(
    corpus: Corpus,
    alpha: Array | np.ndarray,
    important: Bool[Array | np.ndarray, " V"],
    occurs: Bool[Array | np.ndarray, " V"],
    dim: float,
) -> Advice | None:
    """Return a recommended step size for a single gradient step on E, with the predicted changes in E·v.

    The result is None if no token is important, or if α is 0 for all important tokens.

        η0 = min(10 / (√d a), 1 / ℓ)

    Here a is the median of |α|/2 over important tokens, and ℓ is the root mean square, over sequences, of the
    mean of α/2 in a sequence. By the linear law, E·v changes by η0 α/2 (η0 α_k for K classes) from its
    initial distribution N(0, 1/d). The first term makes important tokens exceed this noise. The second term
    keeps the logits, of size ℓ η0, within the range of the law. Attention distinguishes important tokens only
    by their E·v: if a is below the spread of α/2 over the other tokens, no η0 makes E·p U-shaped as a
    function of α.

    Args:
        corpus: n sequences over V tokens.
        alpha: α, the average signed frequencies, (V,) or (V, K).
        important: (V,) bool; True for important tokens.
        occurs: (V,) bool; True for tokens that occur in the corpus.
        dim: d; inf for orthonormal embeddings.

    Source:
        Lemma 4.1 of arXiv 2505.17282. The rule for η0 is original to this library.
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
    # If there is no noise, any smaller step size works equally well.
    step_size = min(CLEAR * noise / typical or 0.1 / logits, 1 / logits)
    return Advice(typical, spread, logits, noise, step_size)
