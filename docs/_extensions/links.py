"""Links out of docs/ into the rest of the project.

On the site a page of results that is shown here too is linked to here, a file is offered for download, and a
folder is linked to where the project lives, once `jaxattn.__url__` says where that is.
"""

import os
import re
from pathlib import Path
from typing import Any

import jaxattn

DOCS = Path(__file__).parents[1]
PUBLISHED = DOCS.parent / "results" / "published"
SHOWN = {
    "results/published/claims/index.md": "reference/scoreboard.md",
    "results/published/paper/index.md": "reference/paper.md",
}
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(((?!https?:|#)[^)#\s]+)(#[^)\s]*)?\)")


def _link(found: re.Match[str], folder: Path, page: Path) -> str:
    """Write one link or image of a text that lies in a folder as it is on a page of the site."""
    image, words, target, place = found.groups()
    path = (folder / target).resolve()
    inside = path.relative_to(DOCS.parent).as_posix()
    if inside in SHOWN:
        path = DOCS / SHOWN[inside]
    elif path.suffix == ".ipynb":
        path = DOCS / inside  # the copy that conf.py makes
    here = os.path.relpath(path, page.parent)
    if PUBLISHED in path.parents and path.suffix == ".html":
        # conf.py puts the published pages, with their figures and numbers, at the top of the site.
        at = os.path.relpath(DOCS / path.relative_to(PUBLISHED), page.parent)
        return f'<a href="{at}{place or ""}">{words}</a>'
    if image or DOCS in path.parents or (path.is_file() and path.suffix != ".md"):
        return f"{image}[{words}]({here}{place or ''})"
    return f"[{words}]({jaxattn.__url__}/tree/main/{inside})" if jaxattn.__url__ else words


def _read(app: Any, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"
    if not page.exists():
        return  # a notebook
    shown = next((DOCS.parent / file for file, shown in SHOWN.items() if shown == f"{name}.md"), page)
    text = source[0] if shown == page else shown.read_text(encoding="utf-8")
    source[0] = LINK.sub(lambda found: _link(found, shown.parent, page), text)


def setup(app: Any) -> dict[str, bool]:
    """Rewrite pages as they are read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
