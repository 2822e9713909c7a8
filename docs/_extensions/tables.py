"""Tables that become cards on a phone: each cell knows the heading of its column.

A table of three or more columns gets the class `cards` and its headings as the CSS variables --h1, --h2, ...;
`site.css` shows them in front of the cells when the table is too narrow for its columns.
"""

import html
import json
import re
from typing import Any

FEWEST = 3
HEAD = re.compile(
    r'<table class="([^"]*)">\s*((?:<colgroup>.*?</colgroup>\s*)?<thead>.*?</thead>)', re.DOTALL
)
CELL = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def with_headings(page: str) -> str:
    """Return HTML with the headings of wide tables as CSS variables."""

    def table(found: re.Match[str]) -> str:
        headings = [html.unescape(TAG.sub("", cell)).strip() for cell in CELL.findall(found[2])]
        if len(headings) < FEWEST:
            return found[0]
        variables = ";".join(
            f"--h{number}:{json.dumps(heading, ensure_ascii=False)}"
            for number, heading in enumerate(headings, 1)
        )
        return f'<table class="{found[1]} cards" style="{html.escape(variables)}">{found[2]}'

    return HEAD.sub(table, page)


def _context(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = with_headings(context["body"])


def setup(app: Any) -> dict[str, bool]:
    """Add headings to the tables of every page."""
    app.connect("html-page-context", _context)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
