"""Two-layer model in which both attention layers have trained key-query matrices, W1 and W2."""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.custom_batching import sequential_vmap
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxattn.attention.self_attention import two_layer_attention
from jaxattn.base import Model
from jaxattn.core.arguments import checked
from jaxattn.core.pytrees import Brief
from jaxattn.core.settings import PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.models.sampling import SquareInit, embeddings_query_head, sizes, square_matrix


@struct.dataclass(repr=False)
class Params(Brief):
    """Parameters of the two-layer model with trained attention weights.

    Attributes:
        E, p, v: as in `one_layer.Params`.
        W1: (d, d) key-query matrix of the first layer.
        W2: (d, d) key-query matrix of the read-out.
    """

    E: Array
    p: Array
    v: Array
    W1: Array
    W2: Array


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
    """Sample E, p and v as in `one_layer.init`, and initialise W1 and W2.

    If `weights` is "identity", W1 and W2 are the identity, and the model is initially equivalent to the
    two-layer model without weights. If it is "normal", their entries are sampled from N(0, 1/d).

    Raises:
        InputError: as in `one_layer.init`, or `weights` is neither "identity" nor "normal".

    Source:
        The initial W1 and W2 are not published; this library chooses them.

    Example:
        >>> params = ja.models.two_layer_weights.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> params.W1.shape, params.W2.shape
        ((4, 4), (4, 4))
    """
    E, p, v = embeddings_query_head(key, vocab_size=vocab_size, dim=dim, num_classes=num_classes, dtype=dtype)
    W1, W2 = (square_matrix(jax.random.fold_in(key, number), dim, dtype, weights) for number in (1, 2))
    return Params(E=E, p=p, v=v, W1=W1, W2=W2)


def scores_and_values(params: Params) -> tuple[Array, Array]:
    """Compute scores a = E W2 p, (V,), and values γ = E v, (V,) or (V, K).

    Example:
        >>> params = ja.models.two_layer_weights.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> [x.shape for x in ja.models.two_layer_weights.scores_and_values(params)]
        [(3,), (3,)]
    """
    return params.E @ (params.W2 @ params.p), params.E @ params.v


def outputs(params: Params, corpus: Corpus, *, residual: bool = False) -> Array:
    """Compute the outputs of the two-layer model with weights, (n,) for two classes and (n, K) for K > 2.

        f(X) = Σ_i q_i (H_i·v),   q = softmax(H W2 p),   H = Softmax(E_X W1 E_Xᵀ) E_X (+ E_X if `residual`)

    The rows of E_X are the embeddings of the tokens in sequence X.

    Source:
        Two-layer experiment with weight matrices in the public review of arXiv 2505.17282.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.two_layer_weights.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> ja.models.two_layer_weights.outputs(params, corpus).shape
        (2,)
    """
    scores, values = scores_and_values(params)
    queries = _embedding_product(corpus, params.E, params.W1)
    return two_layer_attention(corpus, queries, params.E, scores, values, residual=residual)


class TwoLayerWeights(Model[Corpus], frozen=True, kw_only=True):
    """Self-attention with a trained matrix W1, followed by attention with the query W2 p.

    Attributes:
        residual: True for a residual connection around self-attention.
    """

    takes: ClassVar[type[Corpus]] = Corpus

    dim: PositiveInt
    residual: bool = False
    cuts_batches: ClassVar[bool] = True
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v", "W1", "W2")

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `two_layer_weights.init`."""
        return init(key, **sizes(like), dim=self.dim, dtype=dtype)

    def outputs(self, params: Params, data: Corpus) -> Array:
        """Compute the outputs f, (n,) or (n, K); see `two_layer_weights.outputs`."""
        return outputs(params, data, residual=self.residual)

    scores_and_values = staticmethod(scores_and_values)


# Number of matrix rows multiplied at a time.
ROWS = 512


def _embedding_product(
    corpus: Corpus, table: Float[Array, "V d"], matrix: Float[Array, "d m"]
) -> Float[Array, "V m"]:
    """Compute E W, (V, m), with E = `table` and W = `matrix`.

    For a minibatch and a large table, only the rows of tokens that occur are computed; all others are zero.
    """
    if corpus.mean_entries is None or len(table) <= ROWS:
        return table @ matrix
    return _vmappable_product(corpus, table, matrix)


@jax.custom_vjp
def _vmappable_product(corpus: Corpus, table: Array, matrix: Array) -> Array:
    return _forward(corpus, table, matrix)[0]


def _forward(corpus: Corpus, table: Array, matrix: Array) -> tuple[Array, Any]:
    def compute(corpus: Corpus, table: Array, matrix: Array) -> Any:
        def visit(tokens: Array, own: Array, result: Array) -> Array:
            return result.at[tokens].set(take(table, own) @ matrix, mode="drop", unique_indices=True)

        return _fold(corpus, visit, jnp.zeros((len(table), matrix.shape[1]), table.dtype))

    return sequential_vmap(compute)(corpus, table, matrix), (corpus, table, matrix)


def _backward(residuals: Any, cotangent: Array) -> tuple[Any, ...]:
    """Compute ∂L/∂E_s = Ḡ_s Wᵀ and ∂L/∂W = Σ_s E_s Ḡ_sᵀ, for tokens s in the corpus, with Ḡ = ∂L/∂(E W)."""

    def compute(corpus: Corpus, table: Array, matrix: Array, cotangent: Array) -> Any:
        def visit(tokens: Array, own: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            d_table, d_matrix = carry
            held = jnp.where((tokens < len(table))[:, None], take(cotangent, own), 0)
            d_rows = held @ matrix.T
            d_table = d_table.at[tokens].set(d_rows, mode="drop", unique_indices=True)
            return d_table, d_matrix + take(table, own).T @ held

        return _fold(corpus, visit, (jnp.zeros_like(table), jnp.zeros_like(matrix)))

    return None, *sequential_vmap(compute)(*residuals, cotangent)


_vmappable_product.defvjp(_forward, _backward)


def _fold(corpus: Corpus, visit: Any, carry: Any) -> Any:
    bags, size = corpus.bags, corpus.vocab_size
    token = jnp.where(bags.count > 0, bags.index.astype(jnp.int32), size)
    # Use integers, because GPUs have no atomic operations on Booleans.
    is_held = jnp.zeros(size, jnp.int32).at[token].set(1, mode="drop") > 0
    # Pad with the out-of-range id V, which `mode="drop"` ignores.
    held = jnp.full(-(-size // ROWS) * ROWS, size, jnp.int32)
    place = jnp.where(is_held, jnp.cumsum(is_held, dtype=jnp.int32) - 1, len(held))
    held = held.at[place].set(jnp.arange(size, dtype=jnp.int32), mode="drop", unique_indices=True)

    def step(number: Array, carry: Any) -> Any:
        tokens = jax.lax.dynamic_slice_in_dim(held, number * ROWS, ROWS)
        return visit(tokens, jnp.minimum(tokens, size - 1), carry)

    return jax.lax.fori_loop(0, -(-is_held.sum() // ROWS), step, carry)
