"""The figure of README: the paper's Figure 3 on IMDB, from the record of its item, as SVG.

python docs/hero.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "published" / "paper" / "items" / "fig3_imdb.json"
FIGURE = Path(__file__).parent / "images" / "fig3_imdb.svg"
COLOURS = {"E·v": "#1b6ca8", "E·p": "#b5482a"}
WORDS = {"E·v": "the head reads a word as evidence", "E·p": "attention goes to words that say something"}


def columns() -> dict[str, list[float]]:
    """Read the bin means of the record, by the names of their columns."""
    table = json.loads(RECORD.read_text(encoding="utf-8"))["tables"]["Bin means"]
    return {name: [float(row[k]) for row in table["data"]] for k, name in enumerate(table["columns"])}


def draw() -> None:
    """Draw E·v and E·p over the posterior difference; bars are one standard deviation within a bin."""
    found = columns()
    plt.rcParams |= {"svg.hashsalt": "jaxattn", "font.size": 11, "svg.fonttype": "path"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for ax, (name, colour) in zip(axes, COLOURS.items(), strict=True):
        x, y, spread = (found[key] for key in ("posterior difference", f"{name}, ours", f"{name}, spread"))
        ax.errorbar(x, y, yerr=spread, fmt="o-", color=colour, ecolor=colour, elinewidth=1, markersize=4)
        ax.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        ax.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        ax.set_title(f"{name}: {WORDS[name]}", fontsize=11)
        ax.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("negative reviews  ←  posterior difference of a word  →  positive reviews", fontsize=10)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    draw()
