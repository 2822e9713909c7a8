"""Loss functions, which return one number per example, and their settings classes.

Two classes have one logit f and labels y = ±1; K classes have logits f_k and labels y = 0 to K-1. Let
m = y f, and let e_y be the unit vector for y:

    loss            two classes         K classes
    logistic        log(1 + e^(-m))
    cross_entropy                       logsumexp_k f_k - f_y
    exponential     e^(-m)              Σ_{j≠y} e^(f_j - f_y)
    squared         (1 - m)²/2          ½ ‖f - e_y‖²
    hinge           max(0, 1 - m)       max(0, 1 + max_{j≠y} f_j - f_y)

`squared_error` is ½ ‖f - y‖² for targets that are numbers or vectors.

With label smoothing ε, the loss is the expected loss for a label from the distribution (1 - ε) δ_y + ε/K over
classes.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxattn.base import Dataset, Loss
from jaxattn.base.from_function import declare, settings_class
from jaxattn.base.model import LossFromFunction
from jaxattn.core.errors import InputError, shown
from jaxattn.core.fractions import rounding, share
from jaxattn.core.settings import Fraction

Weights = Float[Array, "n"] | None
PerSequence = Callable[[Array, Array], Array]
_Logits = Float[Array, " n *K"]
_Labels = Int[Array, " n"]
_Smoothing = Fraction | Array


def _requires_classes(settings: Loss, outputs: Array, data: Dataset) -> str | None:
    """Return why the loss cannot be used, or None if it can be used.

    The targets must be classes, and the outputs must be logits of matching shape.
    """
    n, classes = data.num_examples, data.num_classes
    if classes is None and data.targets.shape == (n,) and jnp.issubdtype(data.targets.dtype, jnp.integer):
        name, setting = type(data).__name__, data.setting_of_classes
        return (
            f"its targets are integers, but {name} has no number of classes; set it in {name}: {setting} = 2"
        )
    if classes is None or data.targets.shape != (n,):
        return f"it requires targets that are classes, one for each example, not {shown(data.targets)}"
    wanted = (n,) if classes == 2 else (n, classes)
    if outputs.shape != wanted:
        return f"it requires outputs {wanted} for {n} examples of {classes} classes, not {shown(outputs)}"
    return None


def _requires_numbers(settings: Loss, outputs: Array, data: Dataset) -> str | None:
    """Return why the loss cannot be used, or None if it can be used.

    The targets must be numbers with the same shape as the outputs.
    """
    if outputs.shape == data.targets.shape and jnp.issubdtype(data.targets.dtype, jnp.floating):
        return None
    return (
        f"it requires targets that are numbers of the outputs' shape {outputs.shape}, not "
        f"{shown(data.targets)}"
    )


def _is_zero(smoothing: _Smoothing) -> bool:
    return isinstance(smoothing, int | float) and smoothing == 0


_NOT_NEGATIVE = (0.0, math.inf)
_of_classes = declare(skip_reason=_requires_classes, bounds=_NOT_NEGATIVE)


@_of_classes
def classification(logits: _Logits, labels: _Labels, *, smoothing: _Smoothing = 0.0) -> Float[Array, " n"]:
    """Compute the logistic loss for two classes and the cross-entropy for K > 2 classes.

    Args:
        logits: f, (n,) or (n, K).
        labels: (n,); y = ±1 for two classes, 0 to K-1 for K > 2.
        smoothing: ε, weight of the uniform distribution in the target.

    Example:
        >>> print(ja.losses.classification(jnp.zeros(2), jnp.array([1, -1])).round(4))
        [0.6931 0.6931]
    """
    if logits.ndim == 1:
        return logistic(logits, labels, smoothing=smoothing)
    return cross_entropy(logits, labels, smoothing=smoothing)


@_of_classes
def logistic(logits: _Logits, labels: _Labels, *, smoothing: _Smoothing = 0.0) -> Float[Array, " n"]:
    """Compute the two-class logistic loss.

        log(1 + e^(-y f))

    Args:
        logits: f, (n,).
        labels: (n,); y = ±1.
        smoothing: ε, weight of the uniform distribution in the target.

    Raises:
        InputError: there are more than two classes.

    Example:
        >>> print(ja.losses.logistic(jnp.array([0.0, 50.0]), jnp.array([1, -1])).round(2))
        [ 0.69 50.  ]
    """
    if logits.ndim > 1:
        raise InputError(f"loss: logistic requires two classes, got {logits.shape[1]}; use cross_entropy")
    margin = labels * logits
    loss = jax.nn.softplus(-margin)
    # Add m times smoothing/2, because log(1 + e^m) = log(1 + e^-m) + m. Skip the term if it is zero.
    return loss if _is_zero(smoothing) else loss + jnp.asarray(smoothing, logits.dtype) / 2 * margin


@_of_classes
def cross_entropy(logits: _Logits, labels: _Labels, *, smoothing: _Smoothing = 0.0) -> Float[Array, " n"]:
    """Compute the cross-entropy for K classes.

        log Σ_k e^(f_k) - f_y

    Args:
        logits: f, (n, K).
        labels: (n,); y from 0 to K-1.
        smoothing: ε, weight of the uniform distribution in the target.

    Raises:
        InputError: the logits have shape (n,), as for two classes.

    Example:
        >>> print(ja.losses.cross_entropy(jnp.zeros((1, 3)), jnp.array([2])).round(2))
        [1.1]
    """
    if logits.ndim == 1:
        raise InputError(
            "loss: cross_entropy requires one logit per class, got one for two classes; use logistic"
        )
    own = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)
    label = jnp.where(own, logits, 0).sum(axis=1)
    # log(1 + e^(others - label)) does not cancel for confident examples, unlike logsumexp(f) - f_y.
    loss = jax.nn.softplus(jax.nn.logsumexp(jnp.where(own, -jnp.inf, logits), axis=1) - label)
    if _is_zero(smoothing):
        return loss
    return loss + jnp.asarray(smoothing, logits.dtype) * (label - logits.mean(axis=1))


@_of_classes
def exponential(logits: _Logits, labels: _Labels, *, smoothing: _Smoothing = 0.0) -> Float[Array, " n"]:
    """Compute the exponential loss of each example.

        e^(-y f) for two classes,   Σ_(j ≠ y) e^(f_j - f_y) for K classes

    Args:
        logits: f, (n,) or (n, K).
        labels: (n,); y = ±1 for two classes, 0 to K-1 for K > 2.
        smoothing: ε, weight of the uniform distribution in the target.

    Example:
        >>> print(ja.losses.exponential(jnp.array([0.0, 1.0]), jnp.array([1, -1])).round(2))
        [1.   2.72]
    """
    if logits.ndim == 1:
        margin, smoothing = labels * logits, jnp.asarray(smoothing, logits.dtype)
        # Move the weight into the exponent, because 0 · e^m would be NaN if e^m overflows.
        return jnp.exp(jnp.log1p(-smoothing / 2) - margin) + jnp.exp(jnp.log(smoothing / 2) + margin)
    target = _target(logits, labels, smoothing)
    return jnp.exp(_above(logits) + jnp.log(target)[:, :, None]).sum(axis=(1, 2))


@_of_classes
def squared(logits: _Logits, labels: _Labels, *, smoothing: _Smoothing = 0.0) -> Float[Array, " n"]:
    """Compute the squared loss for class labels.

        (y - f)²/2 for two classes,   ½ ‖f - e_y‖² for K classes

    Args:
        logits: f, (n,) or (n, K).
        labels: (n,); y = ±1 for two classes, 0 to K-1 for K > 2.
        smoothing: ε, weight of the uniform distribution in the target.

    Example:
        >>> ja.losses.squared(jnp.array([0.0, 1.0]), jnp.array([1, 1])).tolist()
        [0.5, 0.0]
    """
    if logits.ndim == 1:
        margin, smoothing = labels * logits, jnp.asarray(smoothing, logits.dtype)
        return ((1 - smoothing / 2) * (1 - margin) ** 2 + smoothing / 2 * (1 + margin) ** 2) / 2
    target = _target(logits, labels, smoothing)
    return ((1 - target) * logits**2 + target * (1 - logits) ** 2).sum(axis=1) / 2


@_of_classes
def hinge(logits: _Logits, labels: _Labels, *, smoothing: _Smoothing = 0.0) -> Float[Array, " n"]:
    """Compute the hinge loss of each example, in the Crammer-Singer form for K classes.

        max(0, 1 - y f) for two classes,   max(0, 1 + max_(j ≠ y) f_j - f_y) for K classes

    Args:
        logits: f, (n,) or (n, K).
        labels: (n,); y = ±1 for two classes, 0 to K-1 for K > 2.
        smoothing: ε, weight of the uniform distribution in the target.

    Example:
        >>> ja.losses.hinge(jnp.array([0.5, 3.0]), jnp.array([1, 1])).tolist()
        [0.5, 0.0]
    """
    if logits.ndim == 1:
        margin, smoothing = labels * logits, jnp.asarray(smoothing, logits.dtype)
        return (1 - smoothing / 2) * jax.nn.relu(1 - margin) + smoothing / 2 * jax.nn.relu(1 + margin)
    target = _target(logits, labels, smoothing)
    return (target * jax.nn.relu(1 + _above(logits).max(axis=2))).sum(axis=1)


@declare(skip_reason=_requires_numbers, bounds=_NOT_NEGATIVE)
def squared_error(outputs: Float[Array, " n *m"], targets: Float[Array, " n *m"]) -> Float[Array, " n"]:
    """Compute the squared error ½ ‖f - y‖² for targets that are numbers or vectors.

    Args:
        outputs: f, (n, ...).
        targets: y, (n, ...).

    Example:
        >>> ja.losses.squared_error(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0])).tolist()
        [0.0, 2.0]
    """
    return ((outputs - targets.astype(outputs.dtype)) ** 2).reshape(len(outputs), -1).sum(axis=1) / 2


Classification = settings_class(classification, LossFromFunction, "Classification")
Logistic = settings_class(logistic, LossFromFunction, "Logistic")
CrossEntropy = settings_class(cross_entropy, LossFromFunction, "CrossEntropy")
Exponential = settings_class(exponential, LossFromFunction, "Exponential")
Squared = settings_class(squared, LossFromFunction, "Squared")
Hinge = settings_class(hinge, LossFromFunction, "Hinge")
SquaredError = settings_class(squared_error, LossFromFunction, "SquaredError")

DEFAULT = Classification()
_LOGISTIC = (classification, logistic, cross_entropy)


def is_logistic(loss: Loss) -> bool:
    """Return whether a loss is the logistic or cross-entropy loss without label smoothing.

    Example:
        >>> ja.losses.is_logistic(ja.losses.Logistic()), ja.losses.is_logistic(ja.losses.Hinge())
        (True, False)
    """
    if not isinstance(loss, Classification | Logistic | CrossEntropy):
        return False
    own = type(loss)  # A subclass that defines `__call__` or `function` is another loss.
    built_in = own.__call__ is LossFromFunction.__call__ and own.function in _LOGISTIC
    return built_in and _is_zero(loss.smoothing)


def _target(logits: Array, labels: Array, smoothing: _Smoothing) -> Float[Array, "n K"]:
    smoothing, classes = jnp.asarray(smoothing, logits.dtype), logits.shape[1]
    return (1 - smoothing) * jax.nn.one_hot(labels, classes, dtype=logits.dtype) + smoothing / classes


def _above(logits: Float[Array, "n K"]) -> Float[Array, "n K K"]:
    own = jnp.eye(logits.shape[1], dtype=bool)
    return jnp.where(own, -jnp.inf, logits[:, None, :] - logits[:, :, None])


def mean(loss: PerSequence, outputs: Array, targets: Array, weights: Weights = None) -> Float[Array, ""]:
    """Compute the mean loss L = (1/n) Σ ℓ(f, y), or Σ w ℓ(f, y) with weights w, in the dtype of the outputs.

    Args:
        loss: ℓ, (outputs, targets) -> (n,); or -> () for a loss of the whole batch, which takes no
            weights.
        outputs: f, (n, ...).
        targets: y, (n, ...).
        weights: (n,); weights of the examples, 1/n each by default.

    Example:
        >>> float(ja.losses.mean(ja.losses.hinge, jnp.array([0.5, 3.0]), jnp.array([1, 1])))
        0.25
    """
    each = loss(outputs, targets)
    if each.ndim == 0:
        return each
    return each.mean() if weights is None else each @ weights.astype(each.dtype)


def accuracy(logits: Array, labels: Int[Array, " n"]) -> Float[Array, ""]:
    """Compute the accuracy of the predicted classes: the sign of logits (n,), or the argmax of logits (n, K).

    An example with a logit of 0, or with several largest logits, has no predicted class and counts as wrong.
    Differences of at most `jaxattn.core.fractions.rounding` times the largest finite |logit| are regarded as
    rounding errors: the sign of a logit that cancels to 0 predicts no class, either.

    Example:
        >>> float(ja.losses.accuracy(jnp.array([2.0, -1.0, 3.0, 1.0]), jnp.array([1, 1, 1, 1])))
        0.75
    """
    scale = jnp.where(jnp.isfinite(logits), jnp.abs(logits), 0).max()
    margin = labels * logits if logits.ndim == 1 else _lead(logits, labels)
    rounded = rounding(jnp.promote_types(logits.dtype, jnp.float32)) * scale
    right: Array = share(margin > rounded, dtype=logits.dtype)
    return right


def _lead(logits: Float[Array, "n K"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    own = labels[:, None] == jnp.arange(logits.shape[1])
    return jnp.where(own, logits, 0).sum(axis=1) - jnp.where(own, -jnp.inf, logits).max(axis=1)
