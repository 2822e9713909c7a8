"""One-line messages about files that cannot be read."""

import csv
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jaxattn.errors import InputError

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
