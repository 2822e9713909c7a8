"""Functions that print lines, paragraphs and tables to fit the terminal."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any

from jaxattn.core.errors import plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

# Name and formatted cells.
_Column = tuple[str, list[str]]

# Maximum number of table rows to print, and preferred width of a text column.
_ROWS = 1000
_LONG = 40
GAP = 2
# Maximum number of failures to print.
_FAILURES = 12
# Strings that must not be broken across lines, such as a number with its unit (31.4 kB, 174 µs), an interval,
# or a range of metric names (Ep_bin_00 .. 19).
_WORD = re.compile(
    r"\d\S* (?:[kMGTPmµn]i?[Bs]?|[Bsh]|min)(?!\S)|\[[^\s\]]+, [^\s\]]+\]\S*|\S+ \.\. \d+\S*|\S+"
)


def print_line(text: object = "", *, err: bool = False) -> None:
    """Print text to stdout, or to stderr if `err` is True, with control characters escaped by `plain`."""
    for line in str(text).split("\n"):
        print(plain(line.expandtabs()), file=sys.stderr if err else sys.stdout)


def print_wrapped(text: object, indent: int = 0) -> None:
    """Print a paragraph to stdout, wrapped to the terminal width, or on one line if stdout is a pipe."""
    print_line(filled(plain(str(text)), text_width(), indent))


def print_aligned(rows: Iterable[tuple[str, str]]) -> None:
    """Print terms and their explanations in two columns, wrapped to the terminal width."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=11)
    for term, words in rows:
        table.add_row(Text(f"  {plain(term)}"), Text(plain(words)))
    _console().print(table)


def filled(text: str, width: int, indent: int = 0) -> str:
    """Wrap a paragraph at word boundaries.

    Width 0 disables wrapping. `indent` is the indentation of every line except the first.
    """
    if not width:
        return text
    # Use no-break spaces inside these strings: textwrap breaks lines only at ordinary spaces.
    whole = _WORD.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    lines = textwrap.wrap(
        whole, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def text_width() -> int:
    """Return the line width given by COLUMNS or the terminal, or 0 if neither is available."""
    return shutil.get_terminal_size((0, 0)).columns


def print_error(error: Exception, status: int) -> int:
    """Print an error on one line and return `status`."""
    print_line(f"jaxattn: {error}", err=True)
    if trace := getattr(error, "trace", ""):
        print_line(trace, err=True)
    return status


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """If the run is stopped in the `with` block, print its resume command and exit with status 130."""
    from jaxattn.lab.engine.monitor import Interrupted

    try:
        yield
    except Interrupted as stopped:
        print_line(f"stopped; {stopped}; resume with: {command}", err=True)
        sys.exit(130)


def print_written(written: Any, *, every: bool = False) -> None:
    """Print the path of a report and any problems; with `every`, print the paths of all report files.

    Problems, such as figures that could not be drawn, are printed to stderr.
    """
    others = [path for path in written.paths if path != written.page]
    for path in [*(others if every else []), written.page]:
        print_line(path)
    for problem in written.problems:
        print_line(f"jaxattn: {problem.line}", err=True)
        if problem.trace:
            print_line(problem.trace, err=True)


def print_failures(failures: Sequence[Mapping[str, Any]], folder: str) -> None:
    """Print the first few failed runs, the number of failures not shown, and a remedy."""
    for failure in failures[:_FAILURES]:
        where = "{reason} in cell {cell}, seed {seed}, phase {phase}, step {step}".format(**failure)
        print_line(f"jaxattn: failed: {where}", err=True)
    if not failures:
        return
    left = len(failures) - _FAILURES
    more = f"and {left:,} more: see {folder}/runs/*/run.json, or run `jaxattn status {folder}`; "
    remedy = "try a smaller step_size in that phase, or --set dtype=float64"
    if all(failure["step"] == 0 for failure in failures):
        remedy = (
            "no step was taken: check the outputs of the model and the loss before the phase, and the "
            "start of a custom flow"
        )
    print_line(f"jaxattn: {more * (left > 0)}{remedy}", err=True)


def print_summary(results: Any, *, every: bool = False, rest: str = "--all", **options: Any) -> None:
    """Print a table of at most six metrics, chosen by `overview.metrics`, at the last step of each phase.

    With `every`, print all metrics. Otherwise the output mentions `rest`, the option or command that prints
    the remaining metrics. Bootstrap options are passed to `statistics.summary_rows`.
    """
    from jaxattn.lab.pages import overview
    from jaxattn.lab.pages.overview import caveats
    from jaxattn.lab.results import combine, statistics

    chosen = overview.metrics(results)
    left = 0 if every else len(overview.recorded(results)) - len(chosen)
    shown = combine.choose(results, metrics=chosen) if left else results
    rows = statistics.summary_rows(shown, metrics=chosen if left else None, **options)
    print_title(statistics.summary_title(shown))
    for title, table in _split_to_fit(rows, len(results.axes) + 1):
        print_table(title, table)
    for line in caveats(shown):
        print_wrapped(line)
    if left:
        print_line(f"{left} more metrics with {rest}")
    print_made_by(results.made_by)


def print_json(values: Any, indent: int = 1) -> None:
    """Print values as JSON in ASCII."""
    import json

    print_line(json.dumps(values, indent=indent))


def rows_of(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Convert a table to a list of dictionaries for JSON, replacing NaN with None."""
    import json

    rows: list[dict[str, Any]] = json.loads(
        frame.to_json(orient="records", double_precision=15, default_handler=str)
    )
    return rows


def _split_to_fit(rows: "pd.DataFrame", keys: int) -> Iterator[tuple[str, "pd.DataFrame"]]:
    from jaxattn.lab.results.statistics import transposed

    # Also try the transposed table, in which each row becomes a column.
    ways = [rows, transposed(rows, keys)] if len(rows) <= _width() else [rows]
    for table in ways[::-1] if len(rows.columns) - keys > len(rows) else ways:
        columns = [(str(name), list(map(_cell_text, values))) for name, values in table.items()]
        if _total_width(_full_widths(columns)) <= _width():
            yield "", table
            return
    heads = list(rows.columns[:keys])
    for metric in rows.columns[keys:]:
        own = rows[rows[metric] != ""]
        yield metric, own[[*heads, metric]].rename(columns={metric: "value"})


def print_made_by(made_by: str) -> None:
    """Print the provenance warning `made_by` to stderr, unless it is empty."""
    if made_by:
        print_line(f"jaxattn: {plain(made_by)}", err=True)


def print_title(title: str) -> None:
    """Print a table title."""
    from rich.text import Text

    for line in filled(plain(title), text_width()).split("\n"):
        _console(soft_wrap=True).print(Text(line, "table.title"))


def print_table(title: str, frame: "pd.DataFrame") -> None:
    """Print a table to stdout.

    If the table is too wide, each column with the same value in all rows is printed as a single line, and
    cells are wrapped. If the table is still too wide, each row is printed on several lines. Words are never
    broken.
    """
    # Import here, so that help text is printed without loading these packages.
    import pandas as pd
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if title:
        print_title(title)
    right = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    columns = [(plain(str(name)), [_cell_text(x) for x in values[:_ROWS]]) for name, values in frame.items()]
    if _total_width(_full_widths(columns)) > _width() and len(frame) > 1:
        for name, values in columns:
            if len(set(values)) == 1 and values[0]:
                print_wrapped(f"{name}: {values[0]} in all rows")
        kept = [len(set(values)) > 1 for _, values in columns]
        columns, right = list(compress(columns, kept)), list(compress(right, kept))
    rows = zip(*(values for _, values in columns), strict=True)
    if (widths := _widths(columns)) is None:
        for row in rows:
            for (name, _), x in zip(columns, row, strict=True):
                print_wrapped(f"{name}: {x}", indent=2)
            print_line()
    else:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for (name, _), width, is_number in zip(columns, widths, right, strict=True):
            table.add_column(
                Text(name, "table.header"), justify="right" if is_number else "left", width=width
            )
        for row in rows:
            # Names chosen by users must not be parsed as markup.
            table.add_row(*map(Text, row))
        _console().print(table)
    print_line()
    if len(frame) > _ROWS:
        print_line(f"... and {len(frame) - _ROWS:,} more rows")


def _widths(columns: list[_Column]) -> list[int] | None:
    """Return widths of columns that fit the terminal without broken words, or None if there are none."""
    widths, least = _full_widths(columns), [max(_longest(values), len(name)) for name, values in columns]
    while _total_width(widths) > _width():
        spare = [width if width > least[k] else 0 for k, width in enumerate(widths)]
        if not any(spare):
            return None
        widths[spare.index(max(spare))] -= 1
    return widths


def _full_widths(columns: list[_Column]) -> list[int]:
    return [
        max(min(max(map(len, values), default=0), _LONG), _longest(values), len(name))
        for name, values in columns
    ]


def _total_width(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _longest(values: Iterable[str]) -> int:
    return max((len(word) for x in values for word in _WORD.findall(x)), default=0)


def _cell_text(x: Any) -> str:
    return plain(f"{x:.4g}" if isinstance(x, float) else str(x))


def _width() -> int:
    return shutil.get_terminal_size((200, 50)).columns


def _console(soft_wrap: bool = False) -> "Console":
    from rich.console import Console

    return Console(width=_width(), highlight=False, soft_wrap=soft_wrap)
