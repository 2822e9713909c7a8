"""Accuracy on texts; nothing is published."""

from jaxattn.lab.books import cells


def check(results):
    """Measure the final training accuracy."""
    return [cell.final("train_accuracy") for cell in cells(results["study"])]
