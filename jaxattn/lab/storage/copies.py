"""Local copies of bucket folders: their paths, and bucket URLs in place of these paths in messages."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.storage import files
from jaxattn.lab.storage.objects import address_text, is_address


def root(role: str) -> Path:
    """Return the local folder that contains the copies for runs ("run") or for readers ("read")."""
    return Path(os.path.abspath(files.cache_folder() / "buckets" / role))


def local_path(location: str | Path, role: str = "read") -> Path:
    """Return the local path of a folder. A folder that is not in a bucket is returned unchanged."""
    if not is_address(location):
        return Path(location)
    return root(role) / address_text(location).replace("://", "/")


def address_of(folder: Path) -> str | None:
    """Return the bucket URL of a local copy, or None if the folder is not a local copy."""
    for role in ("run", "read"):
        if folder.is_relative_to(root(role)):
            return re.sub("/", "://", folder.relative_to(root(role)).as_posix(), count=1)
    return None


def renamed(text: str) -> str:
    """Replace the paths of local copies in a string with their bucket URLs."""
    bases = "|".join(re.escape(str(root(role))) for role in ("run", "read"))
    return re.sub(rf"(?:{bases})/(s3|gs)/", r"\1://", text)


@contextmanager
def naming() -> Iterator[None]:
    """Inside the `with` block, replace the paths of local copies in error messages with their bucket URLs."""
    try:
        yield
    except (InputError, RunError) as error:
        if (text := renamed(str(error))) == str(error):
            raise
        raise type(error)(text) from None
