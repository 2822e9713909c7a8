"""Conversion of custom functions to classes with settings: data, losses, starts, probes and figures."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import msgspec
from jax import Array

from jaxattn.base import Data, Dataset, DrawnData, Figure, Loss, Probe, Progress, SharedData, Start, silent
from jaxattn.base.probe import ProbeContext
from jaxattn.core.errors import InputError, shown
from jaxattn.core.settings import Count, HalfShare, Spec
from jaxattn.data.corpus import Corpus
from jaxattn.data.generators import Numbered
from jaxattn.data.sequences import Sequences
from jaxattn.data.splits import (
    Loaded,
    Splits,
    draw_batch,
    draw_splits,
    splits_of,
    takes_task_key,
    task_key_of,
)

Function = Callable[..., Any]


class _Made(Spec, frozen=True, kw_only=True):
    """Common base of classes that are made from a function.

    Attributes:
        made_of: the function.
        arguments: names of its settings.
    """

    made_of: ClassVar[Function]
    arguments: ClassVar[tuple[str, ...]] = ()

    def _call(self, *given: Any, **changed: Any) -> Any:
        settings = {name: getattr(self, name) for name in self.arguments}
        return type(self).made_of(*given, **settings | changed)


class LossOfFunction(_Made, Loss, frozen=True, kw_only=True):
    """Loss from a function `(outputs, targets, *, settings) -> (n,)`."""

    def __call__(self, outputs: Array, targets: Array) -> Any:
        """Compute the loss of every example."""
        return self._call(outputs, targets)


class StartOfFunction(_Made, Start, frozen=True, kw_only=True):
    """Start from a function `(key, drawn, *, settings) -> array like drawn`, the value of the model."""

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Any:
        """Return the initial value of one parameter."""
        return self._call(key, drawn)


class ProbeOfFunction(_Made, Probe, frozen=True, kw_only=True):
    """Probe from a function `(params, data, *, settings) -> number, (m,) or a dictionary of them`.

    Attributes:
        name: name of the metric; that of the function if empty.
    """

    name: str = ""

    def measure(self, context: ProbeContext) -> Mapping[str, Any]:
        """Measure one seed on its training data."""
        found = self._call(context.params, context.data.train)
        return found if isinstance(found, dict) else {self.name or type(self).__name__: found}


class FigureOfFunction(_Made, Figure, frozen=True, kw_only=True):
    """Figure from a function `(results, *, settings) -> matplotlib figure or RenderedFigure`."""

    def __call__(self, results: Any) -> Any:
        """Draw the figure."""
        return self._call(results)


class DrawnOfFunction(_Made, DrawnData, frozen=True, kw_only=True):
    """Data of each seed from a function `(key, *, settings) -> Dataset`, or `(key, task_key, *, settings)`.

    If the function has a setting `sequences`, this is the number of examples to sample. `key` differs between
    training, test and validation data and between fresh batches; `task_key` is the same for all samples of a
    seed.
    """

    test_sequences: Count = 0
    validation_sequences: Count = 0
    label_noise: HalfShare = 0.0

    @property
    def held_out(self) -> bool:
        """True if there are validation data."""
        return self.validation_sequences > 0

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens, which are their ids."""
        return _numbered(jax.eval_shape(lambda key: self.draw(key).train, jax.random.key(0)))

    @property
    def draws_batches(self) -> bool:
        """True if new batches of any size can be sampled."""
        return "sequences" in self.arguments

    def batch(
        self, key: Array, examples: int, used: Array | None = None, task_key: Array | None = None
    ) -> Dataset:
        """Sample new examples; see `draw_batch`."""
        return draw_batch(partial(self._generate, task_key), key, examples, self.label_noise)

    def _generate(self, task_key: Array | None, key: Array, sequences: int) -> Any:
        given = {} if task_key is None else {"task_key": task_key}
        return self._call(key, **given, **{"sequences": sequences} if self.draws_batches else {})

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Sample the data of one seed."""
        task_key = task_key_of(key) if takes_task_key(type(self).made_of) else None
        return draw_splits(
            partial(self._generate, task_key),
            key,
            task_key=task_key,
            sequences=getattr(self, "sequences") if self.draws_batches else 0,  # noqa: B009  a setting
            test_sequences=self.test_sequences,
            validation_sequences=self.validation_sequences,
            label_noise=self.label_noise,
        )


class SharedOfFunction(_Made, SharedData, frozen=True, kw_only=True):
    """Data of all seeds from a function `(*, settings) -> Dataset`, or `-> (training data, test data)`."""

    def load(self, progress: Progress = silent) -> Loaded:
        """Call the function."""
        found: object = self._call()
        several = found if type(found) is tuple else (found,)
        for data in several:
            if not isinstance(data, Dataset):
                raise InputError(f"it returns {shown(data)}; return a jaxattn.Dataset, such as a Corpus")
        return Loaded(jax.jit(splits_of)(*several), True, list(_numbered(several[0])))


def _numbered(data: Dataset) -> Sequence[str]:
    return Numbered(data.vocab_size) if isinstance(data, Corpus | Sequences) else ()


def data(target: Function, kind: str) -> type[Data]:
    """Return the class of a data function: sampled if it has a key, shared if it has only settings."""
    parameters = inspect.signature(target).parameters
    if all(p.kind is p.KEYWORD_ONLY for p in parameters.values()):
        if "task_key" in parameters:
            raise InputError(f"{kind}: it has a task_key and no key; write key as its first argument")
        return class_of(target, kind, SharedOfFunction)
    return class_of(target, kind, DrawnOfFunction)


@functools.cache
def class_of(target: Function, kind: str, base: type[Any]) -> type[Any]:
    """Return a class whose settings are the keyword-only arguments of a function, and those of a base.

    Args:
        target: the function.
        kind: its import path, as in the study.
        base: one of the classes above.

    Returns:
        The class; repeated calls return the same class.

    Raises:
        InputError: an argument is not a setting, or has no readable annotation.
    """
    fields = _settings(target)
    for name, *_ in fields:
        if name in base.__struct_fields__:
            raise InputError(f"{kind}: there is a built-in setting {name!r}; rename this argument")
    return msgspec.defstruct(
        target.__name__,
        fields,
        bases=(base,),
        namespace={
            "__doc__": target.__doc__,
            "made_of": staticmethod(target),
            "arguments": tuple(name for name, *_ in fields),
            "kind": kind,
        },
        module=target.__module__,
        frozen=True,
        kw_only=True,
    )


def _settings(target: Function) -> list[Any]:
    """Return the keyword-only arguments of a function as fields of a msgspec struct."""
    try:
        hints = typing.get_type_hints(target, include_extras=True)
        parameters = inspect.signature(target).parameters.values()
    except NameError as error:
        raise InputError(f"an annotation of {target.__name__} cannot be read: {error}") from None
    except TypeError as error:
        raise InputError(f"no function with readable arguments: {error}") from None
    fields: list[Any] = []
    for p in parameters:
        if p.name == "task_key":  # the second key of data is not a setting
            continue
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty:
            raise InputError(f"{target.__name__}: {p.name!r} is positional; put * before the settings")
        if p.kind is p.KEYWORD_ONLY:
            default = () if p.default is p.empty else (as_default(p.default),)
            fields.append((p.name, hints.get(p.name, Any), *default))
    return fields


def as_default(value: Any) -> Any:
    """Return a default in the form of msgspec; a mutable one is copied for every instance."""
    mutable = isinstance(value, list | dict | set) and value
    return msgspec.field(default_factory=lambda: type(value)(value)) if mutable else value
