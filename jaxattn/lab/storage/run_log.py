"""Log of a batch (metrics.jsonl), with one line per measurement and per long operation."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from jaxattn.core.settings import NotNegative
from jaxattn.lab.storage import files
from jaxattn.lab.storage.batch_record import Failure
from jaxattn.lab.storage.files import Damaged

RUN_LOG = "metrics.jsonl"
MAX_BYTES = 2**31
# Number of most recent lines to try until one of them is intact.
_TRIES = 3
# Substring of log lines that report no losses. The newest line that does report them is also kept.
WITHOUT = b'"losses": {}'


class Line(msgspec.Struct):
    """The fields of a log line that readers use."""

    time: float
    overall: float
    share: float
    phase: str
    step: int
    steps: int
    failures: list[Failure]
    losses: dict[str, list[float]] = {}
    doing: str = ""
    left: NotNegative | None = None


class Latest(msgspec.Struct):
    """The last line of a log, and the last one with losses; None if there is none."""

    line: Line | None = None
    measured: Line | None = None


def append_entry(folder: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to the log in a folder; raise the same errors as `files.append_bytes`."""
    files.append_bytes(folder / RUN_LOG, files.sealed(entry))


def latest(folder: Path, directory: Path) -> Latest:
    """Return the most recent intact lines of the log of a batch.

    Only these lines are parsed, because a log may have millions of lines.
    """
    last: list[bytes] = []
    measured: list[bytes] = []
    with suppress(Damaged), files.open_file(folder / RUN_LOG, directory, MAX_BYTES) as file:
        for line in file:
            for kept in (last,) if WITHOUT in line else (last, measured):
                kept.append(line)
                del kept[:-_TRIES]
    return Latest(_newest(last), _newest(measured))


def _newest(lines: list[bytes]) -> Line | None:
    for line in reversed(lines):
        # Before msgspec 0.20, a ValidationError is not a ValueError.
        with suppress(ValueError, msgspec.ValidationError):
            return msgspec.convert(files.unsealed(files.parse_json(line)), Line)
    return None
