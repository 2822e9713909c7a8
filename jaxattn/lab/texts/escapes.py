r"""Escaped line breaks: decide whether a backslash followed by n is a line break in the texts."""

import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from jaxattn.lab.texts.words import tokenise

_ESCAPE = re.compile(r"\\[A-Za-z]")
# Characters in front of a word that follows a backslash and n. They cannot occur in words.
_EITHER, _BREAK = "\n", "\r"


def has_escaped_breaks(text: str) -> bool:
    r"""Return True if a text may encode line breaks as a backslash followed by n.

    Most backslashes before letters must precede an n: "the C:\Users\new folder" has no line break.
    """
    breaks = text.count("\\n")
    return breaks > 0 and 2 * breaks > len(_ESCAPE.findall(text))


def tokenise_escaped(text: str) -> list[str]:
    r"""Split a text into words, and mark each word that follows a backslash and n; see `readings`.

    A mark shows whether this is a line break for certain, as after a full stop or before a capital letter.
    """
    before, *others = text.split("\\n")
    words = tokenise(before)
    for part in others:
        is_break = not part[:1].islower() or before.endswith((".", "!", "?"))
        mark = _BREAK if is_break else _EITHER
        first, *rest = tokenise(part) if part[:1].isalnum() else ["", *tokenise(part)]
        words += [f"{mark}{first}", *rest]
        before = part
    return words


def readings(words: defaultdict[str, int], counts: np.ndarray) -> tuple[np.ndarray, bool]:
    r"""Return the reading of all marked words, and whether backslash and n is a line break in these texts.

    It is a line break if more of the marked words are words of the texts without a leading n than with it:
    "fine\nbut" is "fine but", because "but" occurs more often than "nbut", whereas "as\new" is "as new".

    Args:
        words: number of each word; the words without marks are added.
        counts: number of occurrences of each word in the training split.

    Returns:
        The number of the word as which each word is read, which is the word itself unless it has a mark, and
        -1 for a line break that no word follows; and True if the marks are line breaks.
    """
    marked = [(word, number) for word, number in words.items() if word[0] in (_EITHER, _BREAK)]
    is_break = sum(_vote(word, words, counts) * int(counts[number]) for word, number in marked) > 0
    found = np.arange(len(words), dtype=np.int32)
    for word, number in marked:
        read = word[1:] if is_break else f"n{word[1:]}"
        found[number] = words[read] if read else -1
    return found, is_break


def _vote(word: str, words: Mapping[str, int], counts: np.ndarray) -> int:
    """Return 1 if a marked word is evidence for a line break, -1 if it is evidence against it, and else 0."""
    if word[0] == _BREAK:
        return 1
    without, with_n = (counts[words[x]] if x in words else 0 for x in (word[1:], f"n{word[1:]}"))
    return int(np.sign(int(without) - int(with_n)))
