"""Published reports and pages of books as pages of the site.

The files of `results/published` are copied into the site. Sphinx renders one page with the theme, and every
HTML file is placed in it: the navigation, the search and the colours are those of the site.
"""

import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
PUBLISHED = DOCS.parent / "results" / "published"
FRAME = "published/frame/page"
TITLE, BODY = "published-title", "published-body"
LIST = "reference/published"
# In a results folder there is no site, so the pages of books only have a comment for the link to it.
WAY_BACK = "<!-- site -->"
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
MADE_BY = re.compile(r"<dt>made by</dt><dd>jaxattn ([\d.]+)|jaxattn ([\d.]+\d)(?=[,<])")


def scoped(style: str) -> str:
    """Return the style of a page so that it applies within the element `.published` only.

    Colours that depend on the dark mode of the system follow that of the site: `site.css` defines the same
    variables. The rules for the page itself, `:root`, `html` and `body`, are left out.
    """
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    style = re.sub(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{[^}]*\}\s*\}", "", style)
    style = re.sub(r"@page \{[^}]*\}", "", style)
    style = re.sub(r"(?m)^(\s*)(?::root|html|body|\*) \{[^}]*\}", r"\1", style)
    return f".published {{\n{style.strip()}\n}}"


def version(page: str) -> str:
    """Return the version of jaxattn that made a page; "" if the page does not state it."""
    found = MADE_BY.search(page)
    return (found[1] or found[2]) if found else ""


def framed(frame: str, page: str, current: str) -> str:
    """Return a published page within the theme of the site.

    Args:
        frame: page of the theme with the placeholders `TITLE` and `BODY`.
        page: the published page, a complete HTML file.
        current: version of the site.

    Raises:
        ValueError: the page has no title or no body.
    """
    title = re.search(r"<title>(.*?)</title>", page, re.DOTALL)
    body = re.search(r"<body[^>]*>(.*)</body>", page, re.DOTALL)
    if not title or not body:
        raise ValueError("a published page needs a title and a body")
    styles = "".join(f"<style>{scoped(style)}</style>" for style in STYLE.findall(page[: body.start()]))
    made = version(page)
    note = ""
    if made and made != current:
        note = (
            f'<p class="older">These results were computed with jaxattn {html.escape(made)}; this site '
            f"describes version {html.escape(current)}.</p>"
        )
    content = body[1].replace(WAY_BACK, f'<a href="../../{LIST}.html">Published results</a>')
    # The page of the site has its own main landmark.
    content = re.sub(r"<(/?)main>", r"<\1div>", content)
    name = title[1].removesuffix(" – jaxattn")
    return frame.replace(BODY, f'{styles}{note}<div class="published">{content}</div>').replace(TITLE, name)


def _frame(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    parents = [
        {"title": app.env.titles[name].astext(), "link": app.builder.get_relative_uri(FRAME, name)}
        for name in ("reference/index", LIST)
    ]
    context = {"title": TITLE, "pagetitle": TITLE, "body": BODY, "parents": parents, "meta": {}}
    yield FRAME, context, "page.html"


def _place(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    frame = (out / f"{FRAME}.html").read_text(encoding="utf-8")
    shutil.rmtree(out / Path(FRAME).parent)
    shutil.copytree(PUBLISHED, out / "published", dirs_exist_ok=True)
    for path in sorted((out / "published").glob("*/*.html")):
        page = path.read_text(encoding="utf-8")
        if not page.startswith("<!DOCTYPE"):
            continue  # an element of another page
        path.write_text(framed(frame, page, app.config.version), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Copy published results into the site, and place their HTML files in its theme."""
    app.connect("html-collect-pages", _frame)
    # After the step that removes what the pages do not use, so that it applies to the frame.
    app.connect("build-finished", _place, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
