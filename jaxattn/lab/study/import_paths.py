"""Where the names in a sweep file point: `package.module:Name`, or `file.py:Name` beside the sweep file.

A file imports the files next to it by their names, and those in the folder of the book that it belongs to.
"""

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxattn.core.errors import InputError, UserCodeError
from jaxattn.core.moved import place_of
from jaxattn.lab.study.code_hash import Unhashable, code_hash, is_local, search_folders


class ImportPaths:
    """Looks up code and files that a study names.

    Attributes:
        folder: what relative paths start from: the folder of the sweep file.
        given: objects that a study was given in Python, by their names.
    """

    def __init__(self, folder: str | Path = ".", given: Mapping[str, Any] | None = None) -> None:
        """Look from a folder; nothing is imported yet."""
        self.folder = Path(folder)
        self.given = dict(given or {})

    def load(self, name: str) -> Any:
        """Import a class or function.

        Args:
            name: "package.module:Name" or "file.py:Name".

        Returns:
            What the name means.

        Raises:
            InputError: no such file, module or name, or a file that imports another one whose name is taken.
            UserCodeError: it was found, and raised while it was imported.
        """
        if name in self.given:
            return self.given[name]
        place, _, attribute = name.partition(":")
        if not place.strip(".") or not attribute:
            raise InputError(f"{name!r}: expected package.module:Name, or a file, for example mine.py:Name")
        found: Any = self._file(place) if place.endswith(".py") else self._module(place)
        for part in attribute.split("."):
            if not part or not hasattr(found, part):
                near = difflib.get_close_matches(part, dir(found), 1)
                hint = f"; did you mean {place}:{near[0]}?" if near else ""
                raise InputError(f"{name}: {place} has no {part!r}{hint}")
            found = getattr(found, part)
        return found

    def path(self, text: str) -> Path:
        """Find a file that the study names, relative to its folder."""
        try:
            return self.folder / Path(text).expanduser()
        except RuntimeError:  # ~ of nobody
            return self.folder / text

    def code_hash(self, name: str) -> str | None:
        """Return the hash of the code that a name means, None if it has none; see `code_hash`."""
        try:
            return code_hash(self.load(name))
        except (Unhashable, OSError):
            return None

    def unhashable(self, name: str) -> str:
        """Return what keeps the code that a name means from having a hash, empty if it has one."""
        try:
            code_hash(self.load(name))
        except (Unhashable, OSError) as error:
            return str(error)
        return ""

    def files(self, names: Iterable[str]) -> frozenset[str]:
        """List the source files of some names, as tracebacks call them."""
        found = set()
        for name in names:
            target = self.load(name)
            parts = [target, *(vars(target).values() if isinstance(target, type) else ())]
            found |= {code.co_filename for part in parts if (code := getattr(part, "__code__", None))}
            module = sys.modules.get(getattr(target, "__module__", ""), None)
            found |= {file} if (file := getattr(module, "__file__", None)) else set()
        return frozenset(found)

    def _file(self, place: str) -> ModuleType:
        path = self.path(place)
        try:
            path = path.resolve()
            is_file = path.is_file()
            beside = [] if is_file else [other.name for other in path.parent.glob("*.py")]
        except (OSError, ValueError):  # no path at all
            is_file, beside = False, []
        if not is_file:
            near = difflib.get_close_matches(path.name, beside, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; paths start from {self.folder.resolve()}"
            raise InputError(f"{place}: there is no such file{hint}")
        # The same file is one module, however many names are taken from it.
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
        name = f"{path.stem}_{digest}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise InputError(f"{place}: cannot be imported; give a Python file")
        with _own_files_first(path, place):
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except Exception as error:
                del sys.modules[name]
                raise UserCodeError(f"{place} raises while it is imported", frozenset({str(path)})) from error
        return module

    def _module(self, place: str) -> ModuleType:
        before = list(sys.path)
        sys.path += [str(self.folder.resolve()), str(Path.cwd())]
        try:
            return importlib.import_module(place)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and place.startswith(error.name or "?")
            if missing:
                remedy = "install it, or name a file, for example mine.py:Name"
                if new := place_of(place):
                    remedy = f"version 0.3 moved it to {new}"
                raise InputError(f"{place}: there is no such module; {remedy}") from None
            every = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
            files = frozenset(file for file in every if file != __file__ and "importlib" not in file)
            raise UserCodeError(f"{place} raises while it is imported", files) from error
        finally:
            sys.path[:] = before


@contextmanager
def _own_files_first(path: Path, place: str) -> Iterator[None]:
    """Let a file import the files of its search folders by their names, and no other folder's files.

    A process has one module of each name. If a file imports a name that another folder's file has taken, it
    is not imported, and neither is anything that it imported from its search folders.
    """
    folders, before = search_folders(path), list(sys.path)
    own = {file.stem: file for folder in reversed(folders) for file in folder.glob("*.py")}
    taken = {name: sys.modules.pop(name) for name, file in own.items() if _is_taken(name, file)}
    known = set(sys.modules)
    sys.path += map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before
        clashes = sorted(taken.keys() & sys.modules.keys())
        for name in sys.modules.keys() - known if clashes else ():
            if _source(sys.modules[name]) in own.values():
                del sys.modules[name]
        sys.modules.update(taken)
    for name in clashes:
        raise InputError(
            f"{place}: imports {name}, but {_source(taken[name])} is already imported under this name; "
            "rename one of the two files"
        )


def _is_taken(name: str, file: Path) -> bool:
    """Return whether a module of this name comes from a user's other file."""
    module = sys.modules.get(name)
    place = module and _source(module)
    return bool(place) and is_local(str(place)) and place != file


def _source(module: ModuleType) -> Path | None:
    """Return the file of a module, None if it has none."""
    return None if getattr(module, "__file__", None) is None else Path(module.__file__ or "").resolve()
