"""What commands print."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


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


def print_summary(*directories: Path) -> None:
    """Print the last step of each phase, over all of some results folders."""
    from jaxattn.results import combine, load, statistics

    loaded = combine.combine([load(directory) for directory in directories])
    print_table("Last step of each phase", statistics.summary_table(loaded))
    print_made_by(loaded.made_by)


def print_made_by(made_by: str) -> None:
    """Say which other source made what was shown, if another one did."""
    if made_by:
        print(f"jaxattn: {made_by}", file=sys.stderr)


def print_table(title: str, frame: "pd.DataFrame") -> None:
    """Print a table to stdout."""
    # The help of a command needs none of these.
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in frame.columns:
        table.add_column(str(name), justify="right" if pd.api.types.is_numeric_dtype(frame[name]) else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)
