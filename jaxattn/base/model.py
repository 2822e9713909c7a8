"""Base classes for models, losses and initial parameter values."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, runtime_checkable

from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxattn.base.data import D, Dataset
from jaxattn.base.from_function import FromFunction, Function, parameters, settings_class
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import AnyArray
from jaxattn.core.spec import Spec

# Named arrays in a dataclass, NamedTuple or dict.
Params = PyTree


@runtime_checkable
class LinearScores(Protocol):
    """Linear scores a = Φ p of m tokens, with a corpus and token values, as in `jaxattn.theory.Scores`."""

    @property
    def keys(self) -> AnyArray:
        """Keys Φ, (m, D)."""

    @property
    def corpus(self) -> Any:
        """Bags of n labelled sequences over the m tokens: a `jaxattn.data.Corpus`."""

    @property
    def values(self) -> AnyArray | None:
        """Token values γ, (m,) for two classes and (m, K) for K > 2; None if only the scores are needed."""


@runtime_checkable
class HasTokenScores(Protocol):
    """Model with scores and values of tokens, which token tables and many figures and probes require."""

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute token scores a, (V,), and values γ, (V,) or (V, K)."""
        ...


@runtime_checkable
class HasHeads(Protocol):
    """Model whose attention is a softmax of token scores from several heads or queries."""

    def head_scores(self, params: Params) -> Array:
        """Compute the token scores of each head or query, (H, V)."""
        ...


@runtime_checkable
class HasAttention(Protocol):
    """Model that returns the attention over the tokens of each example."""

    def attention(self, params: Params, data: Any) -> Array:
        """Compute the attention over the tokens of each example.

        Args:
            params: parameters, as returned by `Model.init`.
            data: n examples.

        Returns:
            (n, ..., T): the attention for one query, or for several heads and queries. The rows of positions
            that are not queries, such as padding, are NaN.
        """
        ...


@runtime_checkable
class HasLinearScores(Protocol):
    """Model whose scores are linear in a parameter, which exact flows and certified directions require."""

    @property
    def linear_in(self) -> str | None:
        """Name of the parameter; None if a subclass has other scores."""

    def scores(self, params: Params, data: Any) -> LinearScores:
        """Return scores a = Φ p, where p is the flattened parameter.

        Args:
            params: parameters, as returned by `Model.init`.
            data: n examples.

        Returns:
            Keys, corpus and values, for example as a `jaxattn.theory.Scores`.
        """
        ...


class Model(Spec, Generic[D], frozen=True, kw_only=True):
    """Base class for models: functions of data and of named parameters, which form a pytree of arrays.

    A model defines `init` and `outputs`. It may also have the methods of `HasTokenScores`, `HasHeads`,
    `HasAttention` and `HasLinearScores`, which enable further phases, probes and figures.

    Attributes:
        takes: type of data that the model accepts; other types are rejected before compilation.
        parameters: names of the parameters, so that wrong names are reported early; () if unknown.
        token_rows: names of the parameters with one row per token, so that one program can sweep V. The
            vocabulary may then be padded with tokens that never occur, whose rows are zero. A subclass that
            defines a method does not inherit it.
        cuts_batches: True if a minibatch step builds a new corpus from the sequences in the batch. Set it
            to True if this is cheaper than evaluating the model on the whole corpus.
        dim: embedding dimension d.
    """

    overridable: ClassVar[frozenset[str]] = frozenset({"dim"})
    about_methods: ClassVar[frozenset[str]] = frozenset({"token_rows"})
    takes: ClassVar[type[Dataset]] = Dataset
    parameters: ClassVar[tuple[str, ...]] = ()
    token_rows: ClassVar[tuple[str, ...]] = ()
    cuts_batches: ClassVar[bool] = False

    @property
    def dim(self) -> int | Literal["inf"] | None:
        """Embedding dimension d."""
        return None

    def init(self, key: Array, like: D, *, dtype: DTypeLike) -> Params:
        """Sample the parameters for one seed.

        Args:
            key: () PRNG key.
            like: the training data. Only shapes and sizes may be used, such as V and K of a corpus.
            dtype: dtype of the parameters.
        """
        raise NotImplementedError(f"{type(self).__name__}.init")

    def outputs(self, params: Params, data: D) -> Array:
        """Compute the outputs, which are the first argument of the loss.

        Args:
            params: parameters, as returned by `init`.
            data: n examples.

        Returns:
            (n, ...) in the dtype of the parameters: f, (n,) for two classes and (n, K) for more.
        """
        raise NotImplementedError(f"{type(self).__name__}.outputs")

    def in_span(self) -> "Model[D]":
        """Return the model with parameters in coordinates of their span, or `self` if this is unsupported."""
        return self


def linear_in(model: Model[Any]) -> str | None:
    """Return the name of the parameter in which the scores of a model are linear, or None."""
    return model.linear_in if isinstance(model, HasLinearScores) else None


def check_type(given: type[Dataset], model: Model[Any]) -> None:
    """Raise InputError unless the model accepts data of the given type."""
    if not issubclass(given, model.takes):
        raise InputError(
            f"model: requires {model.takes.__name__}, but the data are {given.__name__}; choose another "
            "model or other data"
        )


class Loss(Spec, frozen=True, kw_only=True):
    """Base class for losses. A study minimises the mean over examples, or one number per batch if `coupled`.

    Attributes:
        coupled: True if the loss is a single number for a whole batch, as in contrastive and ranking losses.
            In that case, a minibatch step uses only the examples in the batch.
        bounds: smallest and largest possible value of the loss; intervals for its means are clipped to them.
    """

    coupled: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def skip_reason(self, outputs: Array, data: Dataset) -> str | None:
        """Return why the loss cannot be used with these outputs and targets, or None if it can be used."""
        return None

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """Compute the loss of each example.

        Args:
            outputs: (n, ...); outputs of the model: f, (n,) for two classes and (n, K) for more.
            targets: (n, ...); labels -1 and +1 for two classes, 0 to K-1 for K > 2 classes.

        Returns:
            (n,) in the dtype of the outputs; () if the loss is `coupled`.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")


class Start(Spec, frozen=True, kw_only=True):
    """Initial value of one parameter, used instead of the value sampled by the model.

    Attributes:
        rotation_invariant: True if the function commutes with rotations of R^d, so that it may run in
            coordinates of the span of the parameters. A subclass that defines a method does not inherit it.
    """

    about_methods: ClassVar[frozenset[str]] = frozenset({"rotation_invariant"})
    rotation_invariant: ClassVar[bool] = False

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Array:
        """Return the initial value of one parameter.

        Args:
            key: () PRNG key, different for each seed and parameter.
            drawn: the value sampled by the model.
            tokens: names of the V tokens.

        Returns:
            Array with the shape and dtype of `drawn`.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")


class ModelFromFunction(FromFunction, Model[Any], frozen=True, kw_only=True):
    """Model built from a function `(*, settings) -> model`; the returned model has `init` and `outputs`."""

    def built(self) -> Any:
        """Return the model that the function returns for these settings."""
        return self._call()

    def init(self, key: Array, like: Dataset, *, dtype: DTypeLike) -> Params:
        """Sample the parameters for one seed."""
        params: Params = self._call().init(key, like, dtype=dtype)
        return params

    def outputs(self, params: Params, data: Dataset) -> Array:
        """Compute the model's outputs."""
        outputs: Array = self._call().outputs(params, data)
        return outputs


def model_class(function: Function, **attributes: Any) -> type[Any]:
    """Return the settings class for a function that returns a model.

    Raises:
        InputError: the function has an argument that is not a setting.
    """
    for name, p in parameters(function).items():
        if p.kind is not p.KEYWORD_ONLY:
            location = attributes.get("kind") or function.__name__
            raise InputError(
                f"{location}: argument {name!r} is not keyword-only; "
                "a model function takes only settings, after *, and "
                "returns a model"
            )
    return settings_class(function, ModelFromFunction, **attributes)


class LossFromFunction(FromFunction, Loss, frozen=True, kw_only=True):
    """Loss built from a function `(outputs, targets, *, settings) -> (n,)`."""

    def __call__(self, outputs: Array, targets: Array) -> Any:
        """Compute the loss of each example."""
        return self._call(outputs, targets)


class StartFromFunction(FromFunction, Start, frozen=True, kw_only=True):
    """Start built from a function `(key, drawn, *, [tokens,] settings) -> array like drawn`."""

    not_settings: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Any:
        """Return the initial value of one parameter."""
        named = {"tokens": tokens} if "tokens" in parameters(type(self).function) else {}
        return self._call(key, drawn, **named)
