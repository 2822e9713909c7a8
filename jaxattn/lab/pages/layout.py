"""Format tables as CSV, Markdown and LaTeX, and typeset text, tables and figures on self-contained pages."""

import base64
import html
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup, escape

from jaxattn.core.errors import InputError, writing
from jaxattn.core.settings import markdown_table
from jaxattn.lab.figures.rendered import Picture, RenderedFigure
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.storage import files


def write_page(table: pd.DataFrame, path: Path) -> None:
    """Write a table atomically, in the format given by the suffix: .csv, .parquet, .tex or .md.

    Raises:
        InputError: the suffix is not supported.
        RunError: the file cannot be written.
    """
    writers: dict[str, Callable[[], bytes]] = {
        ".csv": lambda: table.to_csv(index=False, lineterminator="\n").encode(),
        ".parquet": lambda: table.to_parquet(None, index=False),
        ".tex": lambda: latex(table).encode(),
        ".md": lambda: f"{markdown(table)}\n".encode(),
    }
    if path.suffix not in writers:
        raise InputError(f"{path}: unsupported suffix for a table; use one of {', '.join(writers)}")
    with writing(path):
        files.replace(Path(os.path.realpath(path)), writers[path.suffix]())


def markdown(table: pd.DataFrame) -> str:
    """Convert a table to Markdown."""
    return markdown_table(map(str, table.columns), (map(_text, row) for row in table.itertuples(index=False)))


def latex(table: pd.DataFrame) -> str:
    """Convert a table to a LaTeX tabular with booktabs rules and escaped text."""
    return texts(table).to_latex(index=False, escape=True)


def _text(x: Any) -> str:
    return format_number(x) if isinstance(x, float) else str(x)


HERE = Path(__file__).parent
STYLE = HERE / "page.css"
# Display resolution of figures in CSS pixels per inch.
PIXELS = 110
_WIDTH = re.compile(rb'<svg [^>]*?width="([\d.]+)pt"')
# Widths in multiples of the font size: an A4 page at the smallest font size in page.css, and a phone screen
# at the body font size.
TABLE_WIDTH_REM, PHONE = 77.0, 27.0
TABLE_COLUMNS = 16
LETTER, BOLD_LETTER, PADDING = 0.63, 0.7, 0.8
# CSS variables set column properties once per table instead of once per cell.
COLUMN_RULES = "".join(
    f"tr > :nth-child({k}) {{ text-align: var(--a{k}, right); }}\n"
    f".many td:nth-child({k})::before {{ content: var(--h{k}); }}\n"
    for k in range(1, TABLE_COLUMNS + 1)
)
# Words with more characters than this may be broken at any character.
_LONG = 30
NUMBER = re.compile(r"[-–−∞]?[\d.,]*(e[-−]?\d+)?(\s?(%|s|GiB))?( \[.*\])?( \(n=\d+\))?|nan")
# Tone (colour) of each verdict, and of the other phrases that pages show in place of a verdict.
TONES = (
    ("no", re.compile("differs|falsified|(below|inside) the null band")),
    ("open", re.compile("inconclusive|toy|undecided")),
    ("yes", re.compile("agrees|verified|above the null band")),
)


class Column(NamedTuple):
    """Column of a table.

    Attributes:
        head: name of the column.
        cells: formatted cells.
        number: True if all cells are numbers; such a column is right-aligned.
        long: True if the column contains a word that may be broken because it is very long.
        least: minimum width in em at which no other word is broken.
    """

    head: str
    cells: list[str]
    number: bool
    long: bool
    least: float


class Piece(NamedTuple):
    """Columns of a table that fit side by side on a page.

    Attributes:
        columns: the columns.
        least: minimum total width in em.
    """

    columns: list[Column]
    least: float

    @property
    def many(self) -> bool:
        """Return True if the columns together are too wide for a phone."""
        return self.least > PHONE

    @property
    def style(self) -> str:
        """Return CSS variables for `COLUMN_RULES` and page.css: minimum width, alignment and column headings.

        The headings are included only if the table is too wide for a phone, where each row becomes a card.
        """
        declarations = [f"--least:{self.least}"]
        for k, column in enumerate(self.columns, 1):
            declarations += [f"--a{k}:left"] * (not column.number and k > 1)
            declarations += [f"--h{k}:{json.dumps(column.head, ensure_ascii=False)}"] * self.many
        return ";".join(declarations)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the formatted cells as one tuple per row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def fill(template: Path, **content: Any) -> str:
    """Render a Jinja template, escaping all text.

    Args:
        template: path of the template. {{ style }} inserts the style shared by all pages. The filter
            `embedded` encodes bytes as base64, `typeset` inserts minus signs, `coded` does this and also
            formats code in backticks, and `tone` returns the colour for a verdict. The macro `shown` in
            table.html formats a table.
        content: variables for the template.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=jinja2.FileSystemLoader(HERE)
    )
    environment.undefined = jinja2.StrictUndefined
    environment.filters["embedded"] = lambda data: base64.b64encode(data).decode()
    environment.filters["breakable"] = breakable
    environment.filters["coded"] = coded
    environment.filters["typeset"] = typeset
    environment.filters["formula"] = formula
    environment.filters["sentence"] = lambda text: coded(f"{text[0].upper()}{text[1:]}.")
    environment.filters["tone"] = tone
    environment.globals["pieces"] = pieces
    style = Markup(COLUMN_RULES + STYLE.read_text(encoding="utf-8"))
    return environment.from_string(template.read_text(encoding="utf-8")).render(style=style, **content)


def texts(table: pd.DataFrame) -> pd.DataFrame:
    """Format all entries and column names of a table as strings."""
    return table.rename(columns=str).map(_text)


def tone(verdict: str) -> str:
    """Return the colour for a verdict, "yes", "no" or "open", or "" if the string is not a verdict."""
    return next((name for name, words in TONES if words.search(verdict)), "")


def pictures(figures: Sequence[RenderedFigure | Picture], images: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return what the macro `figure` in table.html shows: title, caption, width in CSS pixels, and image.

    Args:
        figures: the figures.
        images: the figures as SVG files.
    """
    widths = [_WIDTH.search(image) for image in images]
    return [
        {
            "title": each.title,
            "caption": each.caption,
            "width": round(float(width[1]) / 72 * PIXELS) if width else None,
            "data": image,
        }
        for each, width, image in zip(figures, widths, images, strict=True)
    ]


def pieces(table: pd.DataFrame, keys: int = 1) -> Iterator[Piece]:
    """Split a table by columns into pieces that fit on a page.

    Args:
        table: the table, with strings as entries.
        keys: number of leading columns to repeat in every piece.
    """
    columns = [
        _column(str(name), [typeset(str(x)) for x in cells])
        for name, cells in zip(table, table.T.to_numpy(), strict=True)
    ]
    piece = columns[:keys]
    for column in columns[keys:]:
        if len(piece) > keys and (
            _total_width([*piece, column]) > TABLE_WIDTH_REM or len(piece) == TABLE_COLUMNS
        ):
            yield Piece(piece, _total_width(piece))
            piece = columns[:keys]
        piece = [*piece, column]
    yield Piece(piece, _total_width(piece))


def _total_width(columns: list[Column]) -> float:
    # Committed pages must not depend on the Python version, but the rounding error of `sum` does.
    return round(math.fsum(column.least for column in columns), 1)


def _column(head: str, cells: list[str]) -> Column:
    in_head, in_cells = (
        max((len(word) for x in texts for word in _words(x)), default=0) for texts in ([head], cells)
    )
    least = PADDING + max(BOLD_LETTER * min(in_head, _LONG), LETTER * min(in_cells, _LONG))
    return Column(head, cells, all(map(NUMBER.fullmatch, cells)), max(in_head, in_cells) > _LONG, least)


def _words(text: str) -> list[str]:
    return re.split(rf"[ \n]+|(?<=\w-)(?=[A-Za-z])|{BREAK.pattern}", text)


NO_BREAK, MINUS, DASH = "\N{NO-BREAK SPACE}", "\N{MINUS SIGN}", "\N{EN DASH}"
_NUMBER = r"[-−]?(?:\d[\d.,]*(?:e[-−]?\d+)?|∞)"
# Matches signs (-1, -α), differences (1 - cos) and exponents (2e-5), but not hyphens (max-margin, Figures
# 1-3).
_SIGNS = re.compile(r"(?<![\w.)\]}\"'`/⟩‖|-])-(?=[\d.]|[^\W\d_]|[∞½(‖])|(?<=\S )-(?= \S)|(?<=\de)-(?=\d)")
# Strings that must stay on one line: intervals, tolerances, bounds, short settings, and numbers with units.
_TOGETHER = (
    re.compile(rf"\[{_NUMBER}, {_NUMBER}\]"),
    re.compile(rf"{_NUMBER} ± {_NUMBER}"),
    re.compile(rf"[≤≥<>~≈] {_NUMBER}"),
    re.compile(rf"(?<![\w.])(?:‖\w‖|\w{{1,12}}) = {_NUMBER}"),
    re.compile(rf"{_NUMBER} (?:%|s|ms|min|h|GiB|MiB|GB|seeds?)(?!\w)"),
)
# Allow line breaks in names after underscores and dots, but never in numbers.
BREAK = re.compile(r"(?<=\w\w_)(?=\w\w)|(?<=[A-Za-z]\.)(?=[A-Za-z])")


def typeset(text: str) -> str:
    """Insert minus signs in formulas, and no-break spaces in intervals and between numbers and units.

    A lone hyphen, which marks an empty table cell, becomes a dash.
    """
    if text == "-":
        return DASH
    text = _SIGNS.sub(MINUS, text)
    for pattern in _TOGETHER:
        text = pattern.sub(lambda found: found[0].replace(" ", NO_BREAK), text)
    return text


def breakable(text: str) -> Markup:
    """Convert typeset text to HTML in which long names can be broken after underscores and dots."""
    return Markup("<wbr>").join(map(escape, BREAK.split(typeset(text))))


def coded(text: str) -> Markup:
    """Convert text to HTML. Code in backticks is formatted as code, and the rest is typeset."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(typeset(part))
        for number, part in enumerate(parts)
    )


def formula(text: str) -> Markup:
    """Convert a formula such as "Σ_i q_i E_{x_i}" to HTML, with subscripts and superscripts."""
    html = str(escape(text))
    for sign, tag in (("_", "sub"), (r"\^", "sup")):
        # Innermost braces first.
        pattern = rf"{sign}(?:\{{([^{{}}]*)\}}|(\w))"
        while (found := re.sub(pattern, rf"<{tag}>\1\2</{tag}>", html)) != html:
            html = found
    return Markup(html)


def marked(text: str) -> str:
    """Convert text to Markdown. Code in backticks is unchanged, and the rest is typeset."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return "`".join(part if number % 2 else typeset(part) for number, part in enumerate(parts))


_TEMPLATE = Path(__file__).with_name("summary.html")


def summary_page(
    title: str,
    heading: str,
    lines: Sequence[str],
    figures: Sequence[RenderedFigure],
    tables: Sequence[tuple[str, pd.DataFrame, int]],
    note: str,
    *,
    toned: bool = False,
) -> str:
    """Return a self-contained HTML page.

    Args:
        title: title of the document.
        heading: heading of the page.
        lines: sentences below the heading.
        figures: figures with captions.
        tables: for each table, (title, table, number of leading columns that identify a row).
        note: paragraph at the end.
        toned: True to colour each sentence by its verdict.
    """
    shown = [(name, texts(table), keys) for name, table, keys in tables]
    content = {
        "lines": lines,
        "figures": pictures(figures, [x.svg() for x in figures]),
        "tables": shown,
        "note": note,
    }
    return fill(_TEMPLATE, title=title, heading=heading, toned=toned, **content)


def framed(title: str, page: str) -> str:
    """Wrap a page in an iframe, which isolates its style, for display in a notebook."""
    style = "width:100%;height:60rem;border:0"
    return f'<iframe title="{title}" srcdoc="{html.escape(page)}" style="{style}"></iframe>'


def write_contents(directory: str | Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files to a folder, which is created if it does not exist; return their paths.

    Raises:
        RunError: the folder cannot be written.
    """
    directory = Path(directory)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_bytes(content)
    return [directory / name for name in contents]
