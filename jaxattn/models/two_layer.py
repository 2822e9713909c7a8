"""Two attention layers: parameter-free self-attention H = Softmax(E_X E_Xᵀ) E_X, then a read-out from H."""

from typing import ClassVar

from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.attention.self_attention import two_layer_attention
from jaxattn.base import Model
from jaxattn.data.corpus import Corpus
from jaxattn.models import span
from jaxattn.models.one_layer import Params, init, scores_and_values
from jaxattn.models.sampling import sizes
from jaxattn.models.span import Dim, infinite_by_name

# The parameters, their initial values, and E p and E v are the same as in the one-layer model.
__all__ = ["Params", "TwoLayer", "init", "outputs", "scores_and_values"]


def outputs(params: Params, corpus: Corpus, *, residual: bool = False) -> Array:
    """Compute the outputs of the two-layer model, (n,) for two classes and (n, K) for K > 2.

        f(X) = Σ_i q_i (H_i·v),   q = softmax(H p),   H = Softmax(E_X E_Xᵀ) E_X (+ E_X if `residual`)

    The rows of E_X are the embeddings of the tokens in sequence X.

    Source:
        Two-layer experiment of arXiv 2505.17282, which does not specify whether there is a residual
        connection.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> ja.models.two_layer.outputs(params, corpus).shape
        (2,)
    """
    scores, values = scores_and_values(params)
    return two_layer_attention(corpus, params.E, None, scores, values, residual=residual)


class TwoLayer(Model[Corpus], frozen=True, kw_only=True):
    """Parameter-free self-attention, followed by attention with the query p.

    Attributes:
        residual: True for a residual connection around self-attention.
    """

    takes: ClassVar[type[Corpus]] = Corpus

    dim: Dim
    residual: bool = False
    cuts_batches: ClassVar[bool] = True
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v")

    def __post_init__(self) -> None:
        infinite_by_name(self)
        super().__post_init__()

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `two_layer.init`."""
        return init(key, **sizes(like), dim=self.dim, dtype=dtype)

    def outputs(self, params: Params, data: Corpus) -> Array:
        """Compute the outputs f, (n,) or (n, K); see the function `outputs` of this module."""
        return outputs(params, data, residual=self.residual)

    scores_and_values = staticmethod(scores_and_values)

    def in_span(self) -> "TwoLayer":
        """Return the model with its parameters expressed in coordinates of their span; see `models.span`."""
        # A subclass is not necessarily invariant under rotations of R^d.
        return TwoLayerInSpan(dim=self.dim, residual=self.residual) if type(self) is TwoLayer else self


class TwoLayerInSpan(TwoLayer, frozen=True, kw_only=True):
    """`TwoLayer` in coordinates of the span of E, p and v, if this span has fewer than d dimensions."""

    token_rows: ClassVar[tuple[str, ...]] = ("E",)

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `span.start`."""
        return Params(*span.start(key, **sizes(like), dim=self.dim, dtype=dtype))
