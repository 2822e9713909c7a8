"""Which margin: the margin of p in both norms, as a share of the largest margin of its selection."""

from jaxattn.lab.books import around, at_least, cells

NAMES = {
    "normalised descent": "normalised gradient descent",
    "Adam": "Adam with β₂ = 0.99",
    "Adam with a long memory": "Adam with β₂ = 0.999",
}
METRICS = {
    "l2_margin_share": "ℓ₂ margin of p as a share of the largest ℓ₂ margin",
    "linf_margin_share": "ℓ_∞ margin of p as a share of the largest ℓ_∞ margin",
    "l2_share_of_linf_direction": "ℓ₂ margin of the best ℓ_∞ direction as a share of the largest ℓ₂ margin",
    "linf_share_of_l2_direction": "ℓ_∞ margin of the best ℓ₂ direction as a share of the largest ℓ_∞ margin",
    "l2_gap": "duality gap of the largest ℓ₂ margin",
    "linf_gap": "duality gap of the largest ℓ_∞ margin",
}
# The norm whose margin each optimiser should maximise.
MAXIMISED = {
    "normalised descent": "l2_margin_share",
    "sign descent": "linf_margin_share",
    "Signum": "linf_margin_share",
    "Adam": "linf_margin_share",
    "Adam with a long memory": "linf_margin_share",
}
GAP = around(0.0, 1e-8)


def check(results):
    """Measure both margins and their certificates for each optimiser."""
    for metric, text in METRICS.items():
        for cell in cells(results["study"]):
            about = {"expected": GAP} if metric.endswith("gap") else {}
            if MAXIMISED[cell.name] == metric:
                about = {"expected": at_least(0.95), "published": "1"}
            yield cell.final(metric, f"{NAMES.get(cell.name, cell.name)}: {text}", **about)
