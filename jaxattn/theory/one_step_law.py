"""What one gradient step on the embeddings does, in closed form."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.importance import average_signed_frequency


def predicted_values(
    corpus: Corpus, step_size: float | Array, alpha: Array | None = None
) -> Float[Array, "V"] | Float[Array, "V K"]:
    """Predict the change of the values E·v in one step: η0 α_s / 2, for K classes η0 α_{s,k}.

    Args:
        corpus: n sequences over V tokens.
        step_size: η0.
        alpha: α, (V,) or (V, K), where it is known already.

    Returns:
        (V,) or (V, K).

    Source:
        Lemma 4.1 of arXiv 2505.17282; K classes from its public review thread.
    """
    alpha = average_signed_frequency(corpus) if alpha is None else alpha
    return step_size * alpha / 2 if corpus.num_classes == 2 else step_size * alpha


def one_step_error(
    change: Array, corpus: Corpus, step_size: float | Array, alpha: Array | None = None
) -> Float[Array, ""]:
    """Measure the distance to the one-step law per unit of η0, max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0.

    Args:
        change: (E¹ - E⁰) v, (V,) or (V, K).
        corpus: the corpus that the step was taken on.
        step_size: η0.
        alpha: α, (V,) or (V, K), where it is known already.

    Returns:
        A scalar that falls like d^(-1/2).

    Source:
        Lemma 4.1 of arXiv 2505.17282.
    """
    return jnp.abs(change - predicted_values(corpus, step_size, alpha)).max() / step_size
