"""Figures with their words: as drawn now, or as a file that was drawn before."""

from dataclasses import dataclass
from typing import Any


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
        from jaxattn.results import style  # imports matplotlib, which words do not need

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

    def _repr_png_(self) -> bytes:
        return self.content
