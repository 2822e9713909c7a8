"""The one-layer softmax attention classifier with a `<cls>` query and trained embeddings."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.attention import attend
from jaxattn.data.corpus import Corpus
from jaxattn.models.initial import embeddings_query_head
from jaxattn.spec import PositiveInt, Spec
from jaxattn.trees import Leaf


@struct.dataclass
class Params:
    """Parameters of the one-layer model.

    Attributes:
        E: (V, d) embeddings.
        p: (d,) embedding of `<cls>`, the only query.
        v: (d,) head, or (d, K) heads for K > 2 classes; unit norm each at initialisation.
    """

    E: Leaf
    p: Leaf
    v: Leaf


@partial(jax.jit, static_argnames=("vocab_size", "dim", "num_classes", "dtype"))
def init(
    key: Array, *, vocab_size: int, dim: int, num_classes: int = 2, dtype: DTypeLike = jnp.float32
) -> Params:
    """Draw initial parameters: E_s, p ~ N(0, I/d) and v uniform on the unit sphere.

    Args:
        key: PRNG key.
        vocab_size: V. A larger V leaves the rows of a smaller one unchanged.
        dim: d.
        num_classes: K; two classes share one head.
        dtype: of all parameters.

    Returns:
        The parameters.

    Raises:
        InputError: a size below 1, or fewer than two classes.

    Source:
        Section on the model in arXiv 2505.17282; the direction of v is not published and drawn here.
    """
    E, p, v = embeddings_query_head(key, vocab_size=vocab_size, dim=dim, num_classes=num_classes, dtype=dtype)
    return Params(E=E, p=p, v=v)


def scores_and_values(params: Params) -> tuple[Array, Array]:
    """Project the embeddings: scores a = E p, (V,), and values γ = E v, (V,) or (V, K)."""
    return params.E @ params.p, params.E @ params.v


def logits(params: Params, corpus: Corpus) -> Array:
    """Compute f(X) = Σ_i q_i (E_{x_i}·v) with q = softmax(E_X p) for every sequence.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K).
        corpus: n sequences over V tokens.

    Returns:
        (n,) for two classes, (n, K) for K heads.

    Source:
        Model of arXiv 2505.17282: no positions, no 1/√d, no key or query matrix.
    """
    scores, values = scores_and_values(params)
    return attend(corpus, scores, values)


class OneLayer(Spec, frozen=True, kw_only=True):
    """The one-layer attention classifier; `dim` is d."""

    dim: PositiveInt
    attends_to_tokens: ClassVar[bool] = True
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v")

    @property
    def is_one_layer(self) -> bool:
        """Whether scores are E·p and values E·v, as theory takes them: not where a subclass has its own."""
        own = type(self)
        return own.logits is OneLayer.logits and own.scores_and_values is OneLayer.scores_and_values

    def init(self, key: Array, *, vocab_size: int, num_classes: int = 2, dtype: DTypeLike) -> Params:
        """Draw the parameters, see the module's `init`."""
        return init(key, vocab_size=vocab_size, dim=self.dim, num_classes=num_classes, dtype=dtype)

    def logits(self, params: Params, corpus: Corpus) -> Array:
        """Compute f, (n,) or (n, K), see the module's `logits`."""
        return logits(params, corpus)

    def numbers_at_most(self, vocab_size: int, num_classes: int) -> int:
        """Bound how many numbers the parameters are, without looking at them."""
        return (vocab_size + 1 + num_classes) * self.dim

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute scores (V,) and values (V,) or (V, K) of tokens, see the module's `scores_and_values`."""
        return scores_and_values(params)
