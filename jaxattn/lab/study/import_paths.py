"""Resolve import paths in sweep files: `package.module:Name`, or `file.py:Name` relative to the sweep file.

A file can import other files by name from its own folder and from the folder of its book.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from jaxattn.core.errors import InputError, UserCodeError, similar
from jaxattn.lab.study.code_hash import Unhashable, code_hash, is_local
from jaxattn.lab.study.source_imports import search_folders

# Contents of the imported files, by the names of their modules.
_IMPORTED: dict[str, bytes] = {}


class ImportPaths:
    """Resolver for the import paths and file names in a study.

    Attributes:
        folder: folder of the sweep file, to which relative paths refer.
        given: objects passed to a study in Python, by import path.
    """

    def __init__(self, folder: str | Path = ".", given: Mapping[str, Any] | None = None) -> None:
        """Store the folder and the given objects without importing anything."""
        self.folder = Path(folder)
        self.given = dict(given or {})

    def load(self, name: str) -> Any:
        """Import a class or function from its path, "package.module:Name" or "file.py:Name".

        Raises:
            InputError: the file, module or name does not exist, or a module name is already in use.
            UserCodeError: the import raised an exception.
        """
        if name in self.given:
            return self.given[name]
        location, _, attribute = name.partition(":")
        if not location.strip(".") or not attribute:
            raise InputError(f"{name!r}: expected package.module:Name, or a file such as mine.py:Name")
        found: Any = self._file(location) if location.endswith(".py") else self._module(location)
        for part in attribute.split("."):
            if not part or not hasattr(found, part):
                near = similar(part, dir(found))
                hint = f"; did you mean {location}:{near}?" if near else ""
                raise InputError(f"{name}: {part!r} does not exist in {location}{hint}")
            found = getattr(found, part)
        return found

    def path(self, text: str) -> Path:
        """Resolve a file path relative to the study's folder."""
        try:
            return self.folder / Path(text).expanduser()
        except RuntimeError:  # The user after ~ does not exist.
            return self.folder / text

    def code_hash(self, name: str) -> str | None:
        """Return the hash of the code at an import path, or None if it is unhashable; see `code_hash`."""
        try:
            return code_hash(self.load(name))
        except (Unhashable, OSError):
            return None

    def unhashable(self, name: str) -> str:
        """Return the name of a value that makes the code at an import path unhashable, or "" if none does."""
        try:
            code_hash(self.load(name))
        except (Unhashable, OSError) as error:
            return str(error)
        return ""

    def files(self, names: Iterable[str]) -> frozenset[str]:
        """Return the source files to which import paths refer, as they appear in tracebacks."""
        found = set()
        for name in names:
            target = self.load(name)
            parts = [target, *(vars(target).values() if isinstance(target, type) else ())]
            found |= {code.co_filename for part in parts if (code := getattr(part, "__code__", None))}
            module = sys.modules.get(getattr(target, "__module__", ""), None)
            found |= {file} if (file := getattr(module, "__file__", None)) else set()
        return frozenset(found)

    def _file(self, location: str) -> ModuleType:
        path = self.path(location)
        try:
            path = path.resolve()
            is_file = path.is_file()
            siblings = [] if is_file else [other.name for other in path.parent.glob("*.py")]
        except (OSError, ValueError):  # The path is invalid.
            is_file, siblings = False, []
        if not is_file:
            near = similar(path.name, siblings)
            hint = f"; did you mean {near}?" if near else f"; paths are relative to {self.folder.resolve()}"
            raise InputError(f"{location}: no such file{hint}")
        # Import each file once, even if several of its names are used, and again when it has changed.
        name = _module_name(path)
        imported = sys.modules.get(path.stem)
        if name not in sys.modules and imported is not None and _source(imported) == path:
            sys.modules[name] = imported
        content = path.read_bytes() if os.access(path, os.R_OK) else b""
        if name in sys.modules and _IMPORTED.get(name, content) == content:
            return sys.modules[name]
        if path.suffix != ".py":
            raise InputError(f"{location}: cannot be imported; use a Python file")
        loader = _Uncached(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        with _local_imports(path, location):
            module = sys.modules[name] = importlib.util.module_from_spec(cast(ModuleSpec, spec))
            _IMPORTED[name] = content
            try:
                loader.exec_module(module)
            except Exception as error:
                del sys.modules[name]
                raise UserCodeError(
                    f"{location} raised an exception on import", frozenset({str(path)})
                ) from error
        return module

    def _module(self, location: str) -> ModuleType:
        before = list(sys.path)
        sys.path += [str(self.folder.resolve()), str(Path.cwd())]
        try:
            return importlib.import_module(location)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and location.startswith(error.name or "?")
            if missing:
                remedy = "install it, or give a file such as mine.py:Name"
                raise InputError(f"{location}: no such module; {remedy}") from None
            every = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
            files = frozenset(file for file in every if file != __file__ and "importlib" not in file)
            raise UserCodeError(f"{location} raised an exception on import", files) from error
        finally:
            sys.path[:] = before


class _Uncached(SourceFileLoader):
    """Loader without bytecode files, which miss an edit within a second that keeps the size of the file."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


@contextmanager
def _local_imports(path: Path, location: str) -> Iterator[None]:
    """Inside the `with` block, resolve a file's imports of local files in its search folders.

    The folders are searched after all others, so an installed module takes precedence over a local file.

    A process can import only one module under each name. If the file imports a module whose name is already
    in use for a file in another folder, all imports from the search folders in this block are undone.

    Raises:
        InputError: two files with the same name are imported from different folders.
    """
    folders, before = search_folders(path), list(sys.path)
    own = {file.stem: file for folder in reversed(folders) for file in folder.glob("*.py")}
    taken = {name: sys.modules.pop(name) for name, file in own.items() if _is_taken(name, file)}
    loaded = {name: sys.modules.get(_module_name(file)) for name, file in own.items()}
    lent = {name: module for name, module in loaded.items() if module and name not in sys.modules}
    sys.modules.update(lent)
    known = set(sys.modules)
    sys.path += map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before
        for name in lent:
            sys.modules.pop(name, None)
        clashes = sorted(taken.keys() & sys.modules.keys())
        for name in sys.modules.keys() - known if clashes else ():
            if _source(sys.modules[name]) in own.values():
                del sys.modules[name]
        sys.modules.update(taken)
    for name in clashes:
        raise InputError(
            f"{location}: imports {name}, but {_source(taken[name])} is already imported under this name; "
            "rename one of the two files"
        )


def _module_name(path: Path) -> str:
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _is_taken(name: str, file: Path) -> bool:
    module = sys.modules.get(name)
    location = module and _source(module)
    return bool(location) and is_local(str(location)) and location != file


def _source(module: ModuleType) -> Path | None:
    return None if getattr(module, "__file__", None) is None else Path(module.__file__ or "").resolve()
