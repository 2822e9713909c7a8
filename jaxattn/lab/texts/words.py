"""Tokeniser: words of a text, and detection of texts without spaces between words."""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

import numpy as np

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BREAK = re.compile(r"<br\s*/?>")
# Invisible characters that do not end a word: soft hyphens, word joiners and direction marks.
_INVISIBLE = re.compile("[\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069]")
# Code points that may require normalisation; Western European letters and punctuation do not.
_FAR = re.compile(
    "[\\u00ad\\u0300-\\u1fff\\u200c-\\u200f\\u202a-\\u202e\\u2060-\\u2069\\u20d0-\\u20ff\\u2c00-\\U0010ffff]"
)
# Zero-width joiner and non-joiner, which do not end a word.
_JOINERS = "\u200c\u200d"
# Scripts without spaces between words (Chinese and Japanese; Thai, Lao, Burmese and Khmer), and the average
# length of their words, in characters, that only unsegmented texts exceed.
_UNSPACED = (
    (re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"), 5),
    (re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"), 12),
)


def tokenise(text: str) -> list[str]:
    """Split a text into lower-case words that consist of letters, digits and inner apostrophes ("don't").

    `<br />` tags are removed. A combining mark belongs to the preceding letter. Words are normalised to
    Unicode NFC, so canonically equivalent texts yield equal words.
    """
    plain = _BREAK.sub(" ", text.lower().replace("’", "'"))
    if plain.isascii() or not _FAR.search(plain):
        return _WORD.findall(plain)
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFC", plain))
    return _word_with_marks().findall(visible.replace("_", " "))


@functools.cache
def _word_with_marks() -> re.Pattern[str]:
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(c for c in characters if unicodedata.category(c).startswith("M"))
    # Test the range first: this lookahead is faster than matching the set of all marks.
    part = rf"\w+(?:(?=[{marks[0]}-{marks[-1]}])[{marks}{_JOINERS}]+\w*)*"
    return re.compile(rf"{part}(?:'{part})*")


def unsegmented(words: Iterable[str], counts: np.ndarray) -> str:
    """Describe texts without spaces between words, or return "" if the texts have spaces.

    Args:
        words: distinct words, as returned by `tokenise`.
        counts: number of occurrences of each word.
    """
    foreign = [
        (word, number) for word, number in zip(words, counts.tolist(), strict=True) if not word.isascii()
    ]
    for letters, longest in _UNSPACED:
        found = [(len(word), number) for word, number in foreign if letters.search(word)]
        number = sum(number for _, number in found)
        characters = sum(length * number for length, number in found)
        # Ignore single names in texts of another language.
        if 10 * number > counts.sum() and characters > longest * number:
            return (
                f"data: {number:,} of {counts.sum():,} words are whole phrases of {characters / number:.0f} "
                "characters on average, because the texts have no spaces between words, as in Chinese, "
                "Japanese and Thai; segment the texts into words, separated by spaces"
            )
    return ""
