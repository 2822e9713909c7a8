"""Write tables and figures for a run of `which_cover`.

python ends.py RUN OUT reads the folder of a run, and writes runs.csv, cells.csv and both figures to OUT.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import jaxattn as ja
from jaxattn.lab.figures.style import BLUE, DISTINCT, GREY, INK, RED, style
from jaxattn.lab.results import judge
from jaxattn.lab.results.statistics import last_steps

SCALE, STEP = "model.init.E.scale", "phases.embed.step_size"
WITHIN = 0.01
FARTHEST = 20
# Metrics that every run records but this module ignores.
UNUSED = ("loss", "log_gradient_norm", "train_accuracy", "arc_length", "drift")


def runs(results) -> pd.DataFrame:
    """Return a table with a row for each run: corpus, initial scale, step size, seed, and final metrics."""
    records = results.records[results.records["phase"] == "all"]
    records = results.with_axes(last_steps(records))
    index = [key for key in ("block", SCALE, STEP, "seed") if key in records]
    return records.pivot_table(index=index, columns="metric", values="value", sort=False).reset_index()


def powers(results) -> np.ndarray:
    """For each run, estimate the exponent of log(1/L) in the distance from the law.

    The estimate is computed from the last two rows of the run.
    """
    records = results.records[results.records["phase"] == "all"]
    last = sorted(records["step"].unique())[-2:]
    records = results.with_axes(records[records["step"].isin(last)])
    index = ["block", SCALE, STEP, "seed"]

    def rows(metric: str) -> np.ndarray:
        own = records[records["metric"] == metric]
        return own.pivot_table(index=index, columns="step", values="value", sort=False).to_numpy()

    return np.log(rows("cover_error")) @ [-1, 1] / (np.log(-rows("log_loss")) @ [-1, 1])


def cells(found: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each cell, with means over the runs that end on a cover."""
    found = found[(found["came_to_end"] == 1) & (found["cover_share"] == 1)]
    rows = []
    for (block, step, scale), own in found.groupby(["block", STEP, SCALE], sort=False):
        shares = {
            "a shortest cover": own["cover_size"] == own["shortest_cover"],
            "largest size of α on top": own["follows_size_of_alpha"] == 1,
            "order of ±α": own["follows_alpha"] == 1,
            "within 1 %": own["cover_error"] <= WITHIN,
        }
        sizes = {
            "r_eff": "cover_size",
            "shortest": "shortest_cover",
            "greedy": "greedy_cover",
            "by size of α": "alpha_cover",
        }
        rows.append(
            {"corpus": block, "step on E": "yes" if step else "no", "scale": scale, "runs": len(own)}
            | {name: own[metric].mean() for name, metric in sizes.items()}
            | {name: float(x.mean()) for name, x in shares.items()}
        )
    return pd.DataFrame(rows)


def exceptions(found: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that stopped early or without a cover, then the other runs farthest from the law."""
    off = (found["came_to_end"] != 1) | (found["cover_share"] != 1)
    farthest = found[~off & (found["cover_error"] > WITHIN)].nlargest(FARTHEST, "cover_error")
    names = ["log_loss", "cover_share", "cover_size", "cover_error", "cover_elsewhere", "cover_attention"]
    return pd.concat([found[off], farthest])[["block", SCALE, STEP, "seed", *names]].reset_index(drop=True)


def sizes(results) -> Figure:
    """Plot the number of top tokens minus the size of the shortest cover against the initial scale.

    Points are means with confidence intervals.
    """
    found = runs(results)
    blocks = list(dict.fromkeys(found["block"]))
    rows = -(-len(blocks) // 3)
    figure = Figure(figsize=(7.2, 2.6 * rows), layout="constrained")
    grid = figure.subplots(rows, 3, sharex=True, squeeze=False).ravel()
    for axes, block in zip(grid, blocks, strict=False):
        own = found[found["block"] == block]
        for with_step, colour, name in ((False, BLUE, "no step on E"), (True, RED, "one step on E")):
            part = own[(own[STEP] > 0) == with_step].groupby(SCALE)
            beyond = [judge.mean(x["cover_size"] - x["shortest_cover"]) for _, x in part]
            x, (y, low, high) = list(part.groups), np.array([e[:3] for e in beyond]).T
            sides = np.nan_to_num([y - low, high - y])
            axes.errorbar(x, y, sides, color=colour, label=name, marker="o", markersize=3, capsize=2)
        for metric, line, name in (("greedy_cover", "--", "greedy"), ("alpha_cover", ":", "by |α|")):
            axes.axhline((own[metric] - own["shortest_cover"]).mean(), color=GREY, ls=line, label=name)
        axes.set(title=block, xscale="log")
    for axes in grid[len(blocks) :]:
        axes.set_axis_off()
    figure.supylabel("tokens beyond the shortest cover")
    figure.supxlabel("scale of the start")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def law(results) -> Figure:
    """Plot the distance of E·v from the law on top tokens against -log L, as median and 95 % quantile."""
    records = results.with_axes(results.records[results.records["phase"] == "all"])
    index = ["block", SCALE, STEP, "seed", "step"]
    wide = records.pivot_table(index=index, columns="metric", values="value").reset_index()
    wide = wide[wide["log_loss"] < -3]
    figure = Figure(figsize=(6.8, 3.6), layout="constrained")
    axes = figure.subplots()
    for (block, own), colour in zip(wide.groupby("block", sort=False), DISTINCT, strict=False):
        part = own.groupby("step")
        x, y = -part["log_loss"].median(), part["cover_error"].median()
        axes.plot(x, y, color=colour, label=block)
        axes.fill_between(x, y, part["cover_error"].quantile(0.95), color=colour, alpha=0.12, lw=0)
    axes.axhline(WITHIN, color=INK, lw=0.8, ls="--")
    axes.set(xscale="log", yscale="log", xlabel=r"$-\log L$")
    axes.set_ylabel("largest distance from the law, relative")
    axes.legend()
    return figure


def main(run: str, out: str) -> None:
    """Read the run in folder `run` and write its tables and figures to folder `out`."""
    results, folder = ja.load(run), Path(out)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    found = runs(results).drop(columns=list(UNUSED))
    found.to_csv(folder / "runs.csv", index=False, float_format="%.6g")
    if SCALE not in found:
        return
    cells(found).to_csv(folder / "cells.csv", index=False, float_format="%.6g")
    with style():
        for draw in (sizes, law):
            (folder / "figures" / f"{draw.__name__}.png").write_bytes(results.figure(draw).png())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ja.InputError as error:
        raise SystemExit(str(error)) from None
