"""Settings classes built from functions, for losses, initial values, probes, figures and other components.

The keyword-only arguments of a function are its settings, and their annotations define types and
ranges. `settings_class` builds the class from the signature of a built-in or custom function.
`declare` sets class attributes that a signature cannot express.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from jaxattn.core.errors import InputError, nearest
from jaxattn.core.spec import Spec, StudyParts, without_arrays

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class FromFunction(Spec, frozen=True, kw_only=True):
    """Common base class of all classes that are built from a function.

    Attributes:
        function: the function.
        arguments: names of the settings.
        not_settings: names of arguments that are not settings: the class supplies them, or their defaults
            apply.
        check_settings: function that takes some of the settings by name and raises InputError if they are
            incompatible.
    """

    function: ClassVar[Function]
    arguments: ClassVar[tuple[str, ...]] = ()
    not_settings: ClassVar[frozenset[str]] = frozenset()
    check_settings: ClassVar[Function | None] = None

    def check(self, *context: StudyParts) -> None:
        """Raise InputError if the function passed to `declare` as `check` rejects the settings."""
        self._check()

    def _check(self, **changed: Any) -> None:
        if rule := type(self).check_settings:
            settings = self._settings() | changed
            rule(**{name: settings[name] for name in parameters(rule) if name in settings})

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.arguments}

    def _call(self, *given: Any, **changed: Any) -> Any:
        return type(self).function(*given, **self._settings() | changed)


def declare(*, check: Callable[..., None] | None = None, **attributes: object) -> Callable[[F], F]:
    """Return a decorator that declares attributes of the settings class built from a function.

        @ja.declare(rotation_invariant=True)
        def scaled(key, drawn, *, scale: float): ...

    Args:
        check: function that takes some of the settings by name and raises InputError if they are
            incompatible. A study calls `check` before the run. If the function samples data and has a
            setting `sequences`, `check` is called with the number of examples in each split.
        attributes: attributes of the base class, such as `coupled` for a loss. A function becomes a
            method whose first argument is the settings object.

    Example:
        >>> @ja.declare(labels={'spread': 'spread of p'})
        ... def spread(params, data):
        ...     return {'spread': params.p.max() - params.p.min()}
    """

    def decorate(function: F) -> F:
        rule = {} if check is None else {"check_settings": staticmethod(check)}
        declared = vars(function).get("declared", {}) | rule | attributes
        function.declared = declared  # type: ignore[attr-defined]
        return function

    return decorate


@functools.cache
def settings_class(function: Function, base: type[Any], name: str = "", **attributes: Any) -> type[Any]:
    """Return the settings class for a function: the settings of a base class plus the keyword-only arguments.

    Repeated calls with the same arguments return the same class.

    Args:
        function: the function.
        base: a class derived from `FromFunction`.
        name: name of the class; defaults to the name of the function.
        attributes: attributes of the class, such as `kind`. Attributes set by `declare` take precedence.

    Raises:
        InputError: an argument is not a setting, has no readable annotation, or has the same name as a
            setting of the base class; or the base class lacks a declared attribute.
    """
    attributes |= getattr(function, "declared", {})
    for key in attributes:
        if key not in (known := [x for x in dir(base) if not x.startswith("_")]):
            raise InputError(f"declare: {base.__name__} has no attribute {key!r}{nearest(key, known)}")
    fields = _fields(function, attributes.get("not_settings", base.not_settings))
    arguments = tuple(field[0] for field in fields)
    for argument in arguments:
        if argument in base.__struct_fields__:
            location = attributes.get("kind") or function.__name__
            raise InputError(f"{location}: {argument!r} is a built-in setting; rename the argument")
    rule = attributes.get("check_settings")
    for argument, needed in parameters(rule).items() if rule else ():
        if argument not in arguments and needed.default is needed.empty:
            raise InputError(
                f"declare: the check function takes {argument!r}, which is not a setting; remove it"
            )
    return msgspec.defstruct(
        name or function.__name__,
        fields,
        bases=(base,),
        namespace={
            # The function is what these attributes of the base class describe.
            **{key: inspect.getattr_static(base, key) for key in base.about_methods},
            **attributes,
            "__doc__": function.__doc__,
            "function": staticmethod(function),
            "arguments": arguments,
        },
        module=function.__module__,
        frozen=True,
        kw_only=True,
    )


@functools.cache
def parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return inspect.signature(function).parameters


def _fields(function: Function, not_settings: frozenset[str]) -> list[Any]:
    hints = hints_of(function)
    fields: list[Any] = []
    for p in parameters(function).values():
        if p.name in not_settings:
            continue
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty:
            raise InputError(
                f"{function.__name__}: setting {p.name!r} is positional; put * before it in the signature"
            )
        if p.kind is p.KEYWORD_ONLY:
            default = () if p.default is p.empty else (as_default(p.default),)
            fields.append((p.name, without_arrays(hints.get(p.name, Any)), *default))
    return fields


def hints_of(function: Function) -> dict[str, Any]:
    """Return the type annotations of a function.

    Raises:
        InputError: an annotation cannot be evaluated, or the signature cannot be read.
    """
    try:
        parameters(function)
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InputError(f"an annotation of {function.__name__} cannot be evaluated: {error}") from None
    except TypeError as error:
        raise InputError(f"the function's signature cannot be read: {error}") from None


def as_default(value: Any) -> Any:
    """Return a default value in msgspec's form: a nonempty mutable value becomes a factory that copies it."""
    mutable = isinstance(value, list | dict | set) and value
    return msgspec.field(default_factory=lambda: type(value)(value)) if mutable else value
