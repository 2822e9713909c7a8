"""How every figure looks: fonts, colours, names of quantities; what a drawn figure is and how it is saved."""

import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from jaxattn.results.load import Results
from jaxattn.results.statistics import setting

WIDTH = 6.8  # inches: the text width of most papers
INK, SOFT, GRID = "#222222", "#6b6b6b", "#e8e8e8"
BLUE, RED, GREY = "#2f6db3", "#c8553d", "#9a9a9a"
# Okabe and Ito's palette without its yellow, which is too pale for lines; distinct for the colour-blind.
DISTINCT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#333333", "#999999")

RC: Any = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "mathtext.fontset": "stix",
    "font.size": 9.5,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.linewidth": 0.6,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
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
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.4,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}

METRICS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "p_norm": r"$\Vert p\Vert$",
    "log_gradient_norm": r"$\log\,\Vert\nabla L\Vert$",
    "important_mass": "attention on important tokens",
    "one_step_error": "one-step error per unit $\\eta_0$",
    "one_minus_cosine": r"$1-\cos(p,\,p_\mathrm{mm})$",
    "margin_ratio": "margin of $p$ / largest margin",
    "margin_shortfall": "1 - margin of $p$ / largest margin",
    "important_selected": "sequences that select an important token",
    "evaluations": "gradient evaluations",
    "arc_length": "length of the path",
    "log_time": r"$\log\,t$",
    "correlation_Ev_alpha": r"correlation of $E_s^\top v$ and $\alpha_s$",
}
AXES = {
    "model.dim": "$d$",
    "data.vocab_size": "$V$",
    "data.length": "$T$",
    "data.sequences": "$n$",
}
VALUES = {"Ev": r"$E_s^\top v$", "Ep": r"$E_s^\top p$"}


@dataclass(frozen=True)
class Drawn:
    """A figure with its words.

    Attributes:
        name: file name without a suffix.
        title: a short heading, plain text.
        caption: one or two sentences that say what is shown, plain text.
        figure: the figure.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def style() -> AbstractContextManager[None]:
    """Set the style while figures are drawn and saved, and leave matplotlib's settings as they were."""
    return matplotlib.rc_context(RC)


def metric_label(metric: str) -> str:
    """Name a metric as in the paper."""
    if metric in METRICS:
        return METRICS[metric]
    found = re.fullmatch(r"spearman_(Ev|Ep)_(\w+)", metric)
    if found:
        return f"Spearman of {VALUES[found[1]]}, {found[2]}"
    return metric.replace("_", " ")


def axis_label(axis: str) -> str:
    """Name a swept key by the paper's letter if it has one, else by its last word."""
    return AXES.get(axis, axis.rpartition(".")[2].replace("_", " "))


def settings_label(settings: dict[str, Any]) -> str:
    """Name a cell by its settings, for a legend."""
    names = [axis_label(axis) for axis in settings]
    if len(set(names)) < len(names):
        names = list(settings)
    # A block is called by its name alone.
    return ", ".join(
        setting(value) if name == "block" else f"{name} = {setting(value)}"
        for name, value in zip(names, settings.values(), strict=True)
    )


def cell_words(results: Results, cell: int) -> str:
    """Name a cell in a caption; nothing if there is only one."""
    if len(results.manifest["cells"]) == 1:
        return ""
    settings = results.settings(cell)
    return (
        f", cell {cell} (" + ", ".join(f"{axis} = {setting(value)}" for axis, value in settings.items()) + ")"
    )


def seed_words(counts: Iterable[int]) -> str:
    """Say how many seeds: "5 seeds", "3 to 5 seeds"."""
    few, many = min(counts := list(counts)), max(counts)
    if few != many:
        return f"{few} to {many} seeds"
    return "1 seed" if many == 1 else f"{many} seeds"


def minus(text: str) -> str:
    """Write minus signs as the axes do."""
    return text.replace("-", "\N{MINUS SIGN}")


def legend_below(figure: Figure, handles: Sequence[Any], *, most_columns: int = 8) -> float:
    """Put a legend below the axes, in rows of equal length, and make the figure that much taller."""
    longest = max(len(re.sub(r"[$\\{}]", "", handle.get_label())) for handle in handles)
    columns = max(1, min(most_columns, int(figure.get_figwidth() / (0.4 + 0.065 * longest))))
    rows = -(-len(handles) // columns)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // rows))
    height = 0.08 + 0.19 * rows
    figure.set_figheight(figure.get_figheight() + height)
    return height


def colours(count: int, *, ordered: bool) -> list[str]:
    """Choose line colours: a sequence from light to dark if the cells have an order, else distinct ones."""
    if count == 1:
        return [BLUE]
    if not ordered and count <= len(DISTINCT):
        return list(DISTINCT[:count])
    return [to_hex(rgb) for rgb in matplotlib.colormaps["viridis_r"](np.linspace(0.12, 0.95, count))]


def file_name(*parts: object) -> str:
    """Join words to a file name that is safe everywhere."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "_".join(str(part) for part in parts))


def png(figure: Figure) -> bytes:
    """Render a figure as PNG; the same figure gives the same bytes."""
    return _render(figure, "png", {"Software": None})


def pdf(figure: Figure) -> bytes:
    """Render a figure as PDF with embedded fonts and no date; the same figure gives the same bytes."""
    return _render(figure, "pdf", {"CreationDate": None})


def _render(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    content = BytesIO()
    with style(), warnings.catch_warnings():
        # Vocabularies hold letters that no installed font has; a box in their place is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(content, format=kind, metadata=metadata)
    return content.getvalue()
