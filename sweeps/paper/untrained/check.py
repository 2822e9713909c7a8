"""Accuracy and loss with fixed and with trained embeddings, IMDB."""

from final_metrics import metrics_by_step

from jaxattn.lab.books import around, cells

# Criterion and published value of the metrics, for E fixed and for all parameters trained.
FIXED = {"test_accuracy": (around(0.72, 0.05), "≈ 0.72"), "loss": (around(0.6, 0.05), "≈ 0.6")}
TRAINED = {"test_accuracy": (around(0.95, 0.03), "≈ 0.95"), "loss": (around(0.1, 0.05), "≈ 0.1")}


def check(results):
    """Compare the metrics at the end of training with the published ones."""
    for cell in cells(results["study"]):
        is_fixed = cell.name.startswith("E at its start")
        name = cell.name.replace("E at its start", "E fixed at its initialisation")
        name = name.replace("all trained", "all parameters trained")
        for metric, words in (
            ("test_accuracy", "test accuracy"),
            ("train_accuracy", "training accuracy"),
            ("loss", "loss"),
        ):
            expected, published = (FIXED if is_fixed else TRAINED).get(metric, (None, ""))
            text = f"{name}: {words}"
            yield cell.final(metric, text, expected=expected, published=published)


def tables(results):
    """Return accuracy and loss during training."""
    return metrics_by_step(results["study"])
