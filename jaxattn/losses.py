"""Losses of outputs and targets: settings classes that compute one number for each example, and means.

Two classes have one logit f and labels y = ±1, K classes have logits f_k and labels 0 .. K-1:

    loss            (n,), m = y f       (n, K)
    logistic        log(1 + e^(-m))
    cross_entropy                       logsumexp_k f_k - f_y
    exponential     e^(-m)              Σ_{j≠y} e^(f_j - f_y)
    squared         (1 - m)²/2          ½ ‖f - e_y‖², e_y the unit vector of y
    hinge           max(0, 1 - m)       max(0, 1 + max_{j≠y} f_j - f_y)

`squared_error` is ½ ‖f - y‖² for targets that are numbers or vectors.

Smoothing ε replaces a label by the distribution (1 - ε) δ_y + ε/K, and its loss by the expectation.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import msgspec
from jaxtyping import Array, Float, Int

from jaxattn.base import Dataset, Loss
from jaxattn.core.errors import InputError, shown

Weights = Float[Array, "n"] | None
PerSequence = Callable[[Array, Array], Array]


class _Smoothed(Loss, frozen=True, kw_only=True):
    """A loss of classes.

    Attributes:
        smoothing: ε, the weight of the uniform distribution over classes in the target.
    """

    smoothing: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0

    def skip_reason(self, outputs: Array, data: Dataset) -> str | None:
        """Return a reason if targets are not classes, or outputs do not have one logit for each class."""
        n, classes = data.num_examples, data.num_classes
        if classes is None or data.targets.shape != (n,):
            return f"it requires targets that are classes, one for each example, not {shown(data.targets)}"
        wanted = (n,) if classes == 2 else (n, classes)
        if outputs.shape != wanted:
            return f"it requires outputs {wanted} for {n} examples of {classes} classes, not {shown(outputs)}"
        return None

    def __call__(self, logits: Float[Array, " n *K"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
        """Compute the loss of every example.

        Args:
            logits: f, (n,) or (n, K).
            labels: y ∈ {-1, +1} or {0 .. K-1}, (n,).

        Returns:
            (n,), of the logits' dtype.
        """
        smoothing = jnp.asarray(self.smoothing, logits.dtype)
        if logits.ndim == 1:
            return self._of_margin(labels * logits, smoothing)
        classes = logits.shape[1]
        target = (1 - smoothing) * jax.nn.one_hot(labels, classes, dtype=logits.dtype) + smoothing / classes
        return self._of_target(logits, target)

    def _of_margin(self, margin: Array, smoothing: Array) -> Array:
        raise NotImplementedError

    def _of_target(self, logits: Array, target: Array) -> Array:
        raise NotImplementedError


class Classification(_Smoothed, frozen=True, kw_only=True):
    """The logistic loss for two classes, and the cross-entropy for K > 2 classes."""

    @property
    def is_logistic(self) -> bool:
        """True for the paper's loss: two classes without label smoothing."""
        return isinstance(self.smoothing, float) and self.smoothing == 0

    def _of_margin(self, margin: Array, smoothing: Array) -> Array:
        loss = jax.nn.softplus(-margin)
        # log(1 + e^m) = log(1 + e^-m) + m. The branch avoids computing a zero term at every step.
        return loss if self.is_logistic else loss + smoothing / 2 * margin

    def _of_target(self, logits: Array, target: Array) -> Array:
        return jax.nn.logsumexp(logits, axis=1) - (target * logits).sum(axis=1)


class Logistic(Classification, frozen=True, kw_only=True):
    """The logistic loss of two classes.

        log(1 + e^(-y f))

    with labels y = ±1.
    """

    def _of_target(self, logits: Array, target: Array) -> Array:
        raise InputError(f"loss: logistic is for two classes, not {logits.shape[1]}; choose cross_entropy")


class CrossEntropy(Classification, frozen=True, kw_only=True):
    """The cross-entropy of K classes.

        log Σ_k e^(f_k) - f_y

    with one logit f_k for each class.
    """

    def _of_margin(self, margin: Array, smoothing: Array) -> Array:
        raise InputError(
            "loss: cross_entropy is for K classes with a logit each, not two that share one; choose logistic"
        )


class Exponential(_Smoothed, frozen=True, kw_only=True):
    """The exponential loss.

        e^(-y f) for two classes,   Σ_(j ≠ y) e^(f_j - f_y) for K classes

    with y = ±1 for two classes, else 0 .. K-1.
    """

    def _of_margin(self, margin: Array, smoothing: Array) -> Array:
        # The weight is in the exponent because 0 · e^m would be NaN if e^m overflows.
        return jnp.exp(jnp.log1p(-smoothing / 2) - margin) + jnp.exp(jnp.log(smoothing / 2) + margin)

    def _of_target(self, logits: Array, target: Array) -> Array:
        return jnp.exp(_above(logits) + jnp.log(target)[:, :, None]).sum(axis=(1, 2))


class Squared(_Smoothed, frozen=True, kw_only=True):
    """The squared loss of classes.

        (y - f)²/2 for two classes,   ½ ‖f - e_y‖² for K classes

    with y = ±1 for two classes, else 0 .. K-1 and the unit vector e_y.
    """

    def _of_margin(self, margin: Array, smoothing: Array) -> Array:
        return ((1 - smoothing / 2) * (1 - margin) ** 2 + smoothing / 2 * (1 + margin) ** 2) / 2

    def _of_target(self, logits: Array, target: Array) -> Array:
        return ((1 - target) * logits**2 + target * (1 - logits) ** 2).sum(axis=1) / 2


class Hinge(_Smoothed, frozen=True, kw_only=True):
    """The hinge loss, in the form of Crammer and Singer for K classes.

        max(0, 1 - y f) for two classes,   max(0, 1 + max_(j ≠ y) f_j - f_y) for K classes

    with y = ±1 for two classes, else 0 .. K-1.
    """

    def _of_margin(self, margin: Array, smoothing: Array) -> Array:
        return (1 - smoothing / 2) * jax.nn.relu(1 - margin) + smoothing / 2 * jax.nn.relu(1 + margin)

    def _of_target(self, logits: Array, target: Array) -> Array:
        return (target * jax.nn.relu(1 + _above(logits).max(axis=2))).sum(axis=1)


class SquaredError(Loss, frozen=True, kw_only=True):
    """The squared error of targets that are numbers or vectors, with the shape of the outputs.

        ½ ‖f - y‖²

    of outputs f and targets y.
    """

    def skip_reason(self, outputs: Array, data: Dataset) -> str | None:
        """Return a reason if targets are not numbers of the shape of the outputs."""
        if outputs.shape == data.targets.shape and jnp.issubdtype(data.targets.dtype, jnp.floating):
            return None
        return (
            f"it requires targets that are numbers of the outputs' shape {outputs.shape}, not "
            f"{shown(data.targets)}"
        )

    def __call__(self, outputs: Float[Array, " n *m"], targets: Float[Array, " n *m"]) -> Float[Array, " n"]:
        """Compute the loss of every example.

        Args:
            outputs: f, (n, ...).
            targets: y, (n, ...).

        Returns:
            (n,), of the outputs' dtype.
        """
        return ((outputs - targets.astype(outputs.dtype)) ** 2).reshape(len(outputs), -1).sum(axis=1) / 2


DEFAULT = Classification()
LOSSES: dict[str, type[Loss]] = {
    "classification": Classification,
    "logistic": Logistic,
    "cross_entropy": CrossEntropy,
    "exponential": Exponential,
    "squared": Squared,
    "hinge": Hinge,
    "squared_error": SquaredError,
}


def _above(logits: Float[Array, "n K"]) -> Float[Array, "n K K"]:
    own = jnp.eye(logits.shape[1], dtype=bool)
    return jnp.where(own, -jnp.inf, logits[:, None, :] - logits[:, :, None])


def mean(loss: PerSequence, outputs: Array, targets: Array, weights: Weights = None) -> Float[Array, ""]:
    """Average a loss over examples, L = (1/n) Σ ℓ(f, y) or Σ w ℓ(f, y).

    Args:
        loss: ℓ, (outputs, targets) -> (n,); or -> () for all examples together, which takes no weights.
        outputs: f, (n, ...).
        targets: y, (n, ...).
        weights: (n,) weights of the examples; 1/n for each by default.

    Returns:
        The loss, a scalar of the outputs' dtype.
    """
    each = loss(outputs, targets)
    if each.ndim == 0:
        return each
    return each.mean() if weights is None else each @ weights.astype(each.dtype)


def logistic(
    logits: Float[Array, " n"], labels: Int[Array, " n"], weights: Weights = None
) -> Float[Array, ""]:
    """Compute the `mean` logistic loss of labels ±1."""
    return mean(Logistic(), logits, labels, weights)


def cross_entropy(
    logits: Float[Array, "n K"], labels: Int[Array, " n"], weights: Weights = None
) -> Float[Array, ""]:
    """Compute the `mean` K-class cross-entropy of labels 0 .. K-1."""
    return mean(CrossEntropy(), logits, labels, weights)


def classification(logits: Array, labels: Int[Array, " n"], weights: Weights = None) -> Float[Array, ""]:
    """Compute the `mean` logistic loss of logits (n,) or cross-entropy of logits (n, K)."""
    return mean(DEFAULT, logits, labels, weights)


def accuracy(logits: Array, labels: Int[Array, " n"]) -> Float[Array, ""]:
    """Compute the share of correct predictions, from the sign of logits (n,) or the largest logit (n, K).

    A logit of exactly 0 counts as wrong.
    """
    right = labels * logits > 0 if logits.ndim == 1 else logits.argmax(axis=1) == labels
    return right.mean(dtype=logits.dtype)
