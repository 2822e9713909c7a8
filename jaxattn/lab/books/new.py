"""Template for new items: a folder with runnable files, and with questions for the author to answer."""

import os
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

from jaxattn.core.errors import InputError, writing
from jaxattn.lab.books.book import read_book

TEMPLATE = Path(__file__).parent / "template"
_BOOK = 'title = "{0}"\nintroduction = "Results of papers, reproduced with seeds and intervals."\n'


def create(book: str | Path, name: str) -> list[Path]:
    """Write the files for a new item, and book.toml if the book is new or lists its items.

    The item can be run as written: it compares the first gradient step of attention with its closed form.

    Args:
        book: name or folder of the book; see `read_book`. If it contains a path separator, the folder may
            be new or empty.
        name: name of the item, consisting of lower-case letters, digits and underscores.

    Returns:
        The paths of the files.

    Raises:
        InputError: the book does not exist, or the name is taken or malformed.
        RunError: a file cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InputError(
            f"--new {name}: use only lower-case letters, digits and underscores, for example two_steps"
        )
    if find_spec(name):
        raise InputError(f"--new {name}: a Python module has this name; choose another name")
    contents: dict[Path, str] = {}
    if os.sep in str(book) and not _has_files(Path(book)):
        folder = Path(book)
        contents[folder / "book.toml"] = _BOOK.format(folder.name.replace("_", " ").capitalize())
    else:
        folder = _open_book(book, name)
        if (parts := read_book(book).words.parts) and name not in [x for part in parts for x in part.items]:
            words = (folder / "book.toml").read_text(encoding="utf-8").rstrip("\n")
            part = f'[[parts]]\ntitle = "New"\nitems = ["{name}"]\n'
            contents[folder / "book.toml"] = f"{words}\n\n{part}"
    location = f"sweeps/{folder.name}" if folder.parent.name == "sweeps" else folder.as_posix()
    for path in sorted(TEMPLATE.glob("*.*")):
        text = path.read_text(encoding="utf-8").replace("template", name)
        text = text.replace("BOOK", shlex.quote(location))
        contents[folder / name / path.name.replace("template", name)] = text
    with writing(folder, "choose another folder"):
        (folder / name).mkdir(parents=True)
        for path, text in contents.items():
            path.write_text(text, encoding="utf-8")
    return list(contents)


def _open_book(book: str | Path, name: str) -> Path:
    found = read_book(book)
    for path in (found.folder / name, found.folder / f"{name}.toml", found.folder / f"{name}.py"):
        if path.exists():
            raise InputError(f"--new {name}: {path} already exists; choose another name")
    folder = Path(book)
    return folder if (folder / "book.toml").is_file() else found.folder


def _has_files(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
