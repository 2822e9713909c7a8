"""Links of the pages to files of the project outside the site.

`results/published` is copied into the site (see `published`), and links refer to the copies. Any other file
of the project is offered for download. A link to a folder, or to a file that does not exist, fails the build.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import jaxattn

DOCS = Path(__file__).parents[1]
PUBLISHED = DOCS.parent / "results" / "published"
# The words of a link may contain code, which may contain brackets.
LINK = re.compile(r"(!?)\[((?:`[^`\n]*`|[^\]\n`])*)\]\(((?!https?:|#)[^)#\s]+)(#[^)\s]*)?\)")


def rewritten(link: re.Match[str], folder: Path, page: Path) -> str:
    """Return a link or an image of a page, rewritten for the site.

    Args:
        link: the match of LINK.
        folder: the folder to which the links of the page are relative.
        page: path of the page in docs/.

    Raises:
        ValueError: the link leads to no file.
    """
    image, words, target, place = link.groups()
    path = (folder / target).resolve()
    if not path.is_file():
        raise ValueError(f"{page.relative_to(DOCS)}: [{words}]({target}) leads to no file; link to a file")
    if path.suffix == ".ipynb":
        path = DOCS / path.relative_to(DOCS.parent)  # conf.py copies the notebooks
    if not image and PUBLISHED in path.parents:
        return _anchor(DOCS / "published" / path.relative_to(PUBLISHED), words, place, page)
    here = os.path.relpath(path, page.parent)
    if image:
        width = f"{{width={_pixels(path) // 2}px}}" if path.suffix == ".png" else ""
        return f"![{words}]({here}){width}"
    if DOCS in path.parents or path.suffix != ".md":
        return f"[{words}]({here}{place or ''})"
    return f"{{download}}`{words.replace('`', '')} <{here}>`"


def _pixels(path: Path) -> int:
    """Return the width of a PNG file in pixels; figures are displayed at half this width to appear sharp."""
    return int.from_bytes(path.read_bytes()[16:20])


def _anchor(path: Path, words: str, place: str | None, page: Path) -> str:
    href = os.path.relpath(path, page.parent)
    shown = re.sub("`([^`]*)`", r"<code>\1</code>", words)
    return f"<a href='{href}{place or ''}'>{shown}</a>"


def with_address(text: str, url: str) -> str:
    """Return a page with the address of the repository in its commands, unless there is none yet."""
    return text.replace("git clone URL", f"git clone {url}") if url else text


def _read(app: Any, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"
    if page.exists():
        source[0] = with_address(_page(source[0], page.parent, page), jaxattn.__url__)
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _page("".join(cell["source"]), DOCS.parent / "notebooks", DOCS / f"{name}.ipynb")
    source[0] = json.dumps(notebook)


def _page(text: str, folder: Path, page: Path) -> str:
    """Rewrite all links of a text. A link without a target causes a warning, which fails the build."""

    def link(found: re.Match[str]) -> str:
        try:
            return rewritten(found, folder, page)
        except ValueError as error:
            from sphinx.util import logging  # the tests of this file run without Sphinx

            logging.getLogger(__name__).warning(str(error))
            return found.group()

    return LINK.sub(link, text)


def setup(app: Any) -> dict[str, bool]:
    """Rewrite pages when they are read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
