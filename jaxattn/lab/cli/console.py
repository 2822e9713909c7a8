"""What commands print: tables that fit a terminal of 80 columns, and lines."""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxattn.core.errors import plain

if TYPE_CHECKING:
    import pandas as pd

# Rows of a table, and characters of a cell, that are read rather than searched.
ROWS = 1000
LONG = 40
GAP = 2
# Lanes that failed: of each cell and phase, and in all.
OF_A_PLACE, FAILURES = 3, 12
# A number and its unit are read as one word: 31.4 kB, 38.5 k, 174 µs.
_WORD = re.compile(r"\d\S* (?:[kMGTPmµn]i?[Bs]?|[Bsh]|min)(?!\S)|\S+")


def say(text: object = "", *, err: bool = False) -> None:
    """Print lines to stdout, or to stderr; each of them as `plain` returns it."""
    for line in str(text).split("\n"):
        print(plain(line.expandtabs()), file=sys.stderr if err else sys.stdout)


def complain(error: Exception, status: int) -> int:
    """Print an error as one line and return the exit status."""
    say(f"jaxattn: {error}", err=True)
    if trace := getattr(error, "trace", ""):
        say(trace, err=True)
    return status


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """Say how a run goes on that is asked to stop, and exit with 130."""
    from jaxattn.lab.engine.clock import Interrupted

    try:
        yield
    except Interrupted:
        say(f"stopped; nothing is lost, continue with: {command}", err=True)
        sys.exit(130)


def print_written(written: Any) -> None:
    """Print the paths of what was written, and what could not be; why, if code of the user's raised."""
    for path in written.paths:
        say(path)
    for problem in written.problems:
        say(f"jaxattn: {problem.line}", err=True)
        if problem.trace:
            say(problem.trace, err=True)


def print_failures(failures: Sequence[Mapping[str, Any]], folder: str) -> None:
    """Print the first lanes that failed, of each cell and phase and in all, how many more, and a remedy."""
    count: Counter[tuple[int, str]] = Counter()
    shown = []
    for failure in failures:
        count[place := (failure["cell"], failure["phase"])] += 1
        if count[place] <= OF_A_PLACE:
            shown.append(failure)
    for failure in shown[:FAILURES]:
        where = "{reason} in cell {cell}, seed {seed}, phase {phase}, step {step}".format(**failure)
        say(f"jaxattn: failed: {where}", err=True)
    if failures:
        left = len(failures) - len(shown[:FAILURES])
        more = f"and {left:,} more: see {folder}/manifest.json, or `jaxattn status {folder}`; "
        remedy = "try a smaller step_size in that phase, or --set dtype=float64"
        if all(failure["step"] == 0 for failure in failures):
            remedy = (
                "no step was taken yet: check what the model and the loss return at the start of that phase"
            )
        say(f"jaxattn: {more if left else ''}{remedy}", err=True)


def print_summary(results: Any, *, every: bool = False, rest: str = "--all", **options: Any) -> None:
    """Print the last step of each phase, of at most six metrics that `headline.metrics` chooses.

    Args:
        results: a run.
        every: print all metrics.
        rest: what the user gives for those that are left out.
        options: of the bootstrap, as `statistics.summary_rows`.
    """
    from jaxattn.lab.results import combine, headline, statistics
    from jaxattn.lab.results.headline import caveats

    chosen = headline.metrics(results)
    left = 0 if every else len(headline.recorded(results)) - len(chosen)
    shown = combine.choose(results, metrics=chosen) if left else results
    rows = statistics.summary_rows(shown, metrics=chosen if left else None, **options)
    print_title(statistics.summary_title(shown))
    for title, table in _fitting(rows, [*results.axes, "phase"]):
        print_table(title, table)
    for line in caveats(shown):
        say(line)
    if left:
        say(f"{left} more metrics: {rest}")
    print_made_by(results.made_by)


def print_json(told: Any, indent: int = 1) -> None:
    """Print JSON, for programs to read; letters that the encoding of stdout may lack are escaped."""
    import json

    is_unicode = str(sys.stdout.encoding).lower().startswith("utf")
    text = json.dumps(told, ensure_ascii=not is_unicode, indent=indent)
    say("".join(x if x.isprintable() or x == "\n" else json.dumps(x)[1:-1] for x in text))


def rows_of(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """List the rows of a table as JSON would hold them, NaN as null."""
    import json

    rows: list[dict[str, Any]] = json.loads(
        frame.to_json(orient="records", double_precision=15, default_handler=str)
    )
    return rows


def print_closing(results: Any) -> None:
    """Print in two sentences what a run has learned."""
    from jaxattn.lab.results.headline import sentences

    for sentence in sentences(results):
        say(sentence)


def _fitting(rows: "pd.DataFrame", keys: list[str]) -> Iterator[tuple[str, "pd.DataFrame"]]:
    """Lay out a summary so that no column goes on below: in one table if that fits, else one per metric."""
    from jaxattn.lab.results.statistics import turned

    # Turned round, every row takes a column.
    ways = [rows, turned(rows, keys)] if len(rows) <= _width() else [rows]
    for table in ways[::-1] if len(rows.columns) - len(keys) > len(rows) else ways:
        if _together(_full_widths(table)) <= _width():
            yield "", table
            return
    for metric in rows.columns[len(keys) :]:
        own = rows[rows[metric] != ""]
        yield metric, own[[*keys, metric]].rename(columns={metric: "value"})


def print_made_by(made_by: str) -> None:
    """Say which other source made what was shown, if another one did."""
    if made_by:
        say(f"jaxattn: {plain(made_by)}", err=True)


def print_title(title: str) -> None:
    """Print the title of a table."""
    from rich.console import Console
    from rich.text import Text

    Console(width=_width(), highlight=False).print(Text(plain(title), "table.title"))


def print_table(title: str, frame: "pd.DataFrame") -> None:
    """Print a table to stdout, whatever its width.

    Where it is too wide, columns with the same value in all rows become a line, and cells and headings are
    broken between words; where that is not enough, every row is printed over several lines.
    """
    # The help of a command needs none of these.
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        print_title(title)
    piece = frame.iloc[:ROWS]
    if _together(_full_widths(piece)) > _width() and len(piece) > 1:
        same = [len({_written(x) for x in values}) == 1 for _, values in piece.items()]
        common = piece.iloc[:1, [k for k, one in enumerate(same) if one]]
        piece = piece.iloc[:, [k for k, one in enumerate(same) if not one]]
        for name, values in common.items():
            if value := _written(values.iloc[0]):
                say(f"{plain(str(name))}: {value} in all rows")
    widths = _widths(piece)
    if widths is None:
        _print_records(piece)
    else:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for (name, values), width in zip(piece.items(), widths, strict=True):
            head = Text(_heading(name, width), "table.header")
            justify: Any = "right" if pd.api.types.is_numeric_dtype(values) else "left"
            table.add_column(head, justify=justify, overflow="fold", width=width)
        for row in piece.itertuples(index=False):
            table.add_row(*(Text(_written(x)) for x in row))
        # Names that users give are no markup.
        Console(width=_width(), highlight=False).print(table)
    say()
    if len(frame) > ROWS:
        say(f"... and {len(frame) - ROWS:,} rows more")


def _print_records(frame: "pd.DataFrame") -> None:
    """Print each row of a table over several lines."""
    names = [plain(str(name)) for name in frame.columns]
    for row in frame.itertuples(index=False):
        for name, x in zip(names, row, strict=True):
            say(f"{name}: {_written(x)}")
        say()


def _widths(frame: "pd.DataFrame") -> list[int] | None:
    """Divide the width between columns: what they want, less for the widest; None if a word had to be cut."""
    widths = _full_widths(frame)
    least = [
        min(
            max(map(len, [*_parts(name), *(word for x in values for word in _WORD.findall(_written(x)))])),
            LONG,
        )
        for name, values in frame.items()
    ]
    while _together(widths) > _width():
        spare = [width if width > least[k] else 0 for k, width in enumerate(widths)]
        if not any(spare):
            return None
        widths[spare.index(max(spare))] -= 1
    return widths


def _together(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _full_widths(frame: "pd.DataFrame") -> list[int]:
    """What columns want: their longest cell up to 40, and a heading broken at its dots and underscores."""
    return [
        max(min(max((len(_written(x)) for x in values[:ROWS]), default=0), LONG), *map(len, _parts(name)))
        for name, values in frame.items()
    ]


def _heading(name: Any, width: int) -> str:
    """Break a heading at its dots and underscores."""
    lines = [""]
    for part in _parts(name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _parts(name: Any) -> list[str]:
    return re.findall(r"[^\s._]*[\s._]*", plain(str(name)))[:-1] or [""]


def _written(x: Any) -> str:
    return plain(f"{x:.4g}" if isinstance(x, float) else str(x))


def _width() -> int:
    return shutil.get_terminal_size((200, 50)).columns
