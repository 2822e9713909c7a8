"""Typesetting of page text: minus signs, line breaks and code."""

import re

from markupsafe import Markup, escape

NO_BREAK, MINUS, DASH = "\N{NO-BREAK SPACE}", "\N{MINUS SIGN}", "\N{EN DASH}"
_NUMBER = r"[-−]?(?:\d[\d.,]*(?:e[-−]?\d+)?|∞)"
# A sign (-1, -α), a difference (1 - cos) and an exponent (2e-5), but not a hyphen (max-margin, Figures 1-3).
_SIGNS = re.compile(r"(?<![\w.)\]}\"'`/⟩‖|-])-(?=[\d.]|[^\W\d_]|[∞½(‖])|(?<=\S )-(?= \S)|(?<=\de)-(?=\d)")
# Texts that must not be broken: intervals, tolerances, bounds, short settings, and numbers with units.
_TOGETHER = (
    re.compile(rf"\[{_NUMBER}, {_NUMBER}\]"),
    re.compile(rf"{_NUMBER} ± {_NUMBER}"),
    re.compile(rf"[≤≥<>~≈] {_NUMBER}"),
    re.compile(rf"(?<![\w.])(?:‖\w‖|\w{{1,12}}) = {_NUMBER}"),
    re.compile(rf"{_NUMBER} (?:%|s|ms|min|h|GiB|MiB|GB|seeds?)(?!\w)"),
)
# Names may be broken after underscores and dots, but numbers may not.
BREAK = re.compile(r"(?<=\w\w_)(?=\w\w)|(?<=[A-Za-z]\.)(?=[A-Za-z])")


def typeset(text: str) -> str:
    """Insert minus signs, and no-break spaces in intervals and in numbers with a unit.

    A single hyphen, which marks an empty table cell, becomes a dash.
    """
    if text == "-":
        return DASH
    text = _SIGNS.sub(MINUS, text)
    for pattern in _TOGETHER:
        text = pattern.sub(lambda found: found[0].replace(" ", NO_BREAK), text)
    return text


def breakable(text: str) -> Markup:
    """Convert typeset text to HTML in which long names may be broken after underscores and dots."""
    return Markup("<wbr>").join(map(escape, BREAK.split(typeset(text))))


def coded(text: str) -> Markup:
    """Convert text to HTML: code between backticks is kept, and other text is typeset."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(typeset(part))
        for number, part in enumerate(parts)
    )


def marked(text: str) -> str:
    """Convert text to Markdown: code between backticks is kept, and other text is typeset."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return "`".join(part if number % 2 else typeset(part) for number, part in enumerate(parts))
