"""Base class for models that attend to tokens by their scores."""

from typing import ClassVar

from jax import Array

from jaxattn.attention import attend
from jaxattn.base import Model
from jaxattn.base.model import Params
from jaxattn.data.corpus import Corpus


class TokenModel(Model[Corpus], frozen=True, kw_only=True):
    """Base class for models whose attention is a softmax of scores over the tokens of a sequence.

        f(X) = Σ_i q_i γ_{x_i},   q = softmax of the scores a_{x_1}, a_{x_2}, ... of the sequence X

    Subclasses define `init` and `scores_and_values`, and `outputs` if the output is not this mean of values.
    All probes and figures of token scores, values and attention apply to them.
    """

    takes: ClassVar[type[Corpus]] = Corpus

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute token scores a, (V,), and values γ, (V,) or (V, K)."""
        raise NotImplementedError(f"{type(self).__name__}.scores_and_values")

    def outputs(self, params: Params, data: Corpus) -> Array:
        """Compute the attention-weighted mean of the values, (n,) for two classes and (n, K) for more."""
        return attend(data, *self.scores_and_values(params))
