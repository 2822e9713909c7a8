"""Model with a hidden layer after attention: f = v·relu(h W + b) with h = Σ_i q_i E_{x_i}."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.attention import pool
from jaxattn.core.arguments import checked
from jaxattn.core.pytrees import Brief
from jaxattn.core.settings import PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.models.sampling import SquareInit, embeddings_query_head, sizes, square_matrix
from jaxattn.models.token_model import TokenModel


@struct.dataclass(repr=False)
class Params(Brief):
    """Parameters of the model with a hidden layer. The layer has width d, so that E v is defined.

    Attributes:
        E, p, v: as in `one_layer.Params`.
        W: (d, d) weights of the hidden layer.
        b: (d,) bias of the hidden layer.
    """

    E: Array
    p: Array
    v: Array
    W: Array
    b: Array


@checked
@partial(jax.jit, static_argnames=("vocab_size", "dim", "num_classes", "dtype", "weights"))
def init(
    key: Array,
    *,
    vocab_size: int,
    dim: int,
    num_classes: int = 2,
    dtype: DTypeLike = jnp.float32,
    weights: SquareInit = "normal",
) -> Params:
    """Sample E, p and v as in `one_layer.init`. W has entries from N(0, 1/d), or is the identity; b = 0.

    Raises:
        InputError: as in `one_layer.init`, or `weights` is neither "identity" nor "normal".

    Source:
        The initial W and b are not published; this library chooses them.

    Example:
        >>> params = ja.models.mlp.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> params.W.shape, params.b.shape
        ((4, 4), (4,))
    """
    E, p, v = embeddings_query_head(key, vocab_size=vocab_size, dim=dim, num_classes=num_classes, dtype=dtype)
    W = square_matrix(jax.random.fold_in(key, 1), dim, dtype, weights)
    return Params(E=E, p=p, v=v, W=W, b=jnp.zeros(dim, dtype))


def scores_and_values(params: Params) -> tuple[Array, Array]:
    """Compute scores a = E p, (V,), and values γ = E v, (V,) or (V, K).

    Example:
        >>> params = ja.models.mlp.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> [x.shape for x in ja.models.mlp.scores_and_values(params)]
        [(3,), (3,)]
    """
    return params.E @ params.p, params.E @ params.v


def outputs(params: Params, data: Corpus) -> Array:
    """Return f(X) = v·relu(Σ_i q_i E_{x_i} W + b) with q = softmax(E_X p) for each sequence, (n,) or (n, K).

    Intermediate arrays have shape (n, d).

    Source:
        Experiment in the public review of arXiv 2505.17282, with one MLP layer of width d after the softmax.
        The activation is not published; this library uses ReLU.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.mlp.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> ja.models.mlp.outputs(params, corpus).shape
        (2,)
    """
    scores = params.E @ params.p
    # If a minibatch contains fewer sequences than the vocabulary has tokens, multiply the averages by W
    # instead of E.
    few = data.num_examples < data.vocab_size
    hidden = pool(data, scores, params.E) @ params.W if few else pool(data, scores, params.E @ params.W)
    return jax.nn.relu(hidden + params.b) @ params.v


class Mlp(TokenModel, frozen=True, kw_only=True):
    """One-layer attention followed by a hidden layer of width `dim`.

    Attributes:
        dim: d.
        weights: initial W: "normal" for random entries with variance 1/d, or "identity".
    """

    dim: PositiveInt
    weights: SquareInit = "normal"
    cuts_batches: ClassVar[bool] = True
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v", "W", "b")

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `mlp.init`."""
        return init(key, **sizes(like), dim=self.dim, dtype=dtype, weights=self.weights)

    outputs = staticmethod(outputs)
    scores_and_values = staticmethod(scores_and_values)
