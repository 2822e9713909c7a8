"""In-context classification: distance from one gradient step, and losses by kind of attention."""

from jaxattn.lab.books import around, at_least, at_most, cells, mean

ONE_STEP, BELOW = "one step of gradient descent", at_most(1.0)
WEIGHTS = {
    "identity": ("cosine of A for points with the identity", at_least(0.99)),
    "label_value": ("cosine of u with the label", at_least(0.95)),
    "step_correlation": (f"correlation with {ONE_STEP}", at_least(0.99)),
}


def check(results):
    """Compare trained weights with those of one gradient step, and the losses of the kinds of attention."""
    study = results["study"]
    last = study.records[study.records["step"] == study.records["step"].max()]
    table = last.pivot_table(index=["metric", "cell", "seed"], values="value")["value"]
    loss = {}
    for cell in cells(study):
        for metric, (text, expected) in WEIGHTS.items():
            about = {"expected": expected, "published": f"1 ({ONE_STEP})"}
            yield mean(f"{cell.id}.{metric}", f"{cell.name}: {text}", table[metric, cell.cell], **about)
        loss[cell.name] = table["test_loss", cell.cell]
        if cell.name.endswith("linear"):
            about = {"expected": around(0.0, 0.05), "published": f"0 ({ONE_STEP})"}
            text = f"{cell.name}: label in the scores / points"
            yield mean(f"{cell.id}.label_score", text, table["label_score", cell.cell], **about)
    # The paper compares softmax with linear attention for both kinds of points, and with exponential
    # attention only for clusters.
    title, adaptive = (BELOW, "below 1 (title)"), (BELOW, "below 1 (context-adaptive step size)")
    for other, own, clusters in (("exponential", (None, ""), adaptive), ("linear", title, title)):
        for part, (expected, published) in (("", own), ("clusters, ", clusters)):
            ratio = loss[f"{part}softmax"] / loss[f"{part}{other}"]
            text = f"{part.replace(', ', ': ')}test loss, softmax / {other}"
            id = f"{part.replace(', ', '.')}loss.softmax/{other}"
            yield mean(id, text, ratio, expected=expected, published=published)
