"""One-layer model with a trained key-query matrix: scores a = E W p."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.attention import attend
from jaxattn.core.arguments import checked
from jaxattn.core.pytrees import Brief
from jaxattn.core.settings import PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.models.sampling import SquareInit, embeddings_query_head, sizes, square_matrix
from jaxattn.models.token_model import TokenModel


@struct.dataclass(repr=False)
class Params(Brief):
    """Parameters of the one-layer model with a key-query matrix.

    Attributes:
        E, p, v: as in `one_layer.Params`.
        W: (d, d) key-query matrix.
    """

    E: Array
    p: Array
    v: Array
    W: Array


@checked
@partial(jax.jit, static_argnames=("vocab_size", "dim", "num_classes", "dtype", "weights"))
def init(
    key: Array,
    *,
    vocab_size: int,
    dim: int,
    num_classes: int = 2,
    dtype: DTypeLike = jnp.float32,
    weights: SquareInit = "identity",
) -> Params:
    """Sample E, p and v as in `one_layer.init`. W is the identity, or its entries are sampled from N(0, 1/d).

    With `weights="identity"`, the model is initially equivalent to the one-layer model.

    Raises:
        InputError: as in `one_layer.init`, or `weights` is neither "identity" nor "normal".

    Example:
        >>> params = ja.models.key_query.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> params.W.shape
        (4, 4)
    """
    E, p, v = embeddings_query_head(key, vocab_size=vocab_size, dim=dim, num_classes=num_classes, dtype=dtype)
    return Params(E=E, p=p, v=v, W=square_matrix(jax.random.fold_in(key, 1), dim, dtype, weights))


def scores_and_values(params: Params) -> tuple[Array, Array]:
    """Compute scores a = E W p, (V,), and values γ = E v, (V,) or (V, K).

    Example:
        >>> params = ja.models.key_query.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> [x.shape for x in ja.models.key_query.scores_and_values(params)]
        [(3,), (3,)]
    """
    return params.E @ (params.W @ params.p), params.E @ params.v


def outputs(params: Params, data: Corpus) -> Array:
    """Return f(X) = Σ_i q_i (E_{x_i}·v) with q = softmax(E_X W p) for each sequence, (n,) or (n, K).

    Source:
        Attention as in Tarzanagh et al. (arXiv 2306.13596), with W and p trained separately as in the paper,
        except that the embeddings are trained too.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.key_query.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> ja.models.key_query.outputs(params, corpus).shape
        (2,)
    """
    scores, values = scores_and_values(params)
    return attend(data, scores, values)


class KeyQuery(TokenModel, frozen=True, kw_only=True):
    """One attention layer with a trained key-query matrix W.

    Attributes:
        weights: initial W: "identity", or "normal" for random entries with variance 1/d.
    """

    dim: PositiveInt
    weights: SquareInit = "identity"
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v", "W")

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `key_query.init`."""
        return init(key, **sizes(like), dim=self.dim, dtype=dtype, weights=self.weights)

    scores_and_values = staticmethod(scores_and_values)
