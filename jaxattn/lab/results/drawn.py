"""Figures with captions, either newly drawn or read from a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class RenderedFigure:
    """Figure with a caption.

    Attributes:
        name: file name without suffix.
        title: short heading in plain text.
        caption: one or two sentences in plain text.
        figure: a matplotlib Figure.
        number: index of the figure in the sweep file; None if it is not listed there.
    """

    name: str
    title: str
    caption: str
    figure: Any
    number: int | None = None

    def svg(self) -> bytes:
        """Render a deterministic SVG image: the same figure always yields the same bytes."""
        from jaxattn.lab.results import style  # imports matplotlib, which captions do not need

        return style.svg(self.figure)

    def png(self) -> bytes:
        """Render a deterministic PNG image, at twice the resolution of a screen."""
        from jaxattn.lab.results import style

        return style.png(self.figure)

    def pdf(self) -> bytes:
        """Render a deterministic PDF file with embedded fonts."""
        from jaxattn.lab.results import style

        return style.pdf(self.figure)

    def _repr_png_(self) -> bytes:
        return self.png()


@dataclass(frozen=True)
class Picture:
    """Figure drawn by an earlier report, with its caption.

    Attributes:
        name, title, caption, number: see `RenderedFigure`.
        content: contents of the SVG file.
    """

    name: str
    title: str
    caption: str
    content: bytes
    number: int | None = None

    def svg(self) -> bytes:
        """Return the contents of the SVG file."""
        return self.content
