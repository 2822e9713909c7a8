"""One-line messages about settings: what is wrong with which one, and what would be right."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any


def explain(
    message: str,
    place: str,
    values: Any,
    keys: list[str],
    choices: Mapping[str, list[str]],
    patterns: Mapping[str, str] = {},
    required: Iterable[str] = (),
) -> str:
    """Put msgspec's message key first and make it a remedy.

    Args:
        message: what msgspec says.
        place: where the settings stand in the sweep file.
        values: the settings; one that is out of its bounds is shown.
        keys: the right keys, of which an unknown one is told the nearest.
        choices: the right values of keys that have few.
        patterns: patterns in words, by key.
        required: the keys that there must be; all that are missing are told at once.

    Returns:
        The message.
    """
    text, _, inner = message.partition(" - at `$")
    inner = inner.rstrip("`").lstrip(".")
    text = text.replace("Object contains unknown field", "unknown key").replace("`", "'")
    text = text.replace("Object missing required field", "missing key")
    missing = [key for key in required if key not in values]
    if text.startswith("missing key") and not inner and len(missing) > 1:
        text = f"missing keys {', '.join(map(repr, missing))}"
    text = text[:1].lower() + text[1:]
    if "matching regex" in text:
        text = patterns.get(inner, text)
    elif unknown := re.fullmatch(r"unknown key '(.*)'", text):
        text += nearest(unknown[1], keys)
    elif value := re.fullmatch(r"invalid (?:value|enum value) '(.*)'", text):
        text += nearest(value[1], choices.get(inner, []))
    elif re.fullmatch(r"expected '\w+' (of length )?[<>=]+ \S+", text):
        text += _given(values, inner)
    where = ".".join(part for part in (place, inner) if part)
    return f"{where}: {text}" if where else text


def nearest(given: str, known: Iterable[str]) -> str:
    """Suggest the nearest right name, or list all."""
    known = list(known)
    near = difflib.get_close_matches(given, known, 1, cutoff=0.4)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}" if known else ""


def counted(number: int, word: str) -> str:
    """Write how many there are of something: "1 cell", "2 batches"."""
    return f"{number} {word if number == 1 else word + ('es' if word.endswith('ch') else 's')}"


def _given(values: Any, inner: str) -> str:
    """Show the value at a path such as "axes[...]" or "labels[0]", if it tells which one that is."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", inner):
        if number == "...":
            return ""
        values = values[int(number)] if number else values[name]
    return f", got {values!r:.60}"
