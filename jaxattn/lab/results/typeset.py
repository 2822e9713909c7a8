"""Typesetting of text on pages: minus signs, line breaks and code."""

import re

from markupsafe import Markup, escape

NO_BREAK, MINUS, DASH = "\N{NO-BREAK SPACE}", "\N{MINUS SIGN}", "\N{EN DASH}"
_NUMBER = r"[-−]?(?:\d[\d.,]*(?:e[-−]?\d+)?|∞)"
# Matches signs (-1, -α), differences (1 - cos) and exponents (2e-5), but not hyphens (max-margin, Figures
# 1-3).
_SIGNS = re.compile(r"(?<![\w.)\]}\"'`/⟩‖|-])-(?=[\d.]|[^\W\d_]|[∞½(‖])|(?<=\S )-(?= \S)|(?<=\de)-(?=\d)")
# Strings that must stay on one line: intervals, tolerances, bounds, short settings, and numbers with units.
_TOGETHER = (
    re.compile(rf"\[{_NUMBER}, {_NUMBER}\]"),
    re.compile(rf"{_NUMBER} ± {_NUMBER}"),
    re.compile(rf"[≤≥<>~≈] {_NUMBER}"),
    re.compile(rf"(?<![\w.])(?:‖\w‖|\w{{1,12}}) = {_NUMBER}"),
    re.compile(rf"{_NUMBER} (?:%|s|ms|min|h|GiB|MiB|GB|seeds?)(?!\w)"),
)
# Allow line breaks in names after underscores and dots, but never in numbers.
BREAK = re.compile(r"(?<=\w\w_)(?=\w\w)|(?<=[A-Za-z]\.)(?=[A-Za-z])")


def typeset(text: str) -> str:
    """Insert minus signs in formulas, and no-break spaces in intervals and between numbers and units.

    A lone hyphen, which marks an empty table cell, becomes a dash.
    """
    if text == "-":
        return DASH
    text = _SIGNS.sub(MINUS, text)
    for pattern in _TOGETHER:
        text = pattern.sub(lambda found: found[0].replace(" ", NO_BREAK), text)
    return text


def breakable(text: str) -> Markup:
    """Convert typeset text to HTML in which long names can be broken after underscores and dots."""
    return Markup("<wbr>").join(map(escape, BREAK.split(typeset(text))))


def coded(text: str) -> Markup:
    """Convert text to HTML. Code in backticks is formatted as code, and the rest is typeset."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(typeset(part))
        for number, part in enumerate(parts)
    )


def marked(text: str) -> str:
    """Convert text to Markdown. Code in backticks is unchanged, and the rest is typeset."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return "`".join(part if number % 2 else typeset(part) for number, part in enumerate(parts))
