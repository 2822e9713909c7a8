"""Log of a run (metrics.jsonl), with one line per measurement and per long operation."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from jaxattn.core.settings import NotNegative
from jaxattn.lab.storage import batch_state, files
from jaxattn.lab.storage.batch_state import Failure
from jaxattn.lab.storage.files import Damaged

RUN_LOG = "metrics.jsonl"
MAX_BYTES = 2**31
# Number of most recent lines to try per batch until one of them is intact.
_TRIES = 3
BATCH = re.compile(rb'(?<!\\)"batch": "(%s)"' % batch_state.BATCH_NAME.pattern.encode())
# Substrings of log lines that report no losses, or no failures. The newest line that does report them is also
# kept.
WITHOUT = (b'"losses": {}', b'"failures": []')


class Line(msgspec.Struct):
    """The fields of a log line that readers use."""

    time: float
    start: float
    batch: str
    overall: float
    share: float
    phase: str
    step: int
    steps: int
    failures: list[Failure]
    losses: dict[str, list[float]] = {}
    doing: str = ""
    left: NotNegative | None = None
    wall_time_s: NotNegative | None = None
    peak_memory_mib: NotNegative | None = None


def append_entry(directory: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to the log in a results folder; raise the same errors as `files.append_bytes`."""
    files.append_bytes(directory / RUN_LOG, files.sealed(entry))


def latest(directory: Path) -> list[dict[str, Any]]:
    """Return the most recent lines of a log, in order.

    For each batch, these are the last line, the last line with losses, and the last line with failures.
    Damaged lines are skipped. All other lines are skipped without parsing, because a log may have millions of
    lines.
    """
    newest: dict[tuple[bytes, bytes | None], list[tuple[int, bytes]]] = {}
    with suppress(Damaged), files.open_file(directory / RUN_LOG, directory, MAX_BYTES) as file:
        for number, line in enumerate(file):
            if found := BATCH.search(line):
                for lacking in (None, *WITHOUT):
                    if lacking is None or lacking not in line:
                        kept = newest.setdefault((found[1], lacking), [])
                        kept.append((number, line))
                        del kept[:-_TRIES]
    chosen = dict(entry for kept in newest.values() if (entry := next(_whole(kept), None)))
    return [chosen[number] for number in sorted(chosen)]


def _whole(lines: list[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in reversed(lines):
        with suppress(ValueError):
            yield number, msgspec.to_builtins(msgspec.convert(files.unsealed(files.parse_json(line)), Line))
