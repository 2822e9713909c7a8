"""Scan and snap: entropy of attention compared with figure 6, and losses compared with figure 4."""

from jaxattn.lab.books import around, at_least, mean, within_factor

# Entropy on distinct tokens in figure 6, by number of possible last tokens: rows are η_Z, columns η_Y/η_Z.
FIGURE_6 = {
    1: [
        [1.971, 2.007, 2.066, 2.092],
        [1.871, 1.937, 2.022, 2.053],
        [1.699, 1.81, 1.934, 1.9],
        [1.551, 1.708, 1.786, 1.825],
    ],
    3: [
        [2.019, 1.988, 2.031, 2.063],
        [1.963, 1.92, 1.982, 2.024],
        [1.842, 1.809, 1.899, 1.955],
        [1.737, 1.715, 1.821, 1.839],
    ],
    5: [
        [2.026, 1.994, 2.02, 2.055],
        [1.995, 1.931, 1.971, 2.014],
        [1.906, 1.816, 1.884, 1.926],
        [1.817, 1.718, 1.802, 1.831],
    ],
    10: [
        [2.033, 2.012, 2.018, 2.051],
        [2.027, 1.975, 1.976, 2.015],
        [1.99, 1.888, 1.899, 1.947],
        [1.94, 1.805, 1.829, 1.875],
    ],
}
# Tolerance by number of last tokens, and the published differences along both axes of figure 6.
TOLERANCE = {1: 0.096, 3: 0.023, 5: 0.017, 10: 0.0086}
BY_RATIO = {1: 0.1945, 3: 0.08, 5: 0.0205, 10: -0.0255}
BY_STEP = {1: -0.3165, 3: -0.2473, 5: -0.2318, 10: -0.1662}
# Losses of figure 4 by step.
FIGURE_4 = {10: (0.01295, "0.01295"), 20: (0.0002054, "2.054e-4"), 40: (2.911e-05, "2.911e-5")}
AXES = ["data.last", "phases.train.step_size", "phases.train.ratio"]
FALLS = {
    "entropy": "decrease of the entropy over all tokens, smallest value over the cells",
    "distinct_entropy": "decrease of the entropy over distinct tokens, smallest value over the cells",
    "common": "decrease of attention on common tokens, smallest value over the cells",
}


def check(results):
    """Compare the entropy on distinct tokens with figure 6, and the loss with figure 4."""
    rows = results["study"].with_axes(results["study"].records)
    at, table = by_cell(rows)
    for last, ours in at["distinct_entropy"][100].groupby(level=0):
        yield from figure_6(int(last), ours, table)
    for metric, text in FALLS.items():
        fall = at[metric][0] - at[metric][100]
        yield mean(f"fall.{metric}", text, fall.min(), expected=at_least(0.0), published="above 0")
    late = ((at[metric][50] - at[metric][100]) / fall).mean()
    text = "share of the decrease of attention on common tokens that happens after step 50"
    yield mean("fall.late", text, late, expected=around(0.0, 0.1), published="small")
    for step, (loss, published) in FIGURE_4.items():
        four = rows[(rows["block"] == "figure 4") & (rows["metric"] == "loss") & (rows["step"] == step)]
        about = {"expected": within_factor(loss, 1.5), "published": published}
        yield mean(f"figure_4.{step}", f"Figure 4: loss at step {step}", four["value"], **about)


def figure_6(last, ours, table):
    """Compare the mean entropy and its differences along both axes, for a number of last tokens."""
    name = "one possible last token" if last == 1 else f"{last} possible last tokens"
    away, tolerance = ours.sub(table["published"][[last]], axis=0).mean(), TOLERANCE[last]
    ratio = (ours.xs(10, level=2) - ours.xs(1, level=2)).mean()
    step = (ours.xs(3, level=1) - ours.xs(0.5, level=1)).mean()
    for id, text, samples, value in (
        ("entropy", "measured entropy minus published entropy", away, 0.0),
        ("ratio", "entropy at η_Y/η_Z = 10 minus entropy at η_Y/η_Z = 1", ratio, BY_RATIO[last]),
        ("step_size", "entropy at η_Z = 3 minus entropy at η_Z = 0.5", step, BY_STEP[last]),
    ):
        about = {"expected": around(value, tolerance), "published": f"{value:g}"}
        yield mean(f"last={last}.{id}", f"{name}: {text}", samples, **about)


def by_cell(rows):
    """Return all metrics by cell, and the entropies of figure 6 next to the published ones."""
    at = rows.pivot_table(index=AXES, columns=["metric", "step", "seed"], values="value")
    table = at["distinct_entropy"][100].mean(axis=1).rename("measured").to_frame()
    table["published"] = [x for last in at.index.levels[0] for row in FIGURE_6[int(last)] for x in row]
    return at, table


def tables(results):
    """Return the entropies of figure 6 next to the published ones."""
    rows = results["study"].with_axes(results["study"].records)
    names = dict(zip(AXES, ("number of possible last tokens", "η_Z", "η_Y/η_Z"), strict=True))
    table = by_cell(rows)[1].reset_index().rename(columns=names)
    return {"Entropy of attention on distinct tokens": table}
