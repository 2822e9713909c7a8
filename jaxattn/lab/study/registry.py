"""Create components, such as models, from the tables of a sweep file, and describe them as tables.

A table has a `kind`, which is a short name or an import path. Its other keys are settings of the class,
which are checked against the annotations. A function is first converted to a class; see
`settings_class`. The kind may also be an object, of which the other keys replace settings.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from jaxattn.base.from_function import (
    FromFunction,
    as_default,
)
from jaxattn.core.errors import InputError, UserCodeError, at, explain, nearest
from jaxattn.core.settings import FILE, IMPORT_PATH, Named, has_mark
from jaxattn.core.spec import Spec, choices_of, plain_values, without_arrays
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.study.concepts import CONCEPTS, C, Concept
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.tree import check_values, open_table

Table = dict[str, Any]
# A component as a user gives it: an object, a class or function, a table with a `kind`, or the kind alone.
Component = Spec | Callable[..., object] | Mapping[str, object] | str


class Field(NamedTuple):
    """Setting of a class: name, annotation and default (`msgspec.NODEFAULT` if it is required)."""

    name: str
    type: Any
    default: Any


def make(concept: Concept[C], table: Any, location: str, names: ImportPaths) -> tuple[C, Table]:
    """Create an instance from a table; return it with the complete table, which includes defaults.

    Args:
        concept: component type of the table.
        table: table with the kind and settings, or the kind alone. An object as the kind is returned itself,
            unless the table replaces some of its settings, or the object names a file or an import path.
        location: key of the table in the sweep file, for messages.
        names: resolver for import paths.

    Raises:
        InputError: the kind or a setting is unknown, a type or value is invalid, or a class lacks a method.
        UserCodeError: custom code raised an exception.
    """
    if not isinstance(table, str | dict | Spec):
        raise InputError(f"{location}: expected a table or a name, got {table!r:.60}")
    changes = dict(table) if isinstance(table, dict) else {"kind": table}
    kind = changes.pop("kind", None) or concept.default(changes)
    given, own = (kind, plain_values(msgspec.structs.asdict(kind))) if isinstance(kind, Spec) else (None, {})
    if given is None:
        target = _class(concept, kind, location, names)
    else:
        target = _class_of(concept, given, location, names)
        kind = _kind_of(given, names)
    values = convert(target, own | changes, location)
    with at(location):
        full = {"kind": kind, **to_json_values(values, names)}
        located = {
            name: _resolve_paths(mark, values[name], names) for name, mark in marked_settings(target).items()
        }
    made = _instance(target, values | located, location)
    return (typing.cast(C, given) if given == made else made), full


@functools.cache
def marked_settings(target: type[Spec]) -> dict[str, str]:
    """Return the settings annotated as file paths or import paths, each mapped to its annotation's marker."""
    return {f.name: mark for f in _fields(target) for mark in (FILE, IMPORT_PATH) if has_mark(f.type, mark)}


def _resolve_paths(mark: str, value: Any, names: ImportPaths) -> Any:
    if isinstance(value, dict):
        return {key: _resolve_paths(mark, x, names) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_resolve_paths(mark, x, names) for x in value)
    if not isinstance(value, str):
        is_code = mark == IMPORT_PATH and callable(value) and not isinstance(value, Named)
        return Named(_path(value, names), value) if is_code else value
    location, colon, key = value.partition(":")
    if mark == FILE:
        return f"{names.path(location)}{colon}{key}"
    return Named(value, names.load(value)) if colon else value


def components_of(given: Any, names: ImportPaths) -> Any:
    """Return what a study holds for an argument: objects as they are, and classes and functions as kinds.

    Arrays become lists, and keys whose value is None are left out.

    Raises:
        InputError: a setting cannot be stored, or another object in the study has the same import path.
    """
    if isinstance(given, str | Spec):
        return given
    if isinstance(given, dict):
        return {key: components_of(x, names) for key, x in given.items() if x is not None}
    if isinstance(given, list | tuple):
        return [components_of(x, names) for x in given]
    return _plain(given, names)


def component_list(items: object, location: str, names: ImportPaths) -> list[Any]:
    """Return what a study holds for each entry of a list; see `components_of`.

    Raises:
        InputError: `items` is not a list.
    """
    if not isinstance(items, list | tuple):
        raise InputError(f"{location}: expected a list, got {items!r:.60}; enclose it in brackets")
    return [components_of(item, names) for item in items]


def probe_tables(probes: object, names: ImportPaths) -> Table:
    """Return the table of a `Probes` object, a table, or a list of probes to add to the standard probes."""
    given = {"own": probes} if isinstance(probes, list | tuple) else probes or {}
    if not isinstance(given, dict | Probes):
        raise InputError(f"probes: expected a Probes object or a list, got {probes!r:.60}")
    values = dict(given) if isinstance(given, dict) else open_table(given)
    return values | {"own": component_list(values.get("own", ()), "probes.own", names)}


def describe(tree: Any, names: ImportPaths) -> Any:
    """Return a copy of what a study holds with a table, which has all settings, in place of each object."""
    if isinstance(tree, Spec):
        return {"kind": _kind_of(tree, names), **to_json_values(msgspec.structs.asdict(tree), names)}
    if isinstance(tree, dict):
        own = {key: describe(x, names) for key, x in tree.items()}
        return {**own.pop("kind"), **own} if isinstance(tree.get("kind"), Spec) else own
    return [describe(x, names) for x in tree] if isinstance(tree, list | tuple) else tree


def _kind_of(thing: Any, names: ImportPaths) -> str:
    """Return the kind of an object, a class or a function: its short name, or an import path."""
    target = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    every = (item for concept in CONCEPTS for item in concept.known.items())
    if short := next((name for name, known in every if known is target), ""):
        return short
    if isinstance(thing, FromFunction) and thing.kind:
        names.given.setdefault(thing.kind, type(thing).function)
        return thing.kind
    return _path(target, names)


def _plain(x: Any, names: ImportPaths) -> Any:
    """Return a value without objects, as in JSON; raise InputError if there is none."""

    def written(x: Any) -> Any:
        if hasattr(x, "tolist") or isinstance(x, range):
            return list(x) if isinstance(x, range) else x.tolist()
        if not callable(x):
            raise TypeError(f"{x!r:.60}")
        return _kind_of(x, names)

    try:
        return msgspec.json.decode(msgspec.json.encode(x, enc_hook=written))
    except TypeError as error:
        raise InputError(
            f"a setting cannot be stored: {error}; use numbers, strings, lists or tables"
        ) from None


def convert(target: type[Spec], values: Table, location: str) -> Table:
    """Return settings with defaults added; raise InputError if a setting does not match its annotation."""
    fields = fields_of(target, location)
    rest = dict(values)
    if takes := target.options_field:
        own = {field.name for field in fields}
        extra_calls = {key: rest.pop(key) for key in list(rest) if key not in own}
        rest[takes] = dict(rest.get(takes, {})) | extra_calls
    try:
        return msgspec.structs.asdict(msgspec.convert(rest, _struct(target)))
    except msgspec.ValidationError as error:
        known = [field.name for field in fields if field.name != takes]
        choices = {field.name: choices_of(field.type) for field in fields}
        required = [field.name for field in fields if field.default is msgspec.NODEFAULT]
        raise InputError(explain(str(error), location, values, known, choices, required=required)) from None
    except TypeError as error:
        raise InputError(
            f"{location}: {target.__name__} has an annotation that is not supported for settings "
            f"({error}); use numbers, strings, lists or tables"
        ) from None


def fields_of(target: type[Spec], location: str = "") -> list[Field]:
    """Return a class's settings in order; raise InputError if an annotation cannot be evaluated."""
    try:
        return _fields(target)
    except NameError as error:
        raise InputError(
            f"{location}: an annotation of {target.__name__} cannot be evaluated: {error}"
        ) from None
    except TypeError as error:
        raise InputError(f"{location}: {error}") from None


def keys_of(concept: Concept[Any], kind: str | Spec, names: ImportPaths) -> set[str]:
    """Return the names of the settings that a kind accepts, or an empty set if the kind is unknown."""
    if isinstance(kind, Spec):
        return set(kind.__struct_fields__)
    if ":" not in kind and kind not in concept.known:
        return set()
    return {field.name for field in fields_of(_class(concept, kind, kind, names), kind)}


@functools.cache
def _fields(target: type[Spec]) -> list[Field]:
    # A function's own settings come before those of its base class.
    first = target.arguments if issubclass(target, FromFunction) else ()
    return [
        Field(
            f.name,
            without_arrays(f.type),
            f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory(),
        )
        for f in sorted(msgspec.structs.fields(target), key=lambda f: f.name not in first)
    ]


@functools.cache
def _struct(target: type[Spec]) -> type[msgspec.Struct]:
    fields: list[Any] = [
        (f.name, f.type) if f.default is msgspec.NODEFAULT else (f.name, f.type, as_default(f.default))
        for f in _fields(target)
    ]
    return msgspec.defstruct(target.__name__, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)


def _class(concept: Concept[C], kind: Any, location: str, names: ImportPaths) -> type[C]:
    if kind is None:
        raise InputError(f"{location}: missing key 'kind'{nearest('', concept.known)}")
    if not isinstance(kind, str):
        raise InputError(f"{location}.kind: expected a name, got {kind!r:.60}")
    if ":" not in kind:
        if kind not in concept.known:
            module, dot, name = kind.rpartition(".")
            path = f"{kind}:NAME" if name == "py" else f"{module}:{name}"
            hint = f"; an import path is written '{path}'" if dot else nearest(kind, concept.known)
            raise InputError(f"{location}.kind: unknown {kind!r}{hint}")
        return concept.known[kind]
    with at(f"{location}.kind"):
        target = names.load(kind)
        if not callable(target):
            raise InputError(
                f"{kind} is neither a class nor a function; {concept.name} must be {concept.requirement}"
            )
        if isinstance(target, type):
            _check_class(concept, target, kind)
        elif concept.from_function is None:
            raise InputError(f"{kind} is a function; {concept.name} must be {concept.requirement}")
    if isinstance(target, type):
        found: type[C] = target
    else:
        assert concept.from_function is not None
        with at(location):
            found = concept.from_function(target, kind=kind)
    _check_settings(found, location)
    return found


def _class_of(concept: Concept[C], given: Spec, location: str, names: ImportPaths) -> type[C]:
    target: Any = type(given)
    if target not in concept.known.values():
        with at(location):
            _check_class(concept, target, _kind_of(given, names))
        _check_settings(target, location)
    found: type[C] = target
    return found


def _check_class(concept: Concept[Any], target: type, kind: str) -> None:
    base = next((base for base in concept.bases if issubclass(target, base)), None)
    if base is None:
        raise InputError(
            f"{kind} does not derive from {' or '.join(f'jaxattn.{x.__name__}' for x in concept.bases)}; "
            f"{concept.name} must be {concept.requirement}"
        )
    for name in concept.bases[base]:
        if getattr(target, name) is getattr(base, name):
            raise InputError(f"{kind} does not define {name!r}; {concept.name} must be {concept.requirement}")


def _check_settings(target: type[Spec], location: str) -> None:
    """Raise InputError if a setting has the same name as an existing attribute of a base class."""
    for base in target.__mro__[1:]:
        if not base.__module__.startswith("jaxattn.") or not issubclass(base, Spec):
            continue
        taken = set(vars(base)) - set(base.__struct_fields__) - target.overridable
        for name in target.__struct_fields__:
            if name in taken:
                rather = "" if target.kind else "annotate it as a ClassVar, or "
                raise InputError(
                    f"{location}: setting {name!r} of {target.kind or target.__name__} is also an attribute "
                    f"of {base.__name__}; {rather}choose another name for the setting"
                )


def _instance(target: Any, values: Table, location: str) -> Any:
    try:
        return target(**values)
    except InputError as error:
        raise InputError(f"{location}: {error}") from None
    except Exception as error:
        files = frozenset({inspect.getfile(target)})
        raise UserCodeError(
            f"{location}: {target.__name__} raised an exception on construction", files
        ) from error


def to_json_values(values: Table, names: ImportPaths) -> Table:
    """Convert settings to plain JSON values, replacing custom objects with their import paths."""
    check_values(values)
    flat = {key: _without_targets(x) for key, x in values.items() if x is not None}
    table: Table = _plain(flat, names)
    return table


def _without_targets(x: Any) -> Any:
    """Return settings with the import path in place of each imported object."""
    if isinstance(x, Named):
        return x.name
    return {key: _without_targets(each) for key, each in x.items()} if isinstance(x, dict) else x


def _path(target: Any, names: ImportPaths) -> str:
    path = f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', type(target).__name__)}"
    if names.given.get(path, target) != target:
        raise InputError(f"{path}: two objects in the study have this import path; rename one of them")
    names.given[path] = target
    return path
