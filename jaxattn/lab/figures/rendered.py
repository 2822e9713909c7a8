"""Figures with captions, either newly drawn or read from a file."""

from dataclasses import dataclass
from typing import Any


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
        from jaxattn.lab.figures import style  # imports matplotlib, which captions do not need

        return style.svg(self.figure)

    def png(self) -> bytes:
        """Render a deterministic PNG image, at twice the resolution of a screen."""
        from jaxattn.lab.figures import style

        return style.png(self.figure)

    def pdf(self) -> bytes:
        """Render a deterministic PDF file with embedded fonts."""
        from jaxattn.lab.figures import style

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
