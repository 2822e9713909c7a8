"""Factual recall: the plateau between learning relations and learning facts, and the end of training."""

import numpy as np

from jaxattn.lab.books import around, cells, mean

NAMES = {"linear": "linear model", "softmax": "softmax model"}
METRICS = {
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "relation_known": "share of answers with the correct relation",
}
END = {
    "linear": {
        "test_accuracy": (around(1.0, 0.02), "1"),
        "test_loss": (around(0.01, 0.02), "0.009"),
        "relation_known": (around(1.0, 0.02), "1"),
    },
    "softmax": {"test_accuracy": (around(1.0, 0.02), "1")},
}
# The plateau of both models has a closed form.
PLATEAU = {
    "test_loss": (around(2.079, 0.1), "log 8 = 2.079"),
    "test_accuracy": (around(0.125, 0.03), "1/8"),
    "relation_known": (around(1.0, 0.02), "1"),
}


def check(results):
    """Measure the end of training, and the plateau: the slowest decrease of a loss between 3 and 1."""
    for metric, text in METRICS.items():
        for cell in cells(results["study"]):
            expected, published = END[cell.name].get(metric, (None, ""))
            words = f"{NAMES[cell.name]}: {text}"
            yield cell.final(metric, words, expected=expected, published=published)
    for cell in cells(results["study"]):
        places = [plateau(one) for one in cell.wide(*METRICS)]
        texts = {"step": "step of the plateau"}
        texts |= {
            key: f"{METRICS[key]} on the plateau" for key in ("test_loss", "test_accuracy", "relation_known")
        }
        for key, text in texts.items():
            expected, published = PLATEAU.get(key, (None, ""))
            about = {"expected": expected, "published": published}
            samples = [place[key] for place in places]
            yield mean(f"{cell.id}.plateau.{key}", f"{NAMES[cell.name]}: {text}", samples, **about)


def plateau(one):
    """Return step and metrics of one seed where the loss, between 3 and 1, decreases most slowly."""
    loss, step = one["test_loss"].to_numpy(), one.index.to_numpy(float)
    fall = -np.gradient(loss, step)
    fall[(loss > 3) | (loss < 1)] = np.inf
    return one.iloc[int(fall.argmin())].to_dict() | {"step": step[int(fall.argmin())]}
