"""Hash a study's custom code, including its dependencies in the user's files and notebook.

For code in a file, the hash covers the file and the local modules that it imports. For code in a
notebook, in the running script or at the prompt, the hash covers each function, and the functions,
classes and values that the function uses. Comments, formatting and docstrings do not count. Installed
packages are not hashed; their versions are recorded instead.
"""

import ast
import dis
import enum
import functools
import hashlib
import inspect
import pickle
import sys
import sysconfig
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, cast

import jax
import numpy as np

from jaxattn.core.errors import InputError
from jaxattn.lab.study.source_imports import imported_file, imported_names, search_folders
from jaxattn.lab.study.source_text import reads_text, reduced

_PACKAGE = Path(__file__).parents[2]
_STARTED = time.time()
INSTALLED = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
PLAIN = (
    types.NoneType,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    types.EllipsisType,
    enum.Enum,
    range,
    np.dtype,
)
_VALUES = (*PLAIN, np.ndarray, np.generic, jax.Array)
DEFINITIONS = (types.ModuleType, type, types.FunctionType)
# Types of class attributes that contain no code.
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
NO_CODE = ("_abc_impl", "__annotate__", "__annotate_func__", "__annotations_cache__")
FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


class Unhashable(Exception):
    """Raised if code depends on a value that cannot be hashed. The message names the value."""


def code_hash(target: Any) -> str:
    """Return the hash of a class or function as 16 hexadecimal digits.

    The hash depends on the code, on local modules that the code imports, and on values that it reads. For
    code in files, it does not depend on the version of Python.

    Args:
        target: a class or function from a file, an installed package or a notebook.

    Raises:
        Unhashable: the code reads a value that cannot be hashed.
        InputError: a file has changed since it was imported, and differs from the code in memory.
    """
    code = _Code()
    file = _file_of(target)
    if file is not None and not is_local(file):
        code.sources[file] = Path(file).read_bytes()
    code.visit(target, getattr(target, "__qualname__", type(target).__qualname__))
    sources = list(code.sources.values())
    if reads_text([*sources, *code.names]):
        code.add(*sources, *code.docstrings)
    else:
        code.add(*map(reduced, sources))
    return code.state.hexdigest()[:16]


class _Code:
    """Running hash of everything on which a class or function depends, in the order of discovery."""

    def __init__(self) -> None:
        self.state = hashlib.sha256()
        # Visited objects by id, each with its index. Storing the objects prevents Python from reusing their
        # ids.
        self.seen: dict[int, tuple[int, Any]] = {}
        # Contents of the source files, in the order of discovery.
        self.sources: dict[str, bytes] = {}
        # Docstrings of functions in a notebook, and the names in their code.
        self.docstrings: list[str] = []
        self.names: set[bytes] = set()

    def add(self, *contents: str | bytes) -> None:
        for x in contents:
            content = x.encode() if isinstance(x, str) else x
            self.state.update(f"{len(content)}\0".encode() + content)

    def visit(self, x: Any, location: str) -> None:
        """Hash an object on which the code depends. `location` names the object in error messages."""
        if isinstance(x, PLAIN):
            self.add(type(x).__qualname__, repr(x))
            return
        if id(x) in self.seen:
            self.add(f"seen {self.seen[id(x)][0]}")
            return
        self.seen[id(x)] = len(self.seen), x
        self.hash(x, location)
        if not isinstance(x, DEFINITIONS):
            # Remove the value: whether two equal values are the same object can differ between processes.
            del self.seen[id(x)]

    def hash(self, x: Any, location: str) -> None:
        if isinstance(x, types.ModuleType):
            self.module(x)
        elif name := _installed_name(x):
            self.add(name)
        elif isinstance(x, type):
            self.class_(x, location)
        elif isinstance(x, types.FunctionType):
            self.function(x, location)
        elif (parts := _parts(x)) is not None:
            self.add(type(x).__qualname__)
            for number, part in enumerate(parts):
                self.visit(part, f"{location}[{number}]")
        else:
            self.value(x, location)

    def value(self, x: Any, location: str) -> None:
        """Hash an array, an object of a custom class, a C function, or any other picklable object."""
        kind = type(x)
        if callable(x) and hasattr(x, "__name__"):
            self.add(f"{getattr(x, '__module__', '')}.{x.__name__}")
            return
        try:
            if isinstance(x, jax.Array):
                x = np.asarray(jax.random.key_data(x) if _is_key(x) else x)
            if isinstance(x, np.ndarray) and x.dtype != object:
                self.add(str(x.dtype), str(x.shape), x.tobytes())
                return
            own = _is_loose(kind) or is_local(_file_of(kind))
            reduced = x.__reduce_ex__(4)[:3] if own else pickle.dumps(x, protocol=4)
        except Exception:  # Pickling may raise any exception.
            raise Unhashable(f"{location} ({kind.__qualname__})") from None
        self.visit(reduced, location)

    def module(self, module: types.ModuleType | None) -> None:
        """Hash the source of a local module, or only the name of any other module."""
        if module is None:
            return
        file = getattr(module, "__file__", None)
        if is_local(file):
            self.file(file, module.__package__ or "")
        else:
            self.add(module.__name__)

    def file(self, file: str, package: str) -> None:
        """Add a source file and the local modules that it imports, each of them once."""
        if file in self.sources:
            return
        content = self.sources[file] = Path(file).read_bytes()
        for module in [each for each in sys.modules.values() if getattr(each, "__file__", None) == file]:
            _check_current(_functions(vars(module), file), file)
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # compiled module
            return
        for name in sorted(set(imported_names(tree, package))):
            if is_local(found := imported_file(name, search_folders(Path(file)))):
                is_package = Path(found).name == "__init__.py"
                self.file(found, name if is_package else name.rpartition(".")[0])

    def class_(self, kind: type, location: str) -> None:
        loose, module = _is_loose(kind), _module_of(kind)
        if not loose and not is_local(_file_of(kind)):
            self.add(f"{kind.__module__}.{kind.__qualname__}")
            return
        self.add(kind.__qualname__)
        for name, x in sorted(vars(kind).items()):
            is_code = isinstance(x, FUNCTIONS) if loose else _is_from_file(x)
            is_code = is_code or (loose and not name.startswith("__"))
            if is_code and name not in NO_CODE and not isinstance(x, DESCRIPTORS):
                self.add(name)
                self.visit(x, f"{location}.{name}")
        if not loose:
            self.module(module)
        for base in kind.__bases__:
            self.visit(base, base.__qualname__)

    def function(self, function: types.FunctionType, location: str) -> None:
        """Hash a function: its code or the file that defines it, and the values that the function reads."""
        loose, local = _is_loose(function), is_local(file := _file_of(function))
        if local and file is not None:
            # An object may be older than its module, if the module was loaded again.
            _check_current([function], file)
        self.add(function.__qualname__)
        if loose:
            self.docstrings.append(function.__doc__ or "")
            self.code(function.__code__)
        else:
            self.module(_module_of(function))
        if loose or local:
            self.visit([function.__defaults__, function.__kwdefaults__], location)
        if declared := vars(function).get("declared"):
            self.visit(declared, location)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # The closure cell is empty.
                self.visit(cell.cell_contents, name)
        for name in sorted(_names(function.__code__)) if loose or local else ():
            x = function.__globals__.get(name)
            # Other global objects, such as caches, may change at run time; their definitions are hashed with
            # the file's source.
            if loose or isinstance(x, (*_VALUES, *FUNCTIONS, type)) or hasattr(x, "__wrapped__"):
                self.add(name)
                self.visit(x, name)

    def code(self, code: types.CodeType) -> None:
        """Hash a code object independently of its line numbers and file."""
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.add(code.co_code, repr(names), repr(counts))
        self.names.update(name.encode() for name in code.co_names)
        # No instruction loads a docstring.
        read = {each.arg for each in dis.get_instructions(code) if each.opcode in dis.hasconst}
        for x in [x for number, x in enumerate(code.co_consts) if number in read]:
            if isinstance(x, types.CodeType):
                self.code(x)
            else:
                self.visit(x, "a constant")


def _check_current(functions: Iterable[types.FunctionType], file: str) -> None:
    """Raise InputError if functions in memory differ from those in their file, which was written since.

    Only files that have changed since the start of this process are compared, because import hooks may change
    code.
    """
    if (state := Path(file).stat()).st_mtime < _STARTED:
        return
    known = _known_functions(file, state.st_mtime_ns, state.st_size)
    for function in functions:
        if function.__code__.co_filename == file and _signature(function.__code__) not in known:
            raise InputError(
                f"{file}: has changed since it was imported ({function.__qualname__}); restart Python, or "
                "reload the module with importlib.reload and make its objects again"
            )


@functools.lru_cache(maxsize=64)
def _known_functions(file: str, time_ns: int, size: int) -> frozenset[Any]:
    """Return the signatures of all functions in a file, as it is at this time and with this size."""
    try:
        return frozenset(_signatures(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return frozenset()


def _functions(namespace: Mapping[str, Any], file: str) -> Iterator[types.FunctionType]:
    """Yield the functions of a module, and those of its classes, that a file defines."""
    for x in list(namespace.values()):
        if isinstance(x, property):
            accessors = {"get": x.fget, "set": x.fset, "delete": x.fdel}
            yield from _functions({name: each for name, each in accessors.items() if each}, file)
        while hasattr(x, "__wrapped__"):  # decorated, also as a static or class method
            x = x.__wrapped__
        if isinstance(x, types.FunctionType):
            yield x
        elif isinstance(x, type) and x.__module__ == namespace.get("__name__"):
            yield from _functions(vars(x), file)


def _signature(code: types.CodeType) -> Any:
    """Return what a function computes, without its position in the file."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    constants = tuple(map(_constant, code.co_consts))
    return code.co_qualname, code.co_code, names, counts, constants


def _constant(x: Any) -> Any:
    if isinstance(x, types.CodeType):
        return _signature(x)
    # The order of a set depends on how it was made.
    return tuple(sorted(map(repr, x))) if isinstance(x, frozenset) else repr(x)


def _signatures(code: types.CodeType) -> Iterator[Any]:
    """Yield the signatures of all functions that a compiled file defines."""
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            yield _signature(x)
            yield from _signatures(x)


def _parts(x: Any) -> list[Any] | None:
    if isinstance(x, list | tuple):
        return list(x)
    if isinstance(x, Mapping):
        return [part for pair in x.items() for part in pair]
    if isinstance(x, set | frozenset):
        return sorted(x, key=repr)
    if isinstance(x, types.MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, x.args, x.keywords]
    if isinstance(x, property):
        return [x.fget, x.fset]
    if isinstance(x, functools.cached_property):
        return [x.func]
    if hasattr(x, "__wrapped__"):  # from jax.jit, functools.cache or staticmethod
        own = sorted(vars(x).items()) if hasattr(x, "__dict__") else ()
        return [
            x.__wrapped__,
            *(each for name, each in own if isinstance(each, types.FunctionType) or name == "declared"),
        ]
    return None


def _module_of(x: Any) -> types.ModuleType | None:
    """Return the module of a class or function.

    For a decorated function, this is the module that defines the undecorated function.
    """
    name = x.__globals__.get("__name__") if isinstance(x, types.FunctionType) else x.__module__
    return sys.modules.get(name or "")


def _file_of(x: Any) -> str | None:
    """Return the source file of a class or function.

    The result is None for objects from a notebook, the running script or C.
    """
    module = _module_of(x)
    return None if module is sys.modules["__main__"] else getattr(module, "__file__", None)


def _installed_name(x: Any) -> str:
    """Return the import path of an object from an installed package, or "" for any other object.

    The object may be decorated.
    """
    location, name = getattr(x, "__module__", None), getattr(x, "__qualname__", None)
    if not (isinstance(location, str) and isinstance(name, str) and location in sys.modules):
        return ""
    file = getattr(sys.modules[location], "__file__", None)
    if location == "__main__" or file is None or is_local(file):
        return ""
    found: Any = sys.modules[location]
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{location}.{name}" if found is x else ""


def _is_from_file(x: Any) -> bool:
    """Return whether a class attribute is a method or property from a local file.

    The methods that dataclasses, NamedTuples and enumerations generate depend on the version of Python.
    """
    if isinstance(x, property):
        x = x.fget or x.fset
    elif isinstance(x, functools.cached_property):
        x = x.func
    found: Any = inspect.unwrap(cast(Any, x)) if isinstance(x, FUNCTIONS) else None
    return isinstance(found, types.FunctionType) and is_local(found.__code__.co_filename)


def _is_loose(x: Any) -> bool:
    module = _module_of(x)
    if module is None or module is sys.modules["__main__"]:
        return True
    root = sys.modules.get(module.__name__.partition(".")[0])
    return not any(getattr(each, name, None) for each in (module, root) for name in ("__file__", "__spec__"))


def is_local(file: str | None) -> TypeGuard[str]:
    """Return whether a file belongs to the user rather than to Python, an installed package or jaxattn."""
    if file is None:
        return False
    path = Path(file)
    installed = any(path.is_relative_to(folder) for folder in (_PACKAGE, *INSTALLED))
    return path.is_file() and not installed and not {"site-packages", "dist-packages"} & set(path.parts)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _names(code: types.CodeType) -> set[str]:
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_names(x) for x in code.co_consts if isinstance(x, types.CodeType)))
