"""Tables as CSV, Markdown and LaTeX, and on pages of HTML that hold everything they show.

Tables of a page fit every screen and paper; all pages share one style.
"""

import base64
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from jaxattn.core.errors import InputError, writing
from jaxattn.core.settings import markdown_table
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.results.typeset import BREAK, breakable, coded, typeset
from jaxattn.lab.storage import files


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
    with writing(path):
        files.replace(Path(os.path.realpath(path)), writers[path.suffix]())


def markdown(table: pd.DataFrame) -> str:
    """Lay out as a Markdown table."""
    return markdown_table(map(str, table.columns), (map(_text, row) for row in table.itertuples(index=False)))


def latex(table: pd.DataFrame) -> str:
    """Lay out as a LaTeX tabular with the rules of booktabs; text is escaped."""
    return texts(table).to_latex(index=False, escape=True)


def _text(x: Any) -> str:
    return format_number(x) if isinstance(x, float) else str(x)


HERE = Path(__file__).parent
STYLE = HERE / "page.css"
# Widths in em. Of a page of A4 in the smallest letters of page.css, and of a telephone in those of the text.
MOST, PHONE = 77.0, 27.0
COLUMNS = 16
LETTER, BOLD_LETTER, PADDING = 0.63, 0.7, 0.8
# A page says of each of its tables once what else every cell of a column would have to say.
COLUMN_RULES = "".join(
    f"tr > :nth-child({k}) {{ text-align: var(--a{k}, right); }}\n"
    f".many td:nth-child({k})::before {{ content: var(--h{k}); }}\n"
    for k in range(1, COLUMNS + 1)
)
# Longer words are broken anywhere.
LONG = 30
NUMBER = re.compile(r"[-–−∞]?[\d.,]*(e[-−]?\d+)?(\s?(%|s|GiB))?( \[.*\])?( \(n=\d+\))?|nan")
# The colour of one verdict of the judge, and of the other sentences that pages show as verdicts.
TONES = (
    ("no", re.compile("differs|fails|does not hold|(below|inside) the null band")),
    ("open", re.compile("inconclusive|cannot tell|undecided|for some")),
    ("yes", re.compile("agrees|holds|above the null band")),
)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        head: its name.
        cells: its texts.
        number: whether all are numbers, which stand at the right.
        long: whether a word is so long that it may be broken.
        least: the least width in em in which no other word is.
    """

    head: str
    cells: list[str]
    number: bool
    long: bool
    least: float


class Piece(NamedTuple):
    """Columns of a table that fit side by side.

    Attributes:
        columns: the columns.
        least: their least width in em.
    """

    columns: list[Column]
    least: float

    @property
    def many(self) -> bool:
        """Whether a telephone has no room for them."""
        return self.least > PHONE

    @property
    def style(self) -> str:
        """What `COLUMN_RULES` and page.css ask for: the width, where columns stand, and heads for cards."""
        said = [f"--least:{self.least}"]
        for k, column in enumerate(self.columns, 1):
            said += [f"--a{k}:left"] * (not column.number and k > 1)
            said += [f"--h{k}:{json.dumps(column.head, ensure_ascii=False)}"] * self.many
        return ";".join(said)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The texts, row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def fill(template: Path, **content: Any) -> str:
    """Fill a template.

    Args:
        template: a Jinja template. {{ style }} is the style that all pages share. The filter `embedded`
            encodes bytes as base64, `typeset` prints minus signs, `coded` also marks code between backticks,
            and `tone` returns the colour of a verdict. The macro `shown` of table.html lays out a table.
        content: the variables of the template.

    Returns:
        HTML; every text of the content is escaped.
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
    environment.filters["tone"] = tone
    environment.globals["pieces"] = pieces
    style = Markup(COLUMN_RULES + STYLE.read_text(encoding="utf-8"))
    return environment.from_string(template.read_text(encoding="utf-8")).render(style=style, **content)


def texts(table: pd.DataFrame) -> pd.DataFrame:
    """Write every entry of a table for reading, and the names of its columns."""
    return table.rename(columns=str).map(_text)


def tone(verdict: str) -> str:
    """Return the colour of a verdict: "yes", "no" or "open"; "" for a text that is not a verdict."""
    return next((name for name, words in TONES if words.search(verdict)), "")


def shown_width(png: bytes) -> int:
    """Return the width of a PNG file on a page: half of its pixels, so that dense screens show it sharply."""
    # The header of a PNG file holds the number of its pixels.
    return int.from_bytes(png[16:20]) // 2


def pieces(table: pd.DataFrame, keys: int = 1) -> Iterator[Piece]:
    """Divide the columns of a table, so that on paper none is cut off, however many there are.

    Args:
        table: texts.
        keys: how many columns at the left every piece begins with.
    """
    columns = [
        _column(str(name), [typeset(str(x)) for x in cells])
        for name, cells in zip(table, table.T.to_numpy(), strict=True)
    ]
    piece = columns[:keys]
    for column in columns[keys:]:
        if len(piece) > keys and (_together([*piece, column]) > MOST or len(piece) == COLUMNS):
            yield Piece(piece, _together(piece))
            piece = columns[:keys]
        piece = [*piece, column]
    yield Piece(piece, _together(piece))


def _together(columns: list[Column]) -> float:
    # `sum` of floats depends on the version of Python, and committed pages do not.
    return round(math.fsum(column.least for column in columns), 1)


def _column(head: str, cells: list[str]) -> Column:
    in_head, in_cells = (
        max((len(word) for x in texts for word in _words(x)), default=0) for texts in ([head], cells)
    )
    least = PADDING + max(BOLD_LETTER * min(in_head, LONG), LETTER * min(in_cells, LONG))
    return Column(head, cells, all(map(NUMBER.fullmatch, cells)), max(in_head, in_cells) > LONG, least)


def _words(text: str) -> list[str]:
    """Split where a line may end."""
    return re.split(rf"[ \n]+|(?<=\w-)(?=[A-Za-z])|{BREAK.pattern}", text)
