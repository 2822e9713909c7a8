"""One attention layer with several heads: f = (1/H) Σ_h Σ_i q_i^h (E_{x_i}·v_h)."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.attention import attend
from jaxattn.base import Model
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief
from jaxattn.core.settings import PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.models.sampling import embeddings_query_head, sizes


@struct.dataclass(repr=False)
class Params(Brief):
    """Parameters of the one-layer model with H attention heads, each with its own query and read-out vector.

    Attributes:
        E: (V, d) embeddings.
        p: (H, d) queries.
        v: (H, d) read-out vectors, or (H, d, K) for K > 2 classes; initially of unit norm.
    """

    E: Array
    p: Array
    v: Array


@checked
@partial(jax.jit, static_argnames=("vocab_size", "dim", "heads", "num_classes", "dtype"))
def init(
    key: Array,
    *,
    vocab_size: int,
    dim: int,
    heads: int,
    num_classes: int = 2,
    dtype: DTypeLike = jnp.float32,
) -> Params:
    """Sample E_s and p_h from N(0, I/d), and v_h uniformly from the unit sphere, for H = `heads`.

    E, p_0 and v_0 are the same as in `one_layer.init`. Increasing H does not change the existing heads.

    Raises:
        InputError: as in `one_layer.init`, or `heads` is below 1.

    Example:
        >>> params = ja.models.multi_head.init(jax.random.key(0), vocab_size=3, dim=4, heads=2)
        >>> params.p.shape, params.v.shape
        ((2, 4), (2, 4))
    """
    if heads < 1:
        raise InputError(f"heads: must be at least 1, got {heads}")
    draw = partial(embeddings_query_head, dim=dim, num_classes=num_classes, dtype=dtype)
    E, p, v = draw(key, vocab_size=vocab_size)
    # Only p and v of the other heads are used, so sample them with a single row of E.
    others = [draw(jax.random.fold_in(key, h), vocab_size=1) for h in range(1, heads)]
    queries, readouts = [p, *(x[1] for x in others)], [v, *(x[2] for x in others)]
    return Params(E=E, p=jnp.stack(queries), v=jnp.stack(readouts))


def scores_and_values(params: Params) -> tuple[Array, Array]:
    """Compute the mean scores (1/H) Σ_h E p_h, (V,), and mean values (1/H) Σ_h E v_h, (V,) or (V, K).

    Unless H = 1, averaging these values with a softmax of these scores does not give the outputs.

    Example:
        >>> params = ja.models.multi_head.init(jax.random.key(0), vocab_size=3, dim=4, heads=2)
        >>> [x.shape for x in ja.models.multi_head.scores_and_values(params)]
        [(3,), (3,)]
    """
    return params.E @ params.p.mean(axis=0), params.E @ params.v.mean(axis=0)


def outputs(params: Params, data: Corpus) -> Array:
    """Return f(X) = (1/H) Σ_h Σ_i q_i^h (E_{x_i}·v_h) with q^h = softmax(E_X p_h), (n,) or (n, K).

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.multi_head.init(jax.random.key(0), vocab_size=3, dim=4, heads=2)
        >>> ja.models.multi_head.outputs(params, corpus).shape
        (2,)
    """

    def of_head(p: Array, v: Array) -> Array:
        return attend(data, params.E @ p, params.E @ v)

    return jax.vmap(of_head)(params.p, params.v).mean(axis=0)


class MultiHead(Model[Corpus], frozen=True, kw_only=True):
    """One attention layer that averages the outputs of several heads.

    Attributes:
        dim: embedding dimension d.
        heads: number of heads H, each with its own p and v.
    """

    takes: ClassVar[type[Corpus]] = Corpus

    dim: PositiveInt
    heads: PositiveInt
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v")

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `multi_head.init`."""
        return init(key, **sizes(like), dim=self.dim, dtype=dtype, heads=self.heads)

    outputs = staticmethod(outputs)
    scores_and_values = staticmethod(scores_and_values)

    def head_scores(self, params: Params) -> Array:
        """Compute the scores E p_h of each head, (H, V)."""
        return params.p @ params.E.T
