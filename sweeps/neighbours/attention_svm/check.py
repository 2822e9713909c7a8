"""Attention SVM: distance of W from the certified direction, and the largest attention."""

from jaxattn.lab.books import around, at_least, cells

STEPS = {
    "normalised": "normalised steps",
    "all digits": "normalised steps without cancellation errors",
    "flow": "exact flow",
}
METRICS = {
    "one_minus_cosine": "1 - cos to the certified direction",
    "largest_attention": "mean largest attention",
    "duality_gap": "duality gap of the certified direction",
}
EXPECTED = {
    "one_minus_cosine": (around(0.0, 0.01), "tends to 0"),
    "largest_attention": (at_least(0.99), "tends to 1"),
    "duality_gap": (around(0.0, 1e-8), ""),
}
# The flow ends at ‖W‖ = 1e6, so it comes much closer than the steps.
FLOW = EXPECTED | {"one_minus_cosine": (around(0.0, 1e-8), "tends to 0")}


def check(results):
    """Measure both at the end of the published steps, of precise steps, and of the exact flow."""
    for metric, text in METRICS.items():
        for cell in cells(results["study"]):
            expected, published = (FLOW if cell.name == "flow" else EXPECTED)[metric]
            words = f"{STEPS[cell.name]}: {text}"
            yield cell.final(metric, words, expected=expected, published=published)
