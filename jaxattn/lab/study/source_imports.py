"""Find the files that source code imports, without importing them."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def imported_names(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that source code imports, their parents, and imported names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # The relative import goes beyond the top-level package.
                whole = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from _with_parents(whole)
                yield from (f"{whole}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: k + 1]) for k in range(len(parts)))


def search_folders(file: Path) -> list[Path]:
    """Return the folders to search for a file's imports: the folder of the file, and the folder of its book.

    A book is a folder with a book.toml; the files of its items are in subfolders.
    """
    book = file.parent.parent
    return [file.parent, *([book] if (book / "book.toml").is_file() else [])]


def imported_file(name: str, folders: list[Path]) -> str | None:
    """Return the file of a module by name, searching the folders after `sys.path`; None if there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    if "." in name:
        return _submodule(name, folders)
    before = list(sys.path)
    sys.path += map(str, folders)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path[:] = before
    return None if spec is None else spec.origin


def _submodule(name: str, folders: list[Path]) -> str | None:
    """Return the file of a module in a package, without importing the package."""
    top, *rest = name.split(".")
    origin = imported_file(top, folders)
    if origin is None or Path(origin).name != "__init__.py":
        return None
    base = Path(origin).parent.joinpath(*rest)
    every = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    return next((str(path) for path in every if path.is_file()), None)
