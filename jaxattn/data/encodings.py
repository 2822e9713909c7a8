"""Files of users: their encodings, and what is wrong with one in a line that says what to do."""

import codecs
import csv
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jaxattn.core.errors import InputError

_UNREADABLE = (OSError, ValueError, RuntimeError, csv.Error)


def listed(names: Iterable[str]) -> str:
    """Join names with commas in one line, the first twenty of them."""
    first = [f"{name:.40}" for name in itertools.islice(names, 21)]
    first[20:] = ["..."] * len(first[20:])
    return " ".join(", ".join(first).split()) or "none"


def first_line(error: Exception) -> str:
    """First line of a library's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(" .:")


@contextmanager
def reading(where: str, remedy: str = "save it as UTF-8") -> Iterator[None]:
    """Turn what libraries raise over unreadable data into one line, with a remedy for another encoding."""
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise InputError(f"data: {where} is not {encoding} text ({error.reason}); {remedy}") from error
    except _UNREADABLE as error:
        raise InputError(
            f"data: cannot read {where}: {first_line(error)}; is it whole, and what it should be?"
        ) from error


REMEDY = 'save it as UTF-8, or name its encoding, such as data.encoding = "latin-1"'


def codec(encoding: str | None) -> str:
    """Return Python's name of an encoding: UTF-8 with or without a byte order mark if it is None.

    Raises:
        InputError: Python does not know it.
    """
    try:
        " ".encode(encoding or "utf-8")
        name = codecs.lookup(encoding or "utf-8").name
    except (LookupError, ValueError):
        raise InputError(f'encoding: {encoding!r:.40} is not known; name one such as "latin-1"') from None
    return "utf-8-sig" if name == "utf-8" else name


@contextmanager
def decoding(path: str, encoding: str | None) -> Iterator[str]:
    """Give the codec to read a file with, and turn what is raised over its bytes into one line.

    Args:
        path: the file.
        encoding: the setting; see `codec`.

    Yields:
        Python's name of the encoding.

    Raises:
        InputError: the file cannot be read, or is in another encoding: names the first such line and how many
            there are, and how to mend them.
    """
    name = codec(encoding)
    with reading(path, REMEDY):
        try:
            yield name
        except UnicodeDecodeError:
            # The error knows neither the line nor, of a file that is read in parts, the byte.
            if said := _undecodable(path, name):
                raise InputError(said) from None
            raise


def _undecodable(path: str, name: str) -> str:
    """Say which lines of a file are not in an encoding; nothing where bytes do not tell lines apart."""
    if "\n".encode(name) != b"\n" and name != "utf-8-sig":
        return ""
    wrong: list[tuple[int, str]] = []
    number = beyond_ascii = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            beyond_ascii += not line.isascii()
            try:
                line.decode(name)
            except UnicodeDecodeError as error:
                wrong.append((number, error.reason))
    if not wrong:
        return ""
    (first, reason), encoding = wrong[0], name.removesuffix("-sig").upper()
    said = f"data: line {first} of {path} is not {encoding} text ({reason}), as {len(wrong):,} of {number:,}"
    if name == "utf-8-sig" and 2 * len(wrong) < beyond_ascii:
        good = f"{beyond_ascii - len(wrong):,} with other letters than those of ASCII are"
        return f"{said} are not; {good}: it mixes encodings, so save those that are not as UTF-8"
    return f"{said} are not; {REMEDY}"
