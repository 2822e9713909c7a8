"""Models, where their parameters start, and losses of what they compute."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, runtime_checkable

from jax import Array

from jaxattn.base.data import D, Dataset
from jaxattn.core.settings import Spec

# Named arrays: a dataclass, a NamedTuple or a dict of them.
Params = Any


@runtime_checkable
class LinearScores(Protocol):
    """Scores a = Φ p of m tokens with what they are scores of, such as `jaxattn.theory.Scores`."""

    @property
    def keys(self) -> Any:
        """Φ, (m, D)."""

    @property
    def corpus(self) -> Any:
        """Bags of n sequences over the m tokens, with their labels; a `jaxattn.data.Corpus`."""

    @property
    def values(self) -> Any:
        """γ, (m,) for two classes and (m, K) for K > 2; None where only scores matter."""


class Model(Spec, Generic[D], frozen=True, kw_only=True):
    """A function of data. Its parameters are named arrays: a dataclass, NamedTuple or dict.

    Attributes:
        takes: the kind of data that it takes; any other is refused before anything is compiled.
        parameters: their names, so that wrong ones are found before anything is drawn; () says nothing.
        token_rows: names of the parameters with a row for every token, so that V can be swept in one program.
        attends_to_tokens: whether the scores are those of its softmax over the tokens of a sequence.
        cuts_batches: whether a step on a minibatch is given a corpus of its sequences alone, for models whose
            outputs of a whole corpus cost more than laying out a new one.
        linear_in: name of the parameter that `scores` are linear in; None for a model without them.
        is_one_layer: whether scores are E·p, values E·v and outputs their attention, as theory takes them.
        dim: d, the embedding dimension.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset({"dim"})
    takes: ClassVar[type[Dataset]] = Dataset
    parameters: ClassVar[tuple[str, ...]] = ()
    token_rows: ClassVar[tuple[str, ...]] = ()
    attends_to_tokens: ClassVar[bool] = False
    cuts_batches: ClassVar[bool] = False

    @property
    def linear_in(self) -> str | None:
        """Name of the parameter that `scores` are linear in; None for a model without them."""
        return None

    @property
    def is_one_layer(self) -> bool:
        """Whether scores are E·p, values E·v and outputs their attention, as theory takes them."""
        return False

    @property
    def dim(self) -> int | Literal["inf"] | None:
        """The width d, the embedding dimension."""
        return None

    @property
    def has_scores(self) -> bool:
        """Whether its tokens have scores and values, for tables, figures and probes of tokens."""
        return type(self).scores_and_values is not Model.scores_and_values

    @property
    def has_heads(self) -> bool:
        """Whether its attention is softmax over the scores of several heads or queries."""
        return type(self).head_scores is not Model.head_scores

    @property
    def shows_attention(self) -> bool:
        """Whether it tells its attention over the tokens of each example."""
        return type(self).attention is not Model.attention

    def init(self, key: Array, like: D, *, dtype: Any) -> Params:
        """Draw the parameters of one seed.

        Args:
            key: () PRNG key.
            like: the training data, of which only shapes and sizes may be used, such as V and K of a corpus.
            dtype: of all parameters.

        Returns:
            The parameters.
        """
        raise NotImplementedError(f"{type(self).__name__}.init")

    def outputs(self, params: Params, data: D) -> Array:
        """Compute what the loss compares with the targets.

        Args:
            params: as `init` returns them.
            data: n examples.

        Returns:
            (n, ...) of the parameters' dtype; f (n,) for two classes, (n, K) for more.
        """
        raise NotImplementedError(f"{type(self).__name__}.outputs")

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute scores a (V,) and values γ (V,) or (V, K) of the tokens of bags; may be left out."""
        raise NotImplementedError(f"{type(self).__name__}.scores_and_values")

    def head_scores(self, params: Params) -> Array:
        """Compute the scores of each head or query over the tokens of bags, (H, V); may be left out."""
        raise NotImplementedError(f"{type(self).__name__}.head_scores")

    def attention(self, params: Params, data: D) -> Array:
        """Compute attention over the tokens of each example; may be left out.

        Args:
            params: as `init` returns them.
            data: n examples.

        Returns:
            (n, ..., T): of one query, or of several heads and queries. Rows of NaN are no queries, such as
            those of padding.
        """
        raise NotImplementedError(f"{type(self).__name__}.attention")

    def scores(self, params: Params, data: D) -> LinearScores:
        """Write scores as a = Φ p, p the parameter `linear_in` in one row, with values; may be left out.

        Args:
            params: as `init` returns them.
            data: n examples.

        Returns:
            Keys, corpus and values, such as a `jaxattn.theory.Scores`.
        """
        raise NotImplementedError(f"{type(self).__name__}.scores")

    def in_span(self) -> "Model[D]":
        """Return the same model in coordinates of the span of its parameters; itself if it has none."""
        return self


class Loss(Spec, frozen=True, kw_only=True):
    """The loss of an example, of which a study minimises the mean; or of a batch of them.

    Attributes:
        coupled: whether it is one number of a whole batch, as contrastive and ranking losses are. A step on a
            minibatch then is given the examples of the batch alone.
    """

    coupled: ClassVar[bool] = False

    @property
    def is_logistic(self) -> bool:
        """Whether it is the logistic loss of two classes, without smoothing."""
        return False

    def why_not(self, outputs: Array, data: Dataset) -> str | None:
        """Say what outputs and targets lack for it, by their shapes and dtypes; None if it takes them."""
        return None

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """Compute ℓ of every example.

        Args:
            outputs: (n, ...) what the model computes; f (n,) for two classes, (n, K) for more.
            targets: (n, ...); of classes -1 and +1 if they are two, 0 .. K-1 if more.

        Returns:
            (n,), of the outputs' dtype; () if it is `coupled`.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")


class Start(Spec, frozen=True, kw_only=True):
    """Where one parameter starts, if not where the model draws it.

    Attributes:
        rotation_invariant: whether it commutes with rotations of R^d, so that it may start in a span.
    """

    rotation_invariant: ClassVar[bool] = False

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Make the start of a parameter.

        Args:
            key: () PRNG key, the seed's and the parameter's own.
            drawn: what the model draws.
            tokens: names of the V tokens.

        Returns:
            An array of the shape and dtype of `drawn`.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")
