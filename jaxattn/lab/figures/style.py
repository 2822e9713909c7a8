"""Common style of all figures: fonts, colours, legends and file formats."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

COLORS = 256
FIGURE_WIDTH = 6.8  # inches: the text width of most papers
# Font size in points and resolution in pixels per inch for all figures. The resolution is twice that of a web
# page.
SIZE, DPI = 9.0, 220
INK, SOFT, _GRID = "#222222", "#6b6b6b", "#e8e8e8"
BLUE, RED, GREY = "#2f6db3", "#c8553d", "#9a9a9a"
# Okabe and Ito's palette for colour-blind readers, except its yellow, which is too pale for lines.
DISTINCT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#333333", "#999999")

RC: Any = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "mathtext.fontset": "stix",
    "font.size": SIZE,
    "axes.titlesize": SIZE,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.linewidth": 0.6,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    # Ticks of logarithmic axes between 0.001 and 1000 are plain numbers.
    "axes.formatter.min_exponent": 4,
    "legend.frameon": False,
    "figure.titlesize": SIZE,
    "figure.labelsize": SIZE,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.4,
    "savefig.dpi": DPI,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    # Identifiers in an SVG file are hashes with this salt, by default a random one.
    "svg.hashsalt": "jaxattn",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}

# Maximum number of legend columns.
_COLUMNS = 8


@contextmanager
def style() -> Iterator[None]:
    """Apply matplotlib's default style and `RC` within a context, regardless of the user's matplotlibrc."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def use_in_notebook() -> None:
    """Apply the common style to all figures in a notebook, at twice the screen resolution."""
    matplotlib.rcParams.update(RC | {"figure.figsize": (FIGURE_WIDTH, 2.8), "figure.dpi": 110})
    # matplotlib_inline is available only in notebooks.
    with suppress(ImportError):
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Add a legend below the axes, in rows of equal length, and increase the height of the figure."""
    longest = max(len(re.sub(r"[$\\{}]", "", handle.get_label())) for handle in handles)
    columns = max(1, min(_COLUMNS, int(figure.get_figwidth() / (0.4 + 0.069 * longest))))
    rows = -(-len(handles) // columns)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // rows))
    figure.set_figheight(figure.get_figheight() + 0.08 + 0.2 * rows)


def colours(count: int, *, ordered: bool) -> list[str]:
    """Return line colours: a light-to-dark scale if `ordered` or for many lines, else distinct colours."""
    if count == 1:
        return [BLUE]
    if not ordered and count <= len(DISTINCT):
        return list(DISTINCT[:count])
    return [to_hex(rgb) for rgb in matplotlib.colormaps["viridis_r"](np.linspace(0.12, 0.95, count))]


def png(figure: Figure, dpi: int | None = None) -> bytes:
    """Render a figure as a deterministic PNG with a palette, which reduces the file size by two thirds."""
    drawn = Image.open(BytesIO(_render(figure, "png", {"Software": None}, dpi)))
    content = BytesIO()
    few = drawn.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(content, "png", optimize=True, dpi=drawn.info["dpi"])
    return content.getvalue()


def svg(figure: Figure) -> bytes:
    """Render a figure as a deterministic SVG, whose text does not depend on the reader's fonts."""
    return _render(figure, "svg", {"Date": None, "Creator": None}, None)


def pdf(figure: Figure) -> bytes:
    """Render a figure as a deterministic PDF with embedded fonts."""
    return _render(figure, "pdf", {"CreationDate": None}, None)


def _render(figure: Figure, kind: str, metadata: dict[str, None], dpi: int | None) -> bytes:
    content = BytesIO()
    with style(), warnings.catch_warnings():
        # Vocabularies may contain letters that no installed font has; a box in their place is acceptable.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Names that are too long for a figure may leave no space for the axes.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        if kind == "svg":
            # savefig would draw the whole figure twice, first to compute the layout.
            shown, resolution = figure.canvas, figure.dpi
            figure.dpi = RC["savefig.dpi"]
            FigureCanvasSVG(figure).print_svg(content, metadata=metadata)
            figure.dpi = resolution
            figure.set_canvas(shown)
        else:
            figure.savefig(content, format=kind, metadata=metadata, dpi=dpi or RC["savefig.dpi"])
    return content.getvalue()
