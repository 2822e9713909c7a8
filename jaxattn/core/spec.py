"""Base class of settings, which checks its values against their annotations."""

import functools
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

import jax
import msgspec
import numpy as np
from jaxtyping import AbstractArray

from jaxattn.core.errors import InputError, explain

_METHODS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


@typing.runtime_checkable
class StudyParts(typing.Protocol):
    """Parts of a study with which settings may be incompatible: its data, model and loss."""

    @property
    def data(self) -> Any:
        """The data: a `jaxattn.DrawnData` or `jaxattn.SharedData`."""

    @property
    def model(self) -> Any:
        """The model: a `jaxattn.Model`."""

    @property
    def loss(self) -> Any:
        """The loss: a `jaxattn.Loss`."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all settings classes: a frozen struct whose annotated fields are the settings.

    Attributes:
        overridable: attributes with a default value that a subclass may redefine as settings.
        about_methods: attributes that state what the methods of a class compute. A subclass that defines a
            method does not inherit them: it has the default of the base class unless it states them again.
        options_field: name of a setting that collects unknown settings, such as optimiser options.
        kind: import path of the custom function from which the class is built; "" for other classes.
    """

    overridable: ClassVar[frozenset[str]] = frozenset()
    about_methods: ClassVar[frozenset[str]] = frozenset()
    options_field: ClassVar[str | None] = None
    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if any(isinstance(x, _METHODS) for x in own.values()):
            for name in cls.about_methods - own.keys():
                first = next(base for base in reversed(cls.__mro__) if name in vars(base))
                setattr(cls, name, vars(first)[name])

    def __post_init__(self) -> None:
        """Check the settings against their annotations.

        NumPy numbers become Python numbers, lists become tuples and integers become floats where the
        annotations require it. JAX arrays, which may be traced, are not checked.

        Raises:
            InputError: a value does not match its annotation.
        """
        for name, annotation in _annotations(type(self)).items():
            given = getattr(self, name)
            value = checked_value(given, annotation, type(self).__name__, name)
            if value is not given:
                msgspec.structs.force_setattr(self, name, value)

    def check(self, *context: StudyParts) -> None:
        """Raise InputError, naming the setting and a remedy, if the settings are incompatible."""


@functools.cache
def _annotations(target: type[Spec]) -> Mapping[str, Any]:
    try:
        every = {field.name: without_arrays(field.type) for field in msgspec.structs.fields(target)}
    except (NameError, TypeError):  # The registry reports the annotation.
        return {}
    return {name: annotation for name, annotation in every.items() if not _has_objects(annotation)}


def _has_objects(annotation: Any) -> bool:
    # msgspec accepts instances of a class, but not of its subclasses.
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return True
    return any(_has_objects(part) for part in get_args(annotation))


def checked_value(given: Any, annotation: Any, location: str, name: str) -> Any:
    """Return the value of a setting in the form of its annotation; raise InputError if it does not match.

    JAX arrays, and values of types that settings cannot have, are returned as they are.
    """
    if isinstance(given, jax.Array):
        return given
    value = plain_values(given)
    try:
        found = msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at `$")
        message = f"{text} - at `$.{name}{inner or '`'}"
        raise InputError(
            explain(message, location, {name: value}, [name], {name: choices_of(annotation)})
        ) from None
    except TypeError:  # The registry reports the annotation.
        return given
    return found


def choices_of(annotation: Any) -> list[str]:
    """Return the values that an annotation allows, if it lists them, and "a number" if it allows numbers."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(x) for x in get_args(annotation)]
    if annotation in (int, float):
        return ["a number"]
    parts = get_args(annotation) if not isinstance(annotation, type) else ()
    return [x for part in parts for x in choices_of(part)]


def without_arrays(annotation: Any) -> Any:
    """Remove array types from an annotation: `float | jax.Array` becomes `float`."""
    parts = get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        return Annotated[without_arrays(parts[0]), *parts[1:]]
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    kept = tuple(without_arrays(part) for part in parts if not is_array_type(part))
    return typing.Union[kept or parts]  # noqa: UP007  of a tuple


def has_custom_code(x: Any) -> bool:
    """Return True if settings contain functions, or classes that are not from this package."""
    if isinstance(x, Spec):
        own = type(x).__module__.startswith("jaxattn.")
        return not own or any(map(has_custom_code, msgspec.structs.asdict(x).values()))
    if isinstance(x, Mapping):
        return any(map(has_custom_code, x.values()))
    return any(map(has_custom_code, x)) if isinstance(x, tuple | list) else callable(x)


def is_array_type(annotation: Any) -> bool:
    """Return True if an annotation is an array type."""
    arrays = jax.Array | np.ndarray | np.generic | AbstractArray
    return isinstance(annotation, type) and issubclass(annotation, arrays)


def plain_values(tree: Any) -> Any:
    """Return settings in which Python numbers, strings and lists replace NumPy scalars and arrays."""
    if isinstance(tree, dict):
        return {key: plain_values(x) for key, x in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(plain_values, tree))
    if isinstance(tree, jax.core.Tracer) or not hasattr(tree, "tolist"):
        return tree
    return tree.tolist()
