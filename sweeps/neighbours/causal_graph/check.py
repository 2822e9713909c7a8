"""Causal graphs: attention to parents and losses, after joint training and after training in two stages."""

from jaxattn.lab.books import around, at_least, cells, mean

# Text and metric by id.
ATTENTION = {
    "parent": ("attention to the parent", "parent_attention"),
    "parent_half": ("share of parents with attention above 1/2", "parent_half"),
    "parent_largest": ("share of parents with the largest attention", "parent_largest"),
    "roots": ("distance of roots from uniform attention", "root_distance"),
}
GRADIENT = {
    "gradient_largest": ("share of parents with the largest gradient", "gradient_largest"),
    "gradient_correlation": ("correlation of gradient and information", "gradient_correlation"),
    "gradient_slope": ("slope of gradient over information", "gradient_slope"),
    "gradient_slope_frequent": ("slope over information of frequent tokens", "gradient_slope_frequent"),
}
# Text, loss and reference by id: (loss - reference) / (uniform loss - reference).
LOSSES = {
    "loss_counts": (
        "(loss - loss of counts) / (uniform - loss of counts)",
        "loss_of_test",
        "counted_of_test",
    ),
    "loss_bayes": ("(loss - Bayes loss) / (uniform - Bayes loss)", "loss_of_test", "bayes_of_test"),
    "loss_permutations": (
        "permutation matrices, (loss - loss of counts) / (uniform - loss of counts)",
        "other_loss_of_test",
        "other_counted_of_test",
    ),
}
TEXTS = {id: text for id, (text, *_) in {**ATTENTION, **GRADIENT, **LOSSES}.items()}
FIGURE = "Figure 9, many_graphs.ipynb"
# Criterion, published value and basis.
TRAINED = {
    "parent_largest": (at_least(0.95), "1", "published"),
    "loss_counts": (around(0.0, 0.05), "0", "published"),
    "loss_permutations": (around(0.0, 0.1), "0", "published"),
    "loss_bayes": (around(0.0, 0.05), "", "beyond"),
    "roots": (around(0.0, 0.1), "", "beyond"),
}
RANDOM = {
    "parent": (around(0.837, 0.05), f"0.837 ({FIGURE})", "published"),
    "parent_half": (around(0.967, 0.05), f"0.967 ({FIGURE})", "published"),
}
FIXED = {"parent": (at_least(0.8), "near 1", "published")}
STAGED = {
    "gradient_largest": (at_least(0.95), "1", "published"),
    "gradient_correlation": (at_least(0.9), "1", "published"),
    "gradient_slope": (around(1.0, 0.1), "1", "published"),
    "gradient_slope_frequent": (around(1.0, 0.1), "", "beyond"),
    "parent": (at_least(0.9), "near 1", "published"),
    "parent_largest": (at_least(0.95), "1", "published"),
    "roots": (around(0.0, 0.1), "0", "published"),
    "loss_counts": (around(0.0, 0.1), "0", "published"),
    "loss_permutations": (around(0.0, 0.2), "0", "published"),
}


def check(results):
    """Measure attention and losses at the end of training, and after each of two stages."""
    for cell in cells(results["study"]):
        criteria = TRAINED | (RANDOM if cell.name == "random" else FIXED)
        for id, samples in [*attention(cell, "train"), *losses(cell, "train")]:
            yield finding(cell, "trained", id, samples, criteria)
    every = cells(results["stages"])
    for cell in every:
        start = at(cell, "first", last=False)
        for id, (_, metric) in GRADIENT.items():
            yield finding(cell, "stages", id, start[metric], STAGED)
    for cell in every:
        for id, samples in [*attention(cell, "first"), *losses(cell, "second")]:
            yield finding(cell, "stages", id, samples, STAGED)


def finding(cell, part, id, samples, criteria):
    """Build a finding: the mean over seeds."""
    expected, published, basis = criteria.get(id, (None, "", "published"))
    about = {"expected": expected, "published": published, "basis": basis}
    name = cell.name.replace("random", "random graphs").replace("fewer sequences", "2,048 sequences")
    return mean(f"{part}.{cell.id}.{id}", f"{name}: {TEXTS[id]}", samples.to_numpy(float), **about)


def at(cell, phase, *, last):
    """Return the metrics at the first or last step of a phase, one row per seed."""
    rows = cell.records[cell.records["phase"] == phase]
    rows = rows[rows["step"] == (rows["step"].max() if last else rows["step"].min())]
    return rows.pivot_table(index="seed", columns="metric", values="value")


def attention(cell, phase):
    """Yield id and values per seed of the attention after a phase."""
    end = at(cell, phase, last=True)
    for id, (_, metric) in ATTENTION.items():
        if metric in end and end[metric].notna().all():
            yield id, end[metric]


def losses(cell, phase):
    """Yield id and values per seed of the excess losses after a phase, relative to uniform predictions."""
    end = at(cell, phase, last=True)
    for id, (_, loss, reference) in LOSSES.items():
        if reference in end:
            yield id, (end[loss] - end[reference]) / (end["uniform_loss"] - end[reference])
