"""Analysis of the trained transformer, and of training in two stages."""

from jaxattn.lab.books import Finding, Measured, cell_names, declare_names
from jaxattn.lab.results import judge

ATTENTION = {
    "attention to the parent": "parent_attention",
    "share of parents with attention above 1/2": "parent_half",
    "share of parents with the largest attention": "parent_largest",
    "distance of roots from uniform attention": "root_distance",
}
GRADIENT = {
    "share of parents with the largest gradient": "gradient_largest",
    "correlation of gradient and information": "gradient_correlation",
    "slope of gradient over information": "gradient_slope",
    "slope over information of frequent tokens": "gradient_slope_frequent",
}
LOSSES = {  # (loss - reference) / (uniform loss - reference)
    "(loss - loss of counts) / (uniform - loss of counts)": ("loss_of_test", "counted_of_test"),
    "(loss - Bayes loss) / (uniform - Bayes loss)": ("loss_of_test", "bayes_of_test"),
    "permutations, (loss - loss of counts) / (uniform - loss of counts)": (
        "other_loss_of_test",
        "other_counted_of_test",
    ),
}


def seeds_of(results, cell: int, phase: str, *, last: bool):
    """Return the metrics of a cell at the first or last step of a phase, one row per seed."""
    records = results.records
    rows = records[(records["cell"] == cell) & (records["phase"] == phase)]
    rows = rows[rows["step"] == (rows["step"].max() if last else rows["step"].min())]
    return rows.pivot_table(index="seed", columns="metric", values="value")


def attention_and_losses(results, *, attention_phase: str, last_phase: str):
    """Yield names and values per seed: the attention after one phase, and the losses after another."""
    for cell, name in cell_names(results):
        first = seeds_of(results, cell, attention_phase, last=True)
        for words, metric in ATTENTION.items():
            if metric in first and first[metric].notna().all():
                yield f"{name}: {words}", first[metric]
        end = seeds_of(results, cell, last_phase, last=True)
        for words, (loss, reference) in LOSSES.items():
            if reference in end:
                excess = (end[loss] - end[reference]) / (end["uniform_loss"] - end[reference])
                yield f"{name}: {words}", excess


def judged(samples) -> Measured:
    """Return a finding for each (name, values) pair: the mean over seeds."""
    return Measured(
        [Finding(name, judge.mean(x.to_numpy(float)), f"{len(x)} seeds") for name, x in samples], {}
    )


@declare_names(*(f"*: {words}" for words in [*ATTENTION, *LOSSES]))
def trained(results, item) -> Measured:
    """Measure attention and losses at the end of training."""
    return judged(attention_and_losses(results, attention_phase="train", last_phase="train"))


@declare_names(*(f"*: {words}" for words in [*GRADIENT, *ATTENTION, *LOSSES]))
def staged(results, item) -> Measured:
    """Measure the first gradient, the attention after one step, and the losses after both stages."""
    found = []
    for cell, name in cell_names(results):
        start = seeds_of(results, cell, "first", last=False)
        found += [(f"{name}: {words}", start[metric]) for words, metric in GRADIENT.items()]
    return judged([*found, *attention_and_losses(results, attention_phase="first", last_phase="second")])
