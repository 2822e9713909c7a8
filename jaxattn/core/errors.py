"""Error classes, and helpers for one-line error messages that state the location and the remedy."""

import difflib
import itertools
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def plain(text: str) -> str:
    """Escape line breaks and control characters, so that a string prints on one line.

    Apply this function to all output, because names from users and results folders may contain any
    character.
    """
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


class _OneLine(Exception):
    def __str__(self) -> str:
        return plain(super().__str__())


class InputError(_OneLine, ValueError):
    """Invalid user input, such as a key, a value or a file.

    The command line exits with status 2.
    """


class RunError(_OneLine, RuntimeError):
    """Failure at run time, such as a full disk or a seed that diverges to NaN.

    The command line exits with status 1.
    """


class UserCodeError(RunError):
    """Exception raised in the user's code. The original exception is its cause."""

    def __init__(self, message: str, files: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.files = files

    def below(self, location: str) -> "UserCodeError":
        """Return a copy of the error with a location prepended to its message. The cause is not copied."""
        return UserCodeError(f"{location}: {self}", self.files)

    @property
    def trace(self) -> str:
        """Formatted traceback of the frames in the user's code; "" if the error has no cause."""
        cause = self.__cause__
        if cause is None:
            return ""
        every = traceback.extract_tb(cause.__traceback__)
        # Drop the frames of importlib. A syntax error has no other frames, but its message shows the line.
        frames = [frame for frame in every if not frame.filename.startswith("<frozen ")]
        own = [frame for frame in frames if frame.filename in self.files]
        if not (own or isinstance(cause, SyntaxError)):
            own = frames[-1:]
        lines = ["Traceback (in your code):\n", *traceback.format_list(own)]
        summary = traceback.format_exception_only(cause)
        # Keep only the first line: JAX appends a long explanation of the origin of a traced array.
        summary = summary[:1] if remedy(cause) else summary
        return "".join([*lines, *summary]).partition("\nThe error occurred")[0]


# Remedies for code that JAX cannot trace, by the name of the exception.
_REMEDIES = {
    "TracerArrayConversionError": "use jax.numpy in place of numpy",
    "TracerBoolConversionError": "use jax.numpy.where in place of if",
    "ConcretizationTypeError": "give it a value that is known before the program is compiled",
    "TracerIntegerConversionError": "give it a value that is known before the program is compiled",
}


def remedy(error: BaseException) -> str:
    """Return "; REMEDY" for a JAX tracing error or a misspelt setting, and "" for any other error."""
    if misspelt := re.fullmatch(r"Unexpected keyword argument ('\w+')", str(error)):
        return f"; there is no setting {misspelt[1]}, check its spelling"
    words = _REMEDIES.get(type(error).__name__)
    return f"; {words}" if words else ""


def in_user_code(error: BaseException, files: frozenset[str], location: str) -> UserCodeError | None:
    """Return a `UserCodeError` if an exception was raised in the user's code, and None otherwise."""
    own = [step for step in traceback.walk_tb(error.__traceback__) if step[0].f_code.co_filename in files]
    if not own or isinstance(error, InputError | RunError):
        return None
    frame, number = own[-1]
    code = frame.f_code
    line = f"{type(error).__name__} in {code.co_name}, line {number} of {code.co_filename}{remedy(error)}"
    found = UserCodeError(f"{location}: {line}" if location else line, files)
    found.__cause__ = error
    return found


@contextmanager
def from_user_code(files: frozenset[str], location: str) -> Iterator[None]:
    """Context manager that converts exceptions raised in the user's code, and no others, to UserCodeError."""
    try:
        yield
    except Exception as error:
        if found := in_user_code(error, files, location):
            raise found from error
        raise


@contextmanager
def writing(location: object, remedy: str = "") -> Iterator[None]:
    """Context manager that converts an OSError into a RunError with the location and a remedy."""
    try:
        yield
    except OSError as error:
        reason = f"{location}: cannot be written: {error.strerror or error}"
        raise RunError(f"{reason}; {remedy}" if remedy else reason) from None


def shown(value: object) -> str:
    """Return the dtype and shape of an array, or the type name of another object, for an error message."""
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__  # type: ignore[attr-defined]


class at:
    """Context manager that prepends a location to the message of an InputError or UserCodeError."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Re-raise the error with its location prepended to the message."""
        if isinstance(error, InputError) and self.location:
            raise InputError(f"{self.location}: {error}") from None
        if isinstance(error, UserCodeError) and self.location:
            raise error.below(self.location) from error.__cause__


def explain(
    message: str,
    location: str,
    values: Any,
    keys: list[str],
    choices: Mapping[str, list[str]],
    patterns: Mapping[str, str] = {},
    required: Iterable[str] = (),
) -> str:
    """Rewrite a validation message from msgspec so that the key comes first, then the fault and the remedy.

    Args:
        message: the message from msgspec.
        location: key of the settings in the sweep file.
        values: the settings, from which a value that is out of bounds is quoted.
        keys: valid keys, from which the closest to an unknown key is suggested.
        choices: valid values of each key that has a fixed set of values.
        patterns: descriptions of the patterns that values must match, by key.
        required: required keys; if several are missing, one message lists all of them.
    """
    text, _, inner = message.partition(" - at `$")
    inner = inner.rstrip("`").lstrip(".")
    text = text.replace("Object contains unknown field", "unknown key").replace("`", "'")
    text = text.replace("Object missing required field", "missing key")
    missing = [key for key in required if key not in values]
    misspelt = [key for key in values if key not in keys]
    if text.startswith("missing key") and not inner and len(missing) > 1:
        text = f"missing keys {', '.join(map(repr, missing))}"
    meant = [(key, near) for key in misspelt if (near := similar(key, missing))]
    if meant and not inner:
        text = f"unknown key '{meant[0][0]}'; did you mean '{meant[0][1]}'?"
    text = text[:1].lower() + text[1:]
    if "matching regex" in text:
        text = patterns.get(inner, text)
    elif unknown := re.fullmatch(r"unknown key '(.*)'", text):
        text += nearest(unknown[1], keys)
    elif value := re.fullmatch(r"invalid (?:value|enum value) '(.*)'", text):
        text += nearest(value[1], choices.get(inner.partition("[")[0], []))
    elif re.fullmatch(r"expected '\w+' (of length )?[<>=]+ \S+", text):
        text += _given(values, inner)
    elif text == "expected 'array', got 'str'":
        given = _given(values, inner)
        text = f"expected a list{given}" + f"; write [{given.removeprefix(', got ')}]" * bool(given)
    elif text == "expected 'array', got 'object'" and not location:
        text = f"expected a list of tables; write [[{inner}]] in place of [{inner}]"
    where = ".".join(part for part in (location, inner) if part)
    return f"{where}: {text}" if where else text


# Names that other libraries and papers use for settings.
_MEANT = {
    "d": "dim",
    "d_model": "dim",
    "embedding_dim": "dim",
    "epochs": "steps",
    "eta": "step_size",
    "iterations": "steps",
    "learning_rate": "step_size",
    "lr": "step_size",
    "num_steps": "steps",
    "optim": "optimizer",
    "v": "vocab_size",
}


def similar(given: Any, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to a given one, or None if no name is similar.

    A name that differs only in case comes first, then the name of this package for a common synonym.
    """
    names = {name.lower(): name for name in known}
    text = str(given).lower()
    if text in names or _MEANT.get(text) in names:
        return names[text if text in names else _MEANT[text]]
    near = difflib.get_close_matches(text, names, 1, cutoff)
    return names[near[0]] if near else None


def nearest(given: Any, known: Iterable[str], cutoff: float = 0.4) -> str:
    """Return "; did you mean ..." with a similar known name, or else "; known: ..." with all of them.

    Return "" if `known` is empty.
    """
    known = list(known)
    near = similar(given, known, cutoff)
    return f"; did you mean '{near}'?" if near else f"; known: {', '.join(known)}" if known else ""


def counted(number: int, word: str) -> str:
    """Format a count and its noun, in the singular or plural, such as "1 cell" or "2 batches"."""
    return f"{number} {word if number == 1 else word + ('es' if word.endswith('ch') else 's')}"


def _given(values: Any, inner: str) -> str:
    """Return ", got VALUE" for the value at a path such as "labels[0]".

    Return "" for a path that matches several values, such as "axes[...]".
    """
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", inner):
        if number == "...":
            return ""
        values = values[int(number)] if number else values[name]
    return f", got {values!r:.60}"


def listed(names: Iterable[str]) -> str:
    """Join at most twenty names with commas, and add "..." if there are more. Return "none" for no names."""
    first = [f"{name:.40}" for name in itertools.islice(names, 21)]
    first[20:] = ["..."] * len(first[20:])
    return " ".join(", ".join(first).split()) or "none"


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(" .:")
