"""Analysis of in-context classification: distance from one gradient step, and losses by kind of attention."""

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge

WEIGHTS = {
    "identity": "cosine of A for points with the identity",
    "label_value": "cosine of u with the label",
    "step_correlation": "correlation with one step of gradient descent",
}


def steps(results, item) -> Measured:
    """Compare trained weights with those of one gradient step, and the losses of the kinds of attention."""
    last = results.records[results.records["step"] == results.records["step"].max()]
    table = last.pivot_table(index=["metric", "cell", "seed"], values="value")["value"]
    found, loss = {}, {}
    for cell, name in cell_names(results):
        for metric, text in WEIGHTS.items():
            found[f"{name}: {text}"] = table[metric, cell]
        loss[name] = table["test_loss", cell]
        if name.endswith("linear"):
            found[f"{name}: label in the scores / points"] = table["label_score", cell]
    for other in ("exponential", "linear"):
        found[f"test loss, softmax / {other}"] = loss["softmax"] / loss[other]
        ratio = loss["clusters, softmax"] / loss[f"clusters, {other}"]
        found[f"clusters: test loss, softmax / {other}"] = ratio
    return Measured([Finding(name, judge.mean(x), f"{len(x)} seeds") for name, x in found.items()], {})
