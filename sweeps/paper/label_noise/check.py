"""Noisy labels: attention and accuracy by the probability of a flipped label. Nothing is published."""

from jaxattn.lab.books import cells

METRICS = {
    "test_accuracy": "test accuracy",
    "test_accuracy_best_on_test": "best test accuracy during training",
    "important_mass": "attention on important tokens",
    "spearman_Ev_tokens": "Spearman correlation of E·v with importance over tokens",
}


def check(results):
    """Measure the final metrics for each flip probability."""
    return [
        cell.final(metric, f"{name(cell)}: {words}", id=f"nu={cell['data.label_noise']:g}.{metric}")
        for metric, words in METRICS.items()
        for cell in cells(results["study"])
    ]


def name(cell):
    """Return the settings of a cell in words."""
    noise, important = cell["data.label_noise"], cell["probes.important"]
    return f"flip probability = {noise:g}, importance threshold = {important:g}"
