"""One-layer softmax attention classifier with a `<cls>` query and trained embeddings."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxattn.attention import attend
from jaxattn.attention.scores import Scores
from jaxattn.attention.scores import one_layer as linear_scores
from jaxattn.base import Model
from jaxattn.core import backend
from jaxattn.core.arguments import checked
from jaxattn.core.pytrees import Brief, attributes
from jaxattn.data.corpus import Corpus
from jaxattn.models import span
from jaxattn.models.sampling import embeddings_query_head, sizes
from jaxattn.models.span import Dim, infinite_by_name
from jaxattn.models.token_model import TokenModel


def project(E: Array | np.ndarray, p: Array | np.ndarray, v: Array | np.ndarray) -> tuple[Array, Array]:
    """Compute the scores E p, (V,), and the values E v.

    E v has shape (V,) for one read-out vector v, (d,), and (V, K) for K vectors, (d, K). For second
    derivatives, use forward-over-reverse mode.

    Example:
        >>> p, v = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
        >>> scores, values = ja.models.one_layer.project(jnp.eye(2), p, v)
        >>> scores.tolist(), values.tolist()
        ([1.0, 2.0], [3.0, 4.0])
    """
    if backend.platform() != "cpu":
        # On accelerators, the compiler fuses the two products with the operations that read them.
        return jnp.matmul(E, p), jnp.matmul(E, v)
    scores, values = _project(E, p, v if v.ndim == 2 else v[:, None])
    return scores, values if v.ndim == 2 else values[:, 0]


def _product(E: Any, p: Any, heads: Any) -> tuple[Array, Array]:
    projected = E @ jnp.concatenate([p[:, None], heads], axis=1)
    return projected[:, 0], projected[:, 1:]


def _forward(E: Any, p: Any, heads: Any) -> tuple[tuple[Array, Array], Any]:
    # The backward pass omits arguments without a tangent from the product.
    wanted = (() if p.perturbed else None, () if heads.perturbed else None)
    return _product(E.value, p.value, heads.value), (E.value, p.value, heads.value, wanted)


def _backward(residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    """Compute the cotangents of E, p and v, given those of a = E p and γ = E v.

    ∂L/∂E = ∂L/∂a pᵀ + ∂L/∂γ vᵀ,   ∂L/∂p = Eᵀ ∂L/∂a,   ∂L/∂v = Eᵀ ∂L/∂γ
    """
    E, p, heads, wanted = residuals
    shapes = E.shape[:1], (E.shape[0], heads.shape[1])
    d_scores, d_values = (
        jnp.zeros(shape, E.dtype) if isinstance(x, SymbolicZero) else x
        for x, shape in zip(cotangents, shapes, strict=True)
    )
    # An outer product is fused into the operation that reads ∂L/∂E, whereas a matrix product would be stored.
    d_E = d_scores[:, None] * p
    d_E = d_E + (d_values * heads[:, 0] if heads.shape[1] == 1 else d_values @ heads.T)
    if wanted == ((), None):
        return d_E, d_scores @ E, None
    if wanted == (None, ()):
        return d_E, None, (d_values.T @ E).T
    both = jnp.concatenate([d_scores[None], d_values.T]) @ E
    return d_E, both[0], both[1:].T


_project = jax.custom_vjp(_product)
_project.defvjp(_forward, _backward, symbolic_zeros=True)


@struct.dataclass(repr=False)
class Params(Brief):
    """Parameters of the one-layer model.

    Attributes:
        E: (V, d) embeddings.
        p: (d,) embedding of `<cls>`, the only query.
        v: (d,) read-out vector, or (d, K) for K > 2 classes; initially of unit norm.
    """

    E: Array
    p: Array
    v: Array


@checked
@partial(jax.jit, static_argnames=("vocab_size", "dim", "num_classes", "dtype"))
def init(
    key: Array, *, vocab_size: int, dim: Dim, num_classes: int = 2, dtype: DTypeLike = jnp.float32
) -> Params:
    """Sample the initial parameters: E_s and p from N(0, I/d), and v uniformly from the unit sphere.

    Args:
        key: PRNG key.
        vocab_size: V. Increasing V does not change the existing rows.
        dim: d. For "inf", the parameters are in span coordinates; see `span.start`.
        num_classes: K. For two classes, there is a single read-out vector.
        dtype: dtype of the parameters.

    Raises:
        InputError: a size is below 1, or there are fewer than two classes.

    Source:
        Model section of arXiv 2505.17282. The paper does not specify the direction of v, so it is random
        here.

    Example:
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> params.E.shape, params.p.shape, params.v.shape
        ((3, 4), (4,), (4,))
    """
    given: dict[str, Any] = {"vocab_size": vocab_size, "num_classes": num_classes, "dtype": dtype}
    if dim == "inf":
        return Params(*span.start(key, dim=dim, **given))
    return Params(*embeddings_query_head(key, dim=int(dim), **given))


def scores_and_values(params: Params | Mapping[str, Array]) -> tuple[Array, Array]:
    """Compute scores a = E p, (V,), and values γ = E v, (V,) or (V, K).

    Example:
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> scores, values = ja.models.one_layer.scores_and_values(params)
        >>> scores.shape, values.shape
        ((3,), (3,))
    """
    own = attributes(params)
    return project(own.E, own.p, own.v)


def outputs(params: Params | Mapping[str, Array], data: Corpus) -> Array:
    """Compute f(X) = Σ_i q_i (E_{x_i}·v), with q = softmax(E_X p), for each sequence X = (x_1, x_2, ...).

    The rows of E_X are the embeddings E_{x_i}. The result is (n,) for two classes and (n, K) for K > 2.

    Source:
        Model of arXiv 2505.17282, without positional encodings, 1/√d scaling, or key and query matrices.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.Params(E=jnp.eye(3), p=jnp.zeros(3), v=jnp.array([3.0, -1.0, 1.0]))
        >>> ja.models.one_layer.outputs(params, corpus).tolist()
        [2.0, 0.0]
    """
    scores, values = scores_and_values(params)
    return attend(data, scores, values)


class OneLayer(TokenModel, frozen=True, kw_only=True):
    """One-layer attention classifier with embedding dimension `dim`."""

    dim: Dim
    token_rows: ClassVar[tuple[str, ...]] = ("E",)
    parameters: ClassVar[tuple[str, ...]] = ("E", "p", "v")

    def __post_init__(self) -> None:
        infinite_by_name(self)
        super().__post_init__()

    @property
    def linear_in(self) -> str | None:
        """Name of the parameter in which `scores` is linear, or None if a subclass redefines the scores."""
        return "p" if is_one_layer(self) else None

    def scores(self, params: Params, data: Corpus) -> Scores:
        """Return the scores E p and the token values E v; see `theory.scores.one_layer`."""
        return linear_scores(params, data)

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `one_layer.init`."""
        return init(key, **sizes(like), dim=self.dim, dtype=dtype)

    scores_and_values = staticmethod(scores_and_values)

    def in_span(self) -> "OneLayer":
        """Return the model with its parameters expressed in coordinates of their span; see `models.span`."""
        # A subclass is not necessarily invariant under rotations of R^d.
        return OneLayerInSpan(dim=self.dim) if type(self) is OneLayer else self


def is_one_layer(model: Model[Any]) -> bool:
    """Return whether a model is the one-layer model of the theory.

    Its scores are E·p, its values E·v, and its output is the attention-weighted mean of the values.
    Subclasses of `OneLayer` that redefine them are other models.

    Example:
        >>> ja.models.one_layer.is_one_layer(ja.models.OneLayer(dim=4))
        True
    """
    own = type(model)
    return issubclass(own, OneLayer) and (own.outputs, own.scores_and_values) == (
        OneLayer.outputs,
        OneLayer.scores_and_values,
    )


class OneLayerInSpan(OneLayer, frozen=True, kw_only=True):
    """`OneLayer` in coordinates of the span of E, p and v, if this span has fewer than d dimensions."""

    token_rows: ClassVar[tuple[str, ...]] = ("E",)

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> Params:
        """Sample the parameters; see `span.start`."""
        return Params(*span.start(key, **sizes(like), dim=self.dim, dtype=dtype))
