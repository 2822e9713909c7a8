"""Figure and tables of docs/notes/which_label.md."""

import pandas as pd
from matplotlib.figure import Figure

from jaxattn.lab.figures.style import DISTINCT, DPI, FIGURE_WIDTH, style


def draw(folder):
    """Plot edges.csv and counts.csv from a folder and return the path to the figure."""
    with style():
        figure = Figure(figsize=(FIGURE_WIDTH, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _edges(left, pd.read_csv(folder / "edges.csv"))
        _shares(right, pd.read_csv(folder / "counts.csv"))
        path = folder / "label_window.png"
        figure.savefig(path, dpi=DPI)
    return path


def _edges(ax, table):
    table = table.groupby(["T", "R"]).filter(lambda rows: rows["d"].nunique() > 1)
    for color, ((length, relevant), own) in zip(DISTINCT, table.groupby(["T", "R"]), strict=False):
        predicted = own.pivot(index="d", columns="edge", values="predicted")
        ax.plot(predicted, color=color)
        ax.fill_between(predicted.index, predicted["lower"], predicted["upper"], color=color, alpha=0.08)
        error = [own["threshold"] - own["low"], own["high"] - own["threshold"]]
        error = [side.where(side < float("inf"), 0) for side in error]
        look = {"fmt": "o", "markersize": 3.5, "capsize": 2, "color": color}
        ax.errorbar(own["d"], own["threshold"], error, label=f"$T = {length}$, $R = {relevant}$", **look)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("$d$")
    ax.set_ylabel(r"$\eta_0$")
    ax.set_ylim(top=2.5e4)
    ax.set_title("Equal counts: a label is ignored between the lines")
    ax.legend(loc="upper right")


def _shares(ax, table):
    for color, (dim, cell) in zip(DISTINCT, table.groupby("d", sort=False), strict=False):
        name = r"\infty" if str(dim) == "inf" else f"{int(float(dim)):,}".replace(",", "{,}")
        ax.plot(cell["eta0"], cell["predicted"], color=color)
        error = [cell["found"] - cell["low"], cell["high"] - cell["found"]]
        look = {"fmt": "o", "markersize": 3.5, "capsize": 2, "color": color}
        ax.errorbar(cell["eta0"], cell["found"], error, label=f"$d = {name}$", **look)
    ax.set_xscale("log")
    sizes = sorted(set(table["eta0"]))
    ax.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
    ax.minorticks_off()
    ax.set_xlabel(r"$\eta_0$")
    ax.set_ylabel("share of sequences that select their token")
    ax.set_title("Random counts: lines are predictions")
    ax.legend(loc="lower right")


def tables(folder):
    """Convert the CSV tables in a folder to Markdown tables for docs/notes/which_label.md."""
    for name, columns in COLUMNS.items():
        if (folder / f"{name}.csv").exists():
            table = pd.read_csv(folder / f"{name}.csv", dtype={"d": str})
            lines = [list(columns), [":--"] * len(columns)]
            lines += [[shown(row) for shown in columns.values()] for row in table.to_dict("records")]
            text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
            (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _between(row, digits=0, percent=False):
    """Format the interval of a row in brackets."""
    scale = 100 if percent else 1
    low, high = (
        f"{scale * row[end]:,.{digits}f}" if abs(row[end]) < float("inf") else "–" for end in ("low", "high")
    )
    return f"[{low}, {high}]{' %' if percent else ''}"


def _d(row):
    return "∞" if row["d"] == "inf" else f"{int(row['d']):,}"


COLUMNS = {
    "edges": {
        "d": _d,
        "T": lambda row: str(row["T"]),
        "R": lambda row: str(row["R"]),
        "edge": lambda row: row["edge"],
        "predicted": lambda row: f"{row['predicted']:,.0f}",
        "measured": lambda row: f"{row['threshold']:,.0f} {_between(row)}",
        "predicted / measured - 1": lambda row: f"{100 * row['error']:+.0f} %",
    },
    "counts": {
        "d": _d,
        "η0": lambda row: f"{row['eta0']:,.0f}",
        "predicted": lambda row: f"{row['predicted']:.3f}",
        "measured": lambda row: f"{row['found']:.3f} {_between(row, 3)}",
        "draws that ignore a label": lambda row: f"{row['draws_lost']} of {row['draws']}",
        "selected label has the rarest token": lambda row: str(row["rarest_of_winner"]),
    },
    "label": {
        "counts": lambda row: row["counts"],
        "seeds": lambda row: row["seeds"].replace("-", " to "),
        "predictor": lambda row: row["predictor"],
        "ignore a label": lambda row: f"{row['lost']:,} of {row['of']:,}",
        "correct": lambda row: f"{row['right']:,}, {100 * row['share']:.1f} {_between(row, 1, percent=True)}",
    },
    "escapes": {
        "run": lambda row: row["variant"],
        "ignore a label": lambda row: f"{row['lost']} of {row['seeds']} {_between(row, 2)}",
        "median loss": lambda row: f"{row['median_loss']:.3g}",
        "median ‖p‖": lambda row: f"{row['median_p_norm']:.3g}",
    },
}
