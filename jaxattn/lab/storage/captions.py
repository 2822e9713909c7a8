"""Checksums of the files of a report, and captions of its user-defined figures."""

from pathlib import Path

import msgspec

from jaxattn.core.settings import Count
from jaxattn.lab.storage import files
from jaxattn.lab.storage.files import Damaged

# File with the checksums of all report files and the captions of user-defined figures. It allows the page to
# be rewritten without the user's functions.
DRAWN = "figures/drawn.json"


class CustomCaption(msgspec.Struct, frozen=True):
    """Caption of a user-defined figure, with the index of the figure in the sweep file."""

    index: Count
    name: str
    title: str
    caption: str


class StoredCaptions(msgspec.Struct, frozen=True):
    """Contents of the file named by `DRAWN`. The file names in it are relative to the results folder."""

    sha256: dict[str, str]
    own: tuple[CustomCaption, ...] = ()


def read_captions(directory: Path) -> StoredCaptions:
    """Read the captions and checksums stored by an earlier report.

    Raises:
        Damaged: the file is missing or has been changed.
        InputError: the file cannot be read.
    """
    path = directory / DRAWN
    try:
        return msgspec.convert(files.read_sealed(path, directory), StoredCaptions)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Damaged(f"{path}: damaged ({error})") from None
