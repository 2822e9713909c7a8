"""Topic words: deviation of the norms from the law, accuracy, loss and scores."""

from jaxattn.lab.books import around, at_least, cells

METRICS = {
    "off_by": "largest relative deviation from the law",
    "test_accuracy": "test accuracy",
    "loss": "loss",
    "least_topic_score": "smallest score of a topic word",
    "topic_score": "mean score of the topic words",
    "largest_other_score": "largest score of another word",
}
EXPECTED = {
    "off_by": (around(0.0, 0.01), "0"),
    "test_accuracy": (at_least(0.99), "1.0"),
    "largest_other_score": (around(0.0, 0.05), "0"),
}
# The published losses are those of a fixed head, for which the law is proven.
FIXED = EXPECTED | {"loss": (around(0.004, 0.004), "0.0025 to 0.0058")}


def check(results):
    """Measure the final metrics with a fixed and with a trained head."""
    for metric, text in METRICS.items():
        for cell in cells(results["study"]):
            criteria = FIXED if cell.name == "fixed head" else EXPECTED
            expected, published = criteria.get(metric, (None, ""))
            words = f"{cell.name}: {text}"
            yield cell.final(metric, words, expected=expected, published=published)
