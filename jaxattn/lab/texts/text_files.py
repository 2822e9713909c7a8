"""Encodings of text files provided by users, and one-line errors for unreadable files."""

import codecs
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from encodings import cp1252
from typing import Any

from jaxattn.core.errors import InputError, first_line

_UNREADABLE = (OSError, ValueError, RuntimeError, csv.Error)


@contextmanager
def reading(where: str, remedy: str = "save it as UTF-8") -> Iterator[None]:
    """Inside the `with` block, convert library errors about unreadable data to one-line errors.

    `where` names the data in the message, and `remedy` is the advice for text in the wrong encoding.
    """
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise InputError(f"data: {where} is not {encoding} text ({error.reason}); {remedy}") from error
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno:
            fault, remedy = error.strerror, "check its path and permissions"
        else:
            fault, remedy = first_line(error), "check that the file is complete and valid"
        raise InputError(f"data: cannot read {where}: {fault}; {remedy}") from error


REMEDY = 'save it as UTF-8, or set its encoding, such as data.encoding = "cp1252" for files from Windows'
_LATIN_1 = "jaxattn_latin_1"
_UNDEFINED = "\ufffe"
_CHARACTERS = "".join(
    chr(byte) if character == _UNDEFINED else character
    for byte, character in enumerate(cp1252.decoding_table)
)


class _Latin1Decoder(codecs.IncrementalDecoder):
    def decode(self, data: Any, final: bool = False) -> str:
        return codecs.charmap_decode(data, self.errors, _CHARACTERS)[0]


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != _LATIN_1:
        return None
    return codecs.CodecInfo(
        cp1252.Codec().encode,
        lambda data, errors="strict": codecs.charmap_decode(data, errors, _CHARACTERS),
        incrementaldecoder=_Latin1Decoder,
        incrementalencoder=cp1252.IncrementalEncoder,
        name=_LATIN_1,
    )


codecs.register(_find_codec)
# Magic numbers of compressed files.
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh91AY&SY": "bzip2",
    b"PK\x03\x04": "zip",
}
# Codecs that would read a byte order mark as a character: the mark, and the codec that removes it.
_MARKED = {
    "utf-16-le": (codecs.BOM_UTF16_LE, "utf-16"),
    "utf-16-be": (codecs.BOM_UTF16_BE, "utf-16"),
    "utf-32-le": (codecs.BOM_UTF32_LE, "utf-32"),
    "utf-32-be": (codecs.BOM_UTF32_BE, "utf-32"),
}


def refuse_compressed(path: str) -> None:
    """Raise InputError if a file is compressed; some encodings would accept its bytes as text."""
    with open(path, "rb") as file:
        start = file.read(10)
    for first, name in _COMPRESSED.items():
        if start.startswith(first):
            raise InputError(f"data: {path} is compressed with {name}; decompress it first")


def codec(encoding: str | None) -> str:
    """Return Python's name for an encoding. None means UTF-8 with or without a byte order mark.

    Latin-1 is read as Windows-1252, as in browsers. The two differ only in control characters, and the five
    bytes that Windows-1252 leaves undefined are those control characters.

    Raises:
        InputError: the encoding is unknown.
    """
    try:
        " ".encode(encoding or "utf-8")
        name = codecs.lookup(encoding or "utf-8").name
    except (LookupError, ValueError):
        raise InputError(
            f'encoding: unknown encoding {encoding!r:.40}; use a Python codec, such as "cp1252"'
        ) from None
    return {"utf-8": "utf-8-sig", "iso8859-1": _LATIN_1}.get(name, name)


@contextmanager
def decoding(path: str, encoding: str | None) -> Iterator[str]:
    """Yield the codec of a file (see `codec`). In the `with` block, decoding errors become one-line errors.

    Raises:
        InputError: the file cannot be read, or has a different encoding. The message contains the first
            invalid line, the number of invalid lines and a remedy.
    """
    name = codec(encoding)
    with reading(path, REMEDY):
        refuse_compressed(path)
        name = _without_mark(path, name)
        try:
            yield name
        except UnicodeDecodeError:
            # UnicodeDecodeError has no line number and, for a file read in chunks, no byte position in the
            # file.
            if message := _undecodable(path, name):
                raise InputError(message) from None
            raise


def _without_mark(path: str, name: str) -> str:
    """Return a codec that removes the byte order mark of a file, if it has one."""
    mark, without = _MARKED.get(name, (b"", ""))
    if not mark:
        return name
    with open(path, "rb") as file:
        return without if file.read(len(mark)) == mark else name


def _undecodable(path: str, name: str) -> str:
    """Describe the invalid lines in a file, or return "" if these lines cannot be determined."""
    if "\n".encode(name) != b"\n" and name != "utf-8-sig":
        return ""
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return f'data: {path} is UTF-16 text; set data.encoding = "utf-16", or save it as UTF-8'
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
    total = f"{len(wrong):,} of {number:,} lines are not"
    message = f"data: line {first} of {path} is not {encoding} text ({reason}); {total}"
    if name == "utf-8-sig" and 2 * len(wrong) < beyond_ascii:
        good = f"{beyond_ascii - len(wrong):,} lines with characters beyond ASCII are"
        return f"{message}, but {good}: it mixes encodings, so save the invalid lines as UTF-8"
    return f"{message}; {REMEDY}"
