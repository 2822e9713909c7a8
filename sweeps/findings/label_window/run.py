"""Compare the predicted window of η0 in which a label is lost with the measured window of the flow of p.

    python sweeps/findings/label_window/run.py edges        # both edges by bisection, equal counts
    python sweeps/findings/label_window/run.py counts       # random counts, compared with published runs
    python sweeps/findings/label_window/run.py label        # which label wins: 100 seeds, then 1,000 more
    python sweeps/findings/label_window/run.py escapes      # variants that may select both labels
    python sweeps/findings/label_window/run.py figure       # the figure, and the tables as text

Tables and the figure are written to --out. Runs are stored in --runs, from which they can be resumed.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from escapes import SEEDS, STEP_SIZE, escapes, least_beta, walked
from figure import draw, tables
from label_window import follow, label_window, reduced_flow
from mine import SIZES, study

import jaxattn as ja
from jaxattn.lab.results.intervals import clopper_pearson

DIMS = [256, 2048, 16384]
# Each row contains the key of the horizontal axis, its values, and the settings that differ from SIZES and d
# = 2,048.
SETTINGS = [
    ("model.dim", DIMS, {}),
    ("model.dim", DIMS, {"length": 16}),
    ("model.dim", DIMS, {"relevant": 10}),
    ("data.length", [6], {}),
    ("data.length", [12], {}),
    ("data.relevant", [40], {}),
]
STEPS = [300.0, 500.0, 1000.0, 2000.0]
POINTS, LEARNED_ON = 7, 100


def at(axis, x, changes):
    """Return the corpus sizes and the dimension d of a setting in which the key `axis` has the value x."""
    if axis == "model.dim":
        return SIZES | changes, float(x)
    return SIZES | changes | {axis.removeprefix("data."): x}, 2048.0


def edges(given):
    """Write edges.csv, with the predicted and measured edges of the window for equal counts."""
    rows = []
    for axis, values, changes in SETTINGS:
        windows = {}
        for x in values:
            sizes, dim = at(axis, x, changes)
            windows[x] = label_window(**sizes, dim=dim)
            print(axis, x, changes, windows[x], flush=True)
        tag = "_".join([axis.split(".")[1], *map(str, values[:1]), *(f"{k}{v}" for k, v in changes.items())])
        low, high = ([getattr(w, edge) for w in windows.values()] for edge in ("lower", "upper"))
        around = {"lower": (min(low) / 1.35, 1.35 * max(low)), "upper": (min(high) / 1.2, 1.2 * max(high))}
        for edge, ends in around.items():
            diagram = ja.phase_diagram(
                study("equal", given.seeds, sizes=changes),
                x={axis: values},
                y={"phases.embed.step_size": np.geomspace(*ends, POINTS)},
                metric="kept",
                falls=edge == "lower",
                parts=POINTS - 1,
                phase="query",
                folder=given.runs / tag,
                quiet=True,
            )
            print(edge, diagram, flush=True)
            for row in diagram.thresholds.to_dict("records"):
                sizes, dim = at(axis, row["x"], changes)
                rows.append(_edge_row(sizes, dim, edge, getattr(windows[row["x"]], edge), row))
            write(given.out / "edges.csv", rows)


def _edge_row(sizes, dim, edge, predicted, found):
    numbers = {"predicted": predicted} | {name: found[name] for name in ("threshold", "low", "high")}
    return {
        "d": int(dim),
        "T": sizes["length"],
        "R": sizes["relevant"],
        "V": sizes["vocab_size"],
        "n": sizes["sequences"],
        "edge": edge,
        **{name: round(x, 1) for name, x in numbers.items()},
        "error": round(predicted / found["threshold"] - 1, 3),
        **{name: found[name] for name in ("seeds", "turned_back", "missing")},
    }


def counts(given):
    """Write counts.csv, with the mean fraction of sequences that select their relevant token.

    The counts of relevant tokens are random.
    """
    found = pd.read_csv(given.selection / "summary.csv", dtype={"model.dim": str})
    found = found.query("phase == 'query' and metric == 'only_relevant_selected'")
    drawn, rows = _drawn_counts(16), []
    for dim in ("256", "1024", "4096", "inf"):
        for step_size in STEPS:
            (cell,) = found[
                (found["model.dim"] == dim) & (found["phases.embed.step_size"] == step_size)
            ].to_dict("records")
            ends = [_followed(step_size, float(dim), *draw) for draw in drawn]
            shares = [float(flow.shares @ end.selected) for flow, end in ends]
            rows.append(
                {"d": dim, "eta0": step_size, "seeds": cell["n"], "found": cell["mean"]}
                | {"low": cell["mean_low"], "high": cell["mean_high"]}
                | {"predicted": float(np.mean(shares)), "draws": len(shares)}
                | {"draws_lost": int((np.array(shares) < 0.75).sum())}
                | {"rarest_of_winner": _rarest_of_winner(ends, shares)}
            )
            print(rows[-1], flush=True)
            write(given.out / "counts.csv", rows)


def _rarest_of_winner(ends, shares):
    """Count the corpora that lose a label and in which the winning label has the rarest token."""
    agree = 0
    for (flow, end), share in zip(ends, shares, strict=True):
        rarest = {y: np.abs(flow.values[: len(flow.labels)][flow.labels == y]).min() for y in (-1, 1)}
        kept = {y: (flow.shares * end.selected)[flow.labels == y].sum() for y in (-1, 1)}
        winner = max(kept, key=lambda y: kept[y])
        agree += share < 0.75 and rarest[winner] < rarest[-winner]
    return int(agree)


def _measured(results, which):
    """Return a table with a row for each cell and seed: settings, and metrics at one step of the flow.

    The step is the first one for `which` = 0, and the last one for `which` = -1.
    """
    records = results.records.query("phase == 'query'")
    step = sorted(records["step"].unique())[which]
    table = records[records["step"] == step].pivot(index=["cell", "seed"], columns="metric", values="value")
    return table.reset_index().merge(results.cells, on="cell")


def _drawn_counts(draws, seed=0):
    """For each corpus, sample token counts as in `assumption1` (negative for label -1) and initial noise."""
    rng, own = np.random.default_rng(seed), SIZES["relevant"] // 2
    found = []
    while len(found) < draws:
        each = rng.multinomial(SIZES["sequences"] // 2, np.full(own, 1 / own), size=2)
        if each.all():
            found.append((np.append(-each[0], each[1]), rng.normal()))
    return found


def _followed(step_size, dim, own, noise):
    """Return the reduced flow for one corpus and its final state."""
    sizes = {name: SIZES[name] for name in ("relevant", "length", "vocab_size")}
    flow = reduced_flow(step_size, **sizes, dim=dim, counts=own, noise=noise)
    return flow, follow(flow, longest=300.0)


def label(given):
    """Select a predictor of the winning label on 100 seeds, evaluate it on new seeds, and write label.csv."""
    rows, names = [], ("pull", "ahead", "skewed")
    for kind in ("random", "equal"):
        best = ""
        for seeds in (range(LEARNED_ON), range(LEARNED_ON, LEARNED_ON + given.fresh)):
            folder = given.runs / f"label_{kind}_{seeds[0]}"
            made = study(kind, list(seeds), phases=walked(800), name=f"label_{kind}")
            results = made.run(folder, quiet=True)
            first, end = (_measured(results, which).set_index("seed") for which in (0, -1))
            lost = end[end["kept"] < 0.5]
            winner = np.sign(lost["selected_positive"] - lost["selected_negative"])
            right = {name: (np.sign(first.loc[lost.index, name]) == winner).sum() for name in names}
            best = best or max(right, key=lambda name: right[name])
            for name in names if not best or seeds[0] == 0 else (best,):
                low, high = clopper_pearson(int(right[name]), len(lost))
                rows.append(
                    {"counts": kind, "eta0": STEP_SIZE, "seeds": f"{seeds[0]}-{seeds[-1]}", "predictor": name}
                    | {"lost": len(lost), "of": len(end), "right": int(right[name])}
                    | {"share": right[name] / len(lost), "low": float(low), "high": float(high)}
                )
                print(rows[-1], flush=True)
            write(given.out / "label.csv", rows)


def write(path, rows):
    """Write rows to a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def main():
    """Run the part that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=["edges", "counts", "label", "escapes", "figure"])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--fresh", type=int, default=1000, help="number of new seeds for the evaluation")
    parser.add_argument("--out", type=Path, default=Path("results/published/label_window"))
    parser.add_argument("--selection", type=Path, default=Path("results/published/selection_vs_eta0"))
    parser.add_argument("--runs", type=Path, default=Path("results/label_window"))
    given = parser.parse_args()
    match given.part:
        case "edges":
            edges(given)
        case "counts":
            counts(given)
        case "label":
            label(given)
        case "escapes":
            print("β of no growth:", least_beta(STEP_SIZE, **SIZES))
            rows = []
            for row in escapes(SEEDS, given.runs):
                rows.append(row)
                print(row, flush=True)
                write(given.out / "escapes.csv", rows)
        case "figure":
            tables(given.out)
            print(draw(given.out))


if __name__ == "__main__":
    main()
