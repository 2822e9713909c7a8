"""Tables as files: CSV, Parquet, LaTeX and Markdown."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.core.errors import InputError, RunError
from jaxattn.results.numbers import format_number
from jaxattn.storage import files


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a whole table or nothing, in the format that the suffix names: .csv, .parquet, .tex or .md.

    Raises:
        InputError: another suffix.
        RunError: the file cannot be written.
    """
    writers: dict[str, Callable[[], bytes]] = {
        ".csv": lambda: table.to_csv(index=False, lineterminator="\n").encode(),
        ".parquet": lambda: table.to_parquet(None, index=False),
        ".tex": lambda: latex(table).encode(),
        ".md": lambda: f"{markdown(table)}\n".encode(),
    }
    if path.suffix not in writers:
        raise InputError(f"{path}: tables are written as {', '.join(writers)}; choose one of these suffixes")
    try:
        files.replace(Path(os.path.realpath(path)), writers[path.suffix]())
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None


def markdown(table: pd.DataFrame) -> str:
    """Lay out as a Markdown table."""
    lines = [list(map(str, table.columns)), ["---"] * len(table.columns)]
    lines += [[_text(x).replace("|", "\\|") for x in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(table: pd.DataFrame) -> str:
    """Lay out as a LaTeX tabular with the rules of booktabs; text is escaped."""
    texts = table.map(_text).rename(columns=str)
    return texts.to_latex(index=False, escape=True)


def _text(x: Any) -> str:
    return format_number(x) if isinstance(x, float) else str(x)
