"""Figures for attention heads: heat maps over layers and heads, and curves over checkpoints."""

import numpy as np
import pandas as pd
from head_measures import SINKS
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import BLUE, FIGURE_WIDTH, INK, RED, style
from jaxattn.lab.results.labels import file_name

_LETTERS = {"first": "F", "separator": "S", "itself": "I", "neighbour": "N", "other": "O", "": ""}


def heat_maps(heads: pd.DataFrame, margins: pd.DataFrame, model: str) -> RenderedFigure:
    """Draw heat maps over layers and heads.

    The maps show the fraction of sequences in which a head selects one token, and the cosine between the
    matrix of the head and the max-margin matrix.
    """
    own = heads[heads["model"] == model]
    cosines = _of_groups(margins[margins["model"] == model]).groupby(["layer", "head"])["cosine"].mean()
    panels = [
        ("sequences that select one token", own.set_index(["layer", "head"])["selecting"]),
        ("cosine with max-margin $W_Q$", cosines),
    ]
    kinds = own.set_index(["layer", "head"])["kind"]
    layers, numbers = sorted(own["layer"].unique()), sorted(own["head"].unique())
    with style():
        height = 1.1 + 0.26 * len(layers)
        figure = Figure(figsize=(FIGURE_WIDTH, height), layout="constrained")
        for ax, (title, values) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            grid = values.unstack("head").reindex(index=layers, columns=numbers).to_numpy(float)
            image = ax.imshow(grid, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            ax.grid(False)
            ax.set(title=title, xlabel="head")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_yticks(range(len(layers)), [str(x) for x in layers])
            for i, j in np.argwhere(np.isfinite(grid)):
                letter = _LETTERS.get(str(kinds.get((layers[i], numbers[j]), "")), "")
                ax.text(j, i, letter, ha="center", va="center", color="white" if grid[i, j] > 0.6 else INK)
            figure.colorbar(image, ax=ax, fraction=0.06)
        figure.axes[0].set_ylabel("layer")
    caption = (
        "Letters: most common kind of the selected token; F first, S separator, I the query itself, N a "
        "neighbour, O other. On the right, empty cells are heads without a selection."
    )
    return RenderedFigure(f"heads_{file_name(model)}", f"Attention heads of {model}", caption, figure)


def checkpoint_curves(heads: pd.DataFrame, margins: pd.DataFrame) -> RenderedFigure:
    """Draw the mean cosine and margin ratio of the heads that select a token, as curves over checkpoints.

    Attention sinks and other heads are drawn as separate curves.
    """
    models = list(heads["model"].unique())
    own = _of_groups(margins).merge(heads[["model", "layer", "head", "kind"]], on=["model", "layer", "head"])
    sink = own["kind"].isin(SINKS)
    with style():
        figure = Figure(figsize=(FIGURE_WIDTH, 2.6), layout="constrained")
        for ax, (name, title) in zip(
            figure.subplots(1, 2), (("cosine", "cosine"), ("ratio", "margin / largest margin")), strict=True
        ):
            for rows, label, colour in ((own[sink], "sinks", BLUE), (own[~sink], "other heads", RED)):
                means = rows.groupby("model")[name].mean().reindex(models)
                if means.notna().any():
                    ax.plot(range(len(models)), means, "o-", color=colour, label=label)
            ax.set(title=title, xlabel="checkpoint")
            ax.set_xticks(range(len(models)), models, rotation=30, ha="right")
            ax.legend()
    caption = "Means over heads with a selection and over groups of sequences, in the space of queries."
    return RenderedFigure("heads_curves", "Heads over checkpoints", caption, figure)


def _of_groups(margins: pd.DataFrame) -> pd.DataFrame:
    return margins[(margins["space"] == "query") & (margins["null"] == "none") & (margins["group"] >= 0)]
