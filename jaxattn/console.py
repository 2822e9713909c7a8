"""What commands print."""

import re
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Rows of a table, and characters of a cell, that are read rather than searched.
ROWS = 1000
LONG = 40


def complain(error: Exception, status: int) -> int:
    """Print an error as one line and return the exit status."""
    print(f"jaxattn: {error}", file=sys.stderr)
    if trace := getattr(error, "trace", ""):
        print(trace, file=sys.stderr)
    return status


def print_written(written: Any) -> None:
    """Print the paths of what was written, and what could not be."""
    for path in written.paths:
        print(path)
    for problem in written.problems:
        print(f"jaxattn: {problem}", file=sys.stderr)


def print_summary(results: Any, **options: Any) -> None:
    """Print the last step of each phase: metrics below each other if that fits, else cells.

    Args:
        results: a run.
        options: of the bootstrap, as `statistics.summary_rows`.
    """
    from jaxattn.results import statistics
    from jaxattn.results.remarks import remarks

    title, keys = statistics.summary_title(results), [*results.axes, "phase"]
    rows = statistics.summary_rows(results, **options)
    turned = statistics.turned(rows, keys)
    if len(turned) > len(rows) and len(list(_pieces(turned, 1))) == 1:
        print_table(title, turned)
    else:
        print_table(title, rows, keys=len(keys))
    for line in remarks(results):
        print(line)
    print_made_by(results.made_by)


def print_made_by(made_by: str) -> None:
    """Say which other source made what was shown, if another one did."""
    if made_by:
        print(f"jaxattn: {made_by}", file=sys.stderr)


def print_table(title: str, frame: "pd.DataFrame", keys: int = 1) -> None:
    """Print a table to stdout; its columns go on below, beside the first `keys`, where it is too wide."""
    # The help of a command needs none of these.
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Names that users give are no markup.
    console = Console(width=_width(), highlight=False)
    console.print(Text(_plain(title), "table.title"))
    for places in _pieces(frame, keys):
        piece = frame.iloc[:ROWS, places]
        table = Table(box=box.SIMPLE_HEAD)
        for name, values in piece.items():
            head = Text(_heading(name, _column_width(name, values)), "table.header")
            justify: Any = "right" if pd.api.types.is_numeric_dtype(values) else "left"
            table.add_column(head, justify=justify, overflow="fold")
        for row in piece.itertuples(index=False):
            table.add_row(*(Text(_written(x)) for x in row))
        console.print(table)
    if len(frame) > ROWS:
        print(f"... and {len(frame) - ROWS:,} rows more")


def _pieces(frame: "pd.DataFrame", keys: int) -> Iterator[list[int]]:
    """Divide columns, by their places, over tables that are as wide as what they are printed on."""
    widths = [_column_width(name, values) for name, values in frame.items()]
    first = list(range(keys))
    piece = list(first)
    for place in range(keys, len(widths)):
        together = sum(widths[k] for k in [*piece, place])
        if len(piece) > keys and together + 3 * len(piece) + 4 > _width():
            yield piece
            piece = list(first)
        piece.append(place)
    yield piece


def _column_width(name: Any, values: "pd.Series") -> int:
    cells = max((len(_written(x)) for x in values[:ROWS]), default=0)
    return max(min(cells, LONG), *map(len, _parts(name)))


def _heading(name: Any, width: int) -> str:
    """Break a heading at its dots and underscores."""
    lines = [""]
    for part in _parts(name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _parts(name: Any) -> list[str]:
    return re.findall(r"[^\s._]*[\s._]*", _plain(str(name)))[:-1] or [""]


def _written(x: Any) -> str:
    return _plain(f"{x:.4g}" if isinstance(x, float) else str(x))


def _plain(text: str) -> str:
    """Write out what a terminal would obey."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _width() -> int:
    return shutil.get_terminal_size((200, 50)).columns
