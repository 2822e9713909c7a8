"""Self-contained pages with sentences, figures and tables, for measurements made outside a study."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from jaxattn.core.errors import writing
from jaxattn.lab.results import layout
from jaxattn.lab.results.drawn import RenderedFigure

_TEMPLATE = Path(__file__).with_name("summary.html")


def summary_page(
    title: str,
    heading: str,
    lines: Sequence[str],
    figures: Sequence[RenderedFigure],
    tables: Sequence[tuple[str, pd.DataFrame, int]],
    note: str,
    *,
    toned: bool = False,
) -> str:
    """Return a self-contained HTML page.

    Args:
        title: title of the document.
        heading: heading of the page.
        lines: sentences below the heading.
        figures: figures with captions.
        tables: for each table, (title, table, number of leading columns that identify a row).
        note: paragraph at the end.
        toned: True to colour each sentence by its verdict.
    """
    images = [x.png() for x in figures]
    pictures = [
        {"title": x.title, "caption": x.caption, "width": layout.shown_width(image), "data": image}
        for x, image in zip(figures, images, strict=True)
    ]
    shown = [(name, layout.texts(table), keys) for name, table, keys in tables]
    content = {"lines": lines, "figures": pictures, "tables": shown, "note": note}
    return layout.fill(_TEMPLATE, title=title, heading=heading, toned=toned, **content)


def framed(title: str, page: str) -> str:
    """Wrap a page in an iframe, which isolates its style, for display in a notebook."""
    return (
        f'<iframe title="{title}" srcdoc="{escape(page)}" style="width:100%;height:60rem;border:0"></iframe>'
    )


def write_contents(directory: str | Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files to a folder, which is created if it does not exist; return their paths.

    Raises:
        RunError: the folder cannot be written.
    """
    directory = Path(directory)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_bytes(content)
    return [directory / name for name in contents]
