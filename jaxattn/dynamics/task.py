"""Tasks, and running a phase on a task without a study."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxattn import base, losses
from jaxattn.base import Dataset, Loss, Model, Phase
from jaxattn.base.data import Splits
from jaxattn.base.model import Params, check_type, linear_in
from jaxattn.core import backend
from jaxattn.core.errors import InputError, shown
from jaxattn.core.spec import Spec
from jaxattn.data.corpus import Corpus
from jaxattn.models.linearity import check_linear_scores
from jaxattn.models.one_layer import OneLayer


class _OneLayerOfParams(OneLayer, frozen=True, kw_only=True):
    """One-layer model of given parameters, which determine its dimension d."""

    dim: Any = None

    def init(self, key: Array, like: Corpus, *, dtype: DTypeLike) -> NoReturn:
        raise InputError(
            "model: the default model of a task has no dimension; pass model=ja.models.OneLayer(dim=...)"
        )


_ONE_LAYER = _OneLayerOfParams()
# Number of examples for which the functions of a model are compared.
_EXAMPLES = 64


class Task(base.Task):
    """Model, loss and data for one seed: the arguments of a phase.

        task = ja.dynamics.Task(data=corpus)

    Args:
        model: the model. The default is the one-layer model with the dimension d of the given parameters,
            which cannot sample parameters.
        loss: loss of each example, (outputs, targets) -> (n,), or a loss for the whole batch. Default:
            logistic for two classes, cross-entropy for more.
        data: the training data, or `ja.data.Splits` with test and validation data.
        fresh: function (key, examples) that samples this number of new training examples, for phases that
            train on new examples.

    Raises:
        InputError: there are no data, or the model does not accept their type.
    """

    def __new__(
        cls,
        model: Model[Any] = _ONE_LAYER,
        loss: Loss = losses.DEFAULT,
        data: Dataset | Splits | None = None,
        fresh: Callable[..., Dataset] | None = None,
    ) -> "Task":
        """Build a task; training data become `Splits`."""
        splits = Splits(data) if isinstance(data, Dataset) else data
        if not isinstance(splits, Splits):
            raise InputError(f"data: expected a ja.Dataset or ja.data.Splits, got {shown(data)}")
        if isinstance(splits.train, Dataset):
            check_type(type(splits.train), model)
        return super().__new__(cls, model, loss, splits, fresh)


def run(
    phase: Phase,
    task: base.Task,
    params: Params,
    key: Array | None = None,
    steps: int | Array | None = None,
) -> PyTree:
    """Run a phase on a task, and return its final state.

    The call can be part of functions that `jax.jit`, `jax.vmap` and `jax.grad` transform. The computation is
    compiled once for all phases, models and losses with equal settings. A float setting that is a JAX array,
    possibly a traced one, is an argument of the compiled program, so a `jax.vmap` over step sizes is
    possible:

        def end(step_size):
            sgd = ja.dynamics.Descent(
                name="sgd", train=["p"], optimizer="sgd", step_size=step_size, steps=100
            )
            return ja.dynamics.run(sgd, task, params).params

        ends = jax.vmap(end)(jnp.array([0.1, 0.2]))

    To resume from the returned state, call `phase.advance(task, state, steps)`.

    Args:
        phase: the phase, such as `ja.dynamics.Descent(...)` or an instance of a subclass of `ja.Phase`.
        task: model, loss and data.
        params: the initial parameters.
        key: () PRNG key; required if the phase uses random numbers, for example to sample minibatches.
        steps: number of steps. One program takes any given number of steps, but reverse-mode derivatives
            require the default, `phase.steps`, and a phase without early stopping.

    Returns:
        The state, with at least the fields `params`, `step` and `failed_at`: a `ja.dynamics.State`, or the
        state that a flow or a custom phase defines.

    Raises:
        InputError: the settings are invalid, or the phase requires a key, other data or another model; or
            the model's outputs differ from attention with its linear scores, unless arrays are traced.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> sgd = ja.dynamics.Descent(name="sgd", train=["p"], optimizer="sgd", step_size=0.1, steps=5)
        >>> state = ja.dynamics.run(sgd, ja.dynamics.Task(data=corpus), params)
        >>> int(state.step), int(state.failed_at)
        (5, -1)
    """
    phase.check()
    if isinstance(steps, int) and steps < 0:
        raise InputError(f"steps: must be at least 0, got {steps}")
    if key is None and phase.is_random:
        raise InputError("key: the phase uses random numbers; pass a key such as jax.random.key(0)")
    arrays: list[Array] = []
    settings = _without_arrays((phase, task.model, task.loss, task.fresh), arrays)
    key = jax.random.key(0) if key is None else key
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((params, task.data, arrays)))
    if tuple(phase.train) == (linear_in(task.model),) and not traced:
        check_linear_scores(task.model, params, task.data.sampled(_EXAMPLES).train)
    with backend.float64() if phase.dtype == "float64" else nullcontext():
        return _run(settings, arrays, task.data, params, key, steps)


@partial(jax.jit, static_argnames="settings")
def _run(settings: "_Parts", arrays: list[Array], data: Splits, params: Any, key: Array, steps: Any) -> Any:
    phase, model, loss, fresh = _with_arrays(settings, iter(arrays))
    task = base.Task(model, loss, data, fresh)
    return phase.advance(task, phase.init(task, params, key), phase.steps if steps is None else steps)


class _Value:
    """Value of a setting. Values without a hash are equal only if they are the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._key = type(value), hash(value)
        except TypeError:
            self._key = type(value), id(value)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Value) or self._key != other._key:
            return False
        return self.value is other.value or bool(self.value == other.value)


class _Parts(NamedTuple):
    """Type and parts of settings, a dictionary, a list or a tuple; `names` is empty for the last two."""

    type: type[Any]
    names: tuple[Any, ...]
    values: tuple[Any, ...]


_ARRAY = object()


def _without_arrays(thing: Any, arrays: list[Array]) -> Any:
    """Return a hashable description of settings; their JAX arrays are appended to `arrays` instead."""
    if isinstance(thing, Array):
        arrays.append(thing)
        return _ARRAY
    if isinstance(thing, Spec):
        named = {name: getattr(thing, name) for name in thing.__struct_fields__}
        return _Parts(type(thing), *_without_arrays(named, arrays)[1:])
    if type(thing) is dict:
        return _Parts(dict, tuple(thing), tuple(_without_arrays(x, arrays) for x in thing.values()))
    if type(thing) in (list, tuple):
        return _Parts(type(thing), (), tuple(_without_arrays(x, arrays) for x in thing))
    return _Value(thing)


def _with_arrays(found: Any, arrays: Iterator[Array]) -> Any:
    """Return the settings that `_without_arrays` described."""
    if found is _ARRAY:
        return next(arrays)
    if isinstance(found, _Value):
        return found.value
    values = [_with_arrays(x, arrays) for x in found.values]
    if found.type in (list, tuple):
        return found.type(values)
    named = dict(zip(found.names, values, strict=True))
    return named if found.type is dict else found.type(**named)
