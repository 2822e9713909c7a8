"""Errors of a user: one line that names the place and the remedy, also of what msgspec says."""

import difflib
import itertools
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def plain(text: str) -> str:
    """Return a text as one printable line: line breaks, and what a terminal would obey, are written out.

    Everything that is printed passes through here, as users and folders give names with any characters.
    """
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


class _OneLine(Exception):
    def __str__(self) -> str:
        return plain(super().__str__())


class InputError(_OneLine, ValueError):
    """Something the user gave is wrong: a key, a value, a file. Exit status 2."""


class RunError(_OneLine, RuntimeError):
    """Something failed while running: a full disk, a folder in the way, NaN everywhere. Exit status 1."""


class UserCodeError(RunError):
    """Code of the user's own raised an exception, which is the cause of this error."""

    def __init__(self, message: str, files: frozenset[str] = frozenset()) -> None:
        """Say where; `files` are the source files of the user's code."""
        super().__init__(message)
        self.files = files

    def below(self, place: str) -> "UserCodeError":
        """Return the same error with its place in front, to be raised from the same cause."""
        return UserCodeError(f"{place}: {self}", self.files)

    @property
    def trace(self) -> str:
        """The user's own traceback: from the first frame in their code on."""
        cause = self.__cause__
        if cause is None:
            return ""
        every = traceback.extract_tb(cause.__traceback__)
        # A syntax error has no frame of the user's, but its own lines.
        frames = [frame for frame in every if not frame.filename.startswith("<frozen ")]
        own = [frame for frame in frames if frame.filename in self.files]
        if not (own or isinstance(cause, SyntaxError)):
            own = frames[-1:]
        lines = ["Traceback (in your code):\n", *traceback.format_list(own)]
        said = traceback.format_exception_only(cause)
        # JAX writes pages on where a traced array comes from.
        return "".join([*lines, *(said[:1] if remedy(cause) else said)]).partition("\nThe error occurred")[0]


# What to write instead where JAX cannot trace code, by its exception.
_REMEDIES = {
    "TracerArrayConversionError": "use jax.numpy in place of numpy",
    "TracerBoolConversionError": "use jax.numpy.where in place of if",
    "ConcretizationTypeError": "give it a value that is known before the program is compiled",
    "TracerIntegerConversionError": "give it a value that is known before the program is compiled",
}


def remedy(error: BaseException) -> str:
    """Return how to fix an exception of JAX in traced code, or a misspelt setting, after a semicolon."""
    if misspelt := re.fullmatch(r"Unexpected keyword argument ('\w+')", str(error)):
        return f"; there is no setting {misspelt[1]}, check its spelling"
    words = _REMEDIES.get(type(error).__name__)
    return f"; {words}" if words else ""


def in_user_code(error: BaseException, files: frozenset[str], place: str) -> UserCodeError | None:
    """Tell whether an exception comes from code of the user's; if so, return it with its place."""
    own = [step for step in traceback.walk_tb(error.__traceback__) if step[0].f_code.co_filename in files]
    if not own or isinstance(error, InputError | RunError):
        return None
    frame, number = own[-1]
    code = frame.f_code
    line = f"{type(error).__name__} in {code.co_name}, line {number} of {code.co_filename}{remedy(error)}"
    found = UserCodeError(f"{place}: {line}" if place else line, files)
    found.__cause__ = error
    return found


@contextmanager
def from_user_code(files: frozenset[str], place: str) -> Iterator[None]:
    """Raise what comes from code of the user's as `in_user_code` says it, and all else as it is."""
    try:
        yield
    except Exception as error:
        if found := in_user_code(error, files, place):
            raise found from error
        raise


@contextmanager
def writing(place: object, remedy: str = "") -> Iterator[None]:
    """Raise RunError for what cannot be written, with its place and a remedy."""
    try:
        yield
    except OSError as error:
        reason = f"{place}: cannot be written: {error.strerror or error}"
        raise RunError(f"{reason}; {remedy}" if remedy else reason) from None


def shown(value: object) -> str:
    """Write what something is in a message: type and shape of an array, the type of all else."""
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__  # type: ignore[attr-defined]


class at:
    """Prefix the message of any InputError or UserCodeError with the place it was found at."""

    def __init__(self, place: str) -> None:
        """Name the place."""
        self.place = place

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error again with its place."""
        if isinstance(error, InputError) and self.place:
            raise InputError(f"{self.place}: {error}") from None
        if isinstance(error, UserCodeError) and self.place:
            raise error.below(self.place) from error.__cause__


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
    misspelt = [key for key in values if key not in keys]
    if text.startswith("missing key") and not inner and len(missing) > 1:
        text = f"missing keys {', '.join(map(repr, missing))}"
    if missing and (near := difflib.get_close_matches(missing[0], misspelt, 1)) and not inner:
        text = f"unknown key '{near[0]}'; did you mean '{missing[0]}'?"
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


def listed(names: Iterable[str]) -> str:
    """Join names with commas in one line, the first twenty of them."""
    first = [f"{name:.40}" for name in itertools.islice(names, 21)]
    first[20:] = ["..."] * len(first[20:])
    return " ".join(", ".join(first).split()) or "none"


def first_line(error: Exception) -> str:
    """First line of a library's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(" .:")
