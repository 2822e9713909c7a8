"""Figures with their words: as drawn now, or as a file that was drawn before."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jaxattn.core.settings import Count
from jaxattn.lab.storage import files
from jaxattn.lab.storage.files import Damaged

# Checksums of all files of the report; and words of the figures that the user's own functions drew, for
# whoever draws it without them.
DRAWN = "figures/drawn.json"


class OwnWords(msgspec.Struct, frozen=True):
    """The words of a figure of the user's own, and its place among the figures of the sweep file."""

    index: Count
    name: str
    title: str
    caption: str


class Words(msgspec.Struct, frozen=True):
    """What `DRAWN` holds; the names of files start from the results folder."""

    sha256: dict[str, str]
    own: tuple[OwnWords, ...] = ()


def read_words(directory: Path) -> Words:
    """Read what a report left of itself.

    Raises:
        Damaged: it is missing, or not what was written.
        InputError: it cannot be read.
    """
    path = directory / DRAWN
    try:
        return msgspec.convert(files.read_sealed(path, directory), Words)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Damaged(f"{path}: damaged ({error})") from None


@dataclass(frozen=True)
class Drawn:
    """A figure with its words.

    Attributes:
        name: file name without a suffix.
        title: a short heading, plain text.
        caption: one or two sentences that say what is shown, plain text.
        figure: a matplotlib Figure.
        number: its place among the figures of the sweep file, if it was drawn for one.
    """

    name: str
    title: str
    caption: str
    figure: Any
    number: int | None = None

    def png(self) -> bytes:
        """Render as PNG; the same figure gives the same bytes."""
        from jaxattn.lab.results import style  # imports matplotlib, which words do not need

        return style.png(self.figure)

    def _repr_png_(self) -> bytes:
        return self.png()


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn before, with its words.

    Attributes:
        name, title, caption, number: as in `Drawn`.
        content: the PNG file.
    """

    name: str
    title: str
    caption: str
    content: bytes
    number: int | None = None

    def png(self) -> bytes:
        """Return the PNG file."""
        return self.content
