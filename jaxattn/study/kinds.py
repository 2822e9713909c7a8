"""From tables of plain values to things and back: one rule for models, generators, losses, phases, probes.

A table names its `kind`, a short name or an import path; the rest are the settings of that class or function,
checked against its annotations.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from jaxattn.errors import InputError, UserCodeError, at
from jaxattn.spec import Named
from jaxattn.study.messages import explain, nearest
from jaxattn.study.namespace import Namespace
from jaxattn.study.tree import check_values

Table = dict[str, Any]


class Concept(NamedTuple):
    """What a kind of thing must be able to do.

    Attributes:
        name: such as "model".
        known: built-in classes and functions by short name.
        methods: what a class must have: all names of one of these lists.
        adapt: tells the type that holds a user's function with its settings; None if it must be a class. Its
            first field is the function; the others are settings that any function of this concept has.
        wants: what a user writes, in words, for messages.
        default: the kind of a table that names none, from its keys.
    """

    name: str
    known: Mapping[str, Any]
    methods: tuple[tuple[str, ...], ...]
    adapt: Callable[[Any], Any] | None
    wants: str
    default: Callable[[Table], str | None] = lambda table: None


class Function(NamedTuple):
    """A user's function with its settings.

    Attributes:
        kind: its name in the sweep file.
        target: the function.
        settings: its keyword arguments.
    """

    kind: str
    target: Callable[..., Any]
    settings: Table


class Field(NamedTuple):
    """One setting: its name, its annotation and its default, `inspect.Parameter.empty` if it has none."""

    name: str
    type: Any
    default: Any


class Reading(NamedTuple):
    """A table as it was understood: its kind, what that means, and all settings, defaults filled in.

    Attributes:
        concept: what kind of thing it is.
        kind: its name.
        target: the class or function.
        values: its settings.
        holder: the type that holds a function with its settings, None for a class.
        beside: settings of the holder.
    """

    concept: Concept
    kind: str
    target: Any
    values: Table
    holder: Any
    beside: Table

    def table(self, names: Namespace) -> Table:
        """Write the table down with all its settings."""
        return {"kind": self.kind, **plain(self.values | self.beside, names)}

    def make(self, place: str, names: Namespace) -> Any:
        """Make the thing; see `build`."""
        if self.holder is None:
            made = _instance(self.target, self.values, place)
        else:
            made = self.holder(Function(self.kind, self.target, self.values), **self.beside)
        with at(place):
            # Some settings are names themselves, of code or of files beside the sweep file.
            return made.located(names) if hasattr(made, "located") else made


def read(concept: Concept, table: Any, place: str, names: Namespace) -> Reading:
    """Understand a table.

    Args:
        concept: what kind of thing it is.
        table: its kind alone, or a table with its settings.
        place: where it stands in the sweep file, for messages.
        names: where import paths point.

    Returns:
        The class or function that the table names, with checked settings.

    Raises:
        InputError: an unknown kind or setting, a wrong type or value, a class that lacks a method.
        UserCodeError: code of the user's raised.
    """
    if not isinstance(table, str | dict):
        raise InputError(f"{place}: expected a table or a name, got {table!r:.60}")
    rest = {"kind": table} if isinstance(table, str) else dict(table)
    kind = rest.pop("kind", None) or concept.default(rest)
    target = _target(concept, kind, place, names)
    if isinstance(target, type):
        return Reading(concept, str(kind), target, convert(target, rest, place), None, {})
    if concept.adapt is None:
        raise InputError(f"{place}.kind: {kind} is a function; {concept.name} wants {concept.wants}")
    holder = concept.adapt(target)
    beside = {key: rest.pop(key) for key in list(rest) if key in holder._fields[1:]}
    values = convert(target, rest, place)
    return Reading(concept, str(kind), target, values, holder, convert(holder, beside, place))


def describe(thing: Any, concept: Concept, names: Namespace) -> Any:
    """Write a thing down as the table that makes it; what Python gave has its import path as its kind.

    Raises:
        InputError: something that is neither a table nor a class nor a function with settings.
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, dict):
        kind, rest = thing.get("kind"), {key: x for key, x in thing.items() if key != "kind"}
        named = {} if kind is None else {"kind": describe(kind, concept, names) if callable(kind) else kind}
        return named | plain(rest, names)
    target: Any = thing
    values: Table = {}
    if isinstance(function := getattr(thing, "function", None), Function):
        return {"kind": function.kind, **plain(values_of(thing), names)}
    if not (isinstance(thing, type) or inspect.isroutine(thing)):
        target, values = type(thing), values_of(thing)
    short = next((name for name, known in concept.known.items() if known is target), None)
    kind = short or _path(target, names)
    return {"kind": kind, **plain(values, names)} if values else kind


def convert(target: Any, values: Table, place: str) -> Table:
    """Check settings against the annotations of a class or function, and fill in defaults.

    Raises:
        InputError: names the setting, and a near right one.
    """
    fields = fields_of(target, place)
    rest = dict(values)
    if takes := getattr(target, "takes_further", None):
        # Settings that another name decides about, such as the options of an optimiser.
        own = {field.name for field in fields}
        further = {key: rest.pop(key) for key in list(rest) if key not in own}
        rest[takes] = dict(rest.get(takes, {})) | further
    try:
        return msgspec.structs.asdict(msgspec.convert(rest, _struct(target)))
    except msgspec.ValidationError as error:
        known = [field.name for field in fields if field.name != takes]
        choices = {field.name: _literals(field.type) for field in fields}
        required = [field.name for field in fields if field.default is inspect.Parameter.empty]
        raise InputError(explain(str(error), place, rest, known, choices, required=required)) from None


def fields_of(target: Any, place: str = "") -> list[Field]:
    """List the settings of a class or function, in order.

    Raises:
        InputError: a class that is no frozen dataclass or Spec, annotations that cannot be read.
    """
    try:
        return _fields(target)
    except NameError as error:
        raise InputError(f"{place}: an annotation of {target.__name__} cannot be read: {error}") from None
    except TypeError as error:
        raise InputError(f"{place}: {error}") from None


def keys_of(concept: Concept, kind: str, names: Namespace) -> set[str]:
    """Name the settings of a kind, none of one that is not known."""
    target = concept.known.get(kind) or (names.load(kind) if ":" in kind else None)
    if target is None:
        return set()
    of_function = () if isinstance(target, type) or not concept.adapt else concept.adapt(target)._fields[1:]
    return {*(field.name for field in fields_of(target, kind)), *of_function}


def values_of(thing: Any) -> Table:
    """Read the settings of a thing: a Spec, a dataclass, or a function with its settings."""
    if isinstance(function := getattr(thing, "function", None), Function):
        return function.settings | {name: getattr(thing, name) for name in thing._fields[1:]}
    if isinstance(thing, msgspec.Struct):
        return {name: getattr(thing, name) for name in thing.__struct_fields__}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return {}


def with_values(thing: Any, changes: Table) -> Any:
    """Return a thing with other settings, which are not checked and may be traced."""
    if isinstance(function := getattr(thing, "function", None), Function):
        beside = {name: x for name, x in changes.items() if name in thing._fields[1:]}
        own = {name: x for name, x in changes.items() if name not in beside}
        return thing._replace(function=function._replace(settings=function.settings | own), **beside)
    if isinstance(thing, msgspec.Struct):
        return msgspec.structs.replace(thing, **changes)
    return dataclasses.replace(thing, **changes)


def target_of(thing: Any) -> Any:
    """Return the class or function that a thing is made of."""
    function = getattr(thing, "function", None)
    return function.target if isinstance(function, Function) else type(thing)


@functools.cache
def _fields(target: Any) -> list[Field]:
    empty = inspect.Parameter.empty
    if isinstance(target, type) and issubclass(target, msgspec.Struct):
        return [
            Field(f.name, f.type, empty if f.required else _default(f))
            for f in msgspec.structs.fields(target)
        ]
    hints = typing.get_type_hints(target, include_extras=True)
    if isinstance(target, type) and hasattr(target, "_field_defaults"):
        holder: Any = target
        if "function" not in holder._fields:
            raise TypeError(f"{target.__name__} is a NamedTuple; make it a frozen dataclass instead")
        defaults = holder._field_defaults
        return [Field(name, hints[name], default) for name, default in defaults.items()]
    if isinstance(target, type):
        if not dataclasses.is_dataclass(target):
            raise TypeError(f"{target.__name__} tells no settings; decorate it with @dataclass(frozen=True)")
        return [
            Field(
                f.name,
                hints[f.name],
                f.default
                if f.default is not dataclasses.MISSING
                else empty
                if f.default_factory is dataclasses.MISSING
                else f.default_factory(),
            )
            for f in dataclasses.fields(target)
            if f.init
        ]
    parameters = inspect.signature(target).parameters.values()
    for p in parameters:
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not empty:
            raise TypeError(f"{target.__name__}: {p.name!r} is positional; put * before the settings")
    return [Field(p.name, hints.get(p.name, Any), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY]


def _default(field: Any) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


@functools.cache
def _struct(target: Any) -> type[msgspec.Struct]:
    """Make the type that checks a table of settings."""
    fields = [
        (f.name, f.type) if f.default is inspect.Parameter.empty else (f.name, f.type, _as_default(f.default))
        for f in _fields(target)
    ]
    name = getattr(target, "__name__", "settings")
    return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)


def _as_default(value: Any) -> Any:
    mutable = isinstance(value, list | dict | set) and value
    return msgspec.field(default_factory=lambda: type(value)(value)) if mutable else value


def _target(concept: Concept, kind: Any, place: str, names: Namespace) -> Any:
    if kind is None:
        raise InputError(f"{place}: missing key 'kind'{nearest('', concept.known)}")
    if not isinstance(kind, str):
        raise InputError(f"{place}.kind: expected a name, got {kind!r:.60}")
    if ":" not in kind:
        if kind not in concept.known:
            raise InputError(f"{place}.kind: unknown {kind!r}{nearest(kind, concept.known)}")
        return concept.known[kind]
    with at(f"{place}.kind"):
        target = names.load(kind)
        if not callable(target):
            raise InputError(
                f"{kind} is neither a class nor a function; {concept.name} wants {concept.wants}"
            )
        if isinstance(target, type):
            missing = [[name for name in names if not _has(target, name)] for names in concept.methods]
            if least := min(missing, key=len):
                raise InputError(f"{kind} has no {least[0]!r}; {concept.name} wants {concept.wants}")
        return target


def _has(target: type, name: str) -> bool:
    """Whether a class has an attribute or a field; every class can be called, but not all of its objects."""
    return any(name in vars(base) or name in vars(base).get("__annotations__", {}) for base in target.__mro__)


def _instance(target: Any, values: Table, place: str) -> Any:
    try:
        return target(**values)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except Exception as error:
        files = frozenset({inspect.getfile(target)})
        raise UserCodeError(f"{place}: {target.__name__} raises when it is made", files) from error


def _literals(annotation: Any) -> list[str]:
    """List what a Literal allows, also inside a union or Annotated, and whether a number would do."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(x) for x in typing.get_args(annotation)]
    if annotation in (int, float):
        return ["a number"]
    parts = typing.get_args(annotation) if not isinstance(annotation, type) else ()
    return [x for part in parts for x in _literals(part)]


def plain(values: Table, names: Namespace) -> Table:
    """Write settings as JSON would hold them; code that Python gave has its import path."""

    def written(x: Any) -> Any:
        if hasattr(x, "tolist") or isinstance(x, range):
            return list(x) if isinstance(x, range) else x.tolist()
        if not callable(x):
            raise TypeError(f"{x!r:.60}")
        return _path(x, names)

    check_values(values)
    try:
        flat = {
            key: x.name
            if isinstance(x, Named)
            else _path(x, names)
            if callable(x) and inspect.isroutine(x)
            else x
            for key, x in values.items()
            if x is not None
        }
        return msgspec.json.decode(msgspec.json.encode(flat, enc_hook=written))
    except TypeError as error:
        raise InputError(
            f"a setting cannot be written down: {error}; use numbers, texts, lists, tables"
        ) from None


def _path(target: Any, names: Namespace) -> str:
    """Write the import path of code that Python gave, and note what it means."""
    path = f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', type(target).__name__)}"
    if names.given.get(path, target) != target:
        raise InputError(f"{path}: two things of this study have that name; give each a name of its own")
    names.given[path] = target
    return path
