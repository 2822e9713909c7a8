"""Two attention layers: a first one without parameters, H = Softmax(E_X E_Xᵀ) E_X, then the read-out of H."""

import jax
from jaxtyping import Array, Float

from jaxattn.data.corpus import Corpus
from jaxattn.models.one_layer import Params, init, scores_and_values
from jaxattn.models.self_attention import attend_twice

# The parameters, their start and what the paper plots of them, E p and E v, are the one-layer model's.
__all__ = ["Params", "init", "logits", "scores_and_values"]


def logits(params: Params, corpus: Corpus, *, residual: bool = False) -> Array:
    """Compute f(X) = Σ_i q_i (H_i·v) with q = softmax(H p), H = Softmax(E_X E_Xᵀ) E_X, for every sequence.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K).
        corpus: n sequences over V tokens.
        residual: H = Softmax(E_X E_Xᵀ) E_X + E_X instead.

    Returns:
        (n,) for two classes, (n, K) for K heads.

    Raises:
        InputError: V > 46,340; the Gram matrix holds V² numbers.

    Source:
        The two-layer experiment of arXiv 2505.17282; whether it adds a residual is not published.
    """
    scores, values = scores_and_values(params)
    return attend_twice(corpus, _gram(params.E), scores, values, symmetric=True, residual=residual)


@jax.custom_vjp
def _gram(E: Float[Array, "V d"]) -> Float[Array, "V V"]:
    return E @ E.T


# Adding the two halves up first takes one product with E; autodiff would take two.
_gram.defvjp(lambda E: (E @ E.T, E), lambda E, d_gram: ((d_gram + d_gram.T) @ E,))
