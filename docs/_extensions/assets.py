"""Remove what the theme ships and the pages do not need: the script of all icons, and source maps.

The script fontawesome.js is 1.5 MB. Without it, the style of the theme takes the same icons from a font of
115 kB.
"""

import re
from pathlib import Path
from typing import Any

SCRIPT = re.compile(r'<script defer src="[^"]*scripts/fontawesome\.js[^"]*"></script>\n?')


def without_icon_script(page: str) -> str:
    """Return a page without the script of all icons.

    Raises:
        ValueError: the page does not load the script.
    """
    made, count = SCRIPT.subn("", page)
    if not count:
        raise ValueError("the theme no longer loads fontawesome.js; remove the extension `assets`")
    return made


def _remove(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for path in out.rglob("*.html"):
        if out / "published" not in path.parents or path.parent.name == "frame":
            page = path.read_text(encoding="utf-8")
            if "_static/scripts" in page and SCRIPT.search(page):
                path.write_text(without_icon_script(page), encoding="utf-8")
    scripts = out / "_static" / "scripts"
    (scripts / "fontawesome.js").unlink(missing_ok=True)
    for path in (out / "_static").rglob("*.map"):
        path.unlink()


def setup(app: Any) -> dict[str, bool]:
    """Remove the files when the site is built."""
    app.connect("build-finished", _remove, priority=800)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
