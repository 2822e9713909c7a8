"""The figure: edges over d for equal counts, and shares of seeds over η0 for random ones."""

import pandas as pd
from matplotlib.figure import Figure

from jaxattn.results.style import DISTINCT, WIDTH, style


def draw(folder):
    """Draw what the tables of a folder say, and return the path of the picture."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _edges(left, pd.read_csv(folder / "edges.csv"))
        _shares(right, pd.read_csv(folder / "counts.csv"))
        path = folder / "label_window.png"
        figure.savefig(path, dpi=160)
    return path


def _edges(ax, table):
    table = table.groupby(["T", "R"]).filter(lambda rows: rows["d"].nunique() > 1)
    for color, ((length, relevant), own) in zip(DISTINCT, table.groupby(["T", "R"]), strict=False):
        predicted = own.pivot(index="d", columns="edge", values="predicted")
        ax.plot(predicted, color=color)
        ax.fill_between(predicted.index, predicted["lower"], predicted["upper"], color=color, alpha=0.08)
        error = [own["threshold"] - own["low"], own["high"] - own["threshold"]]
        look = {"fmt": "o", "markersize": 3.5, "capsize": 2, "color": color}
        ax.errorbar(own["d"], own["threshold"], error, label=f"$T = {length}$, $R = {relevant}$", **look)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("$d$")
    ax.set_ylabel(r"$\eta_0$")
    ax.set_title("Equal counts: a label is lost between the lines")
    ax.legend(loc="upper right")


def _shares(ax, table):
    for color, (dim, cell) in zip(DISTINCT, table.groupby("d", sort=False), strict=False):
        name = r"\infty" if str(dim) == "inf" else f"{int(float(dim)):,}".replace(",", "{,}")
        ax.plot(cell["eta0"], cell["predicted"], color=color)
        error = [cell["share"] - cell["low"], cell["high"] - cell["share"]]
        look = {"fmt": "o", "markersize": 3.5, "capsize": 2, "color": color}
        ax.errorbar(cell["eta0"], cell["share"], error, label=f"$d = {name}$", **look)
    ax.set_xscale("log")
    ax.set_xlabel(r"$\eta_0$")
    ax.set_ylabel("share of seeds that lose a label")
    ax.set_title("Random counts: lines are theory")
    ax.legend(loc="upper left")
