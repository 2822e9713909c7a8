"""Negation: accuracy of each model. Nothing is published."""

from jaxattn.lab.books import cells


def check(results):
    """Measure the final accuracy of each model."""
    return [
        cell.final(metric, f"{cell.name}: {words}")
        for metric, words in (("test_accuracy", "test accuracy"), ("train_accuracy", "training accuracy"))
        for cell in cells(results["study"])
    ]
